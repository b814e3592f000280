"""`spark.read.format("logstore")`: a reader that plans from manifests on the driver and reads segments on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from logstore.arrow.plan.entry_runs import Task
from logstore.arrow.plan.log_partitions import open_store
from logstore.arrow.plan.planner import plan_batch, plan_tasks
from logstore.arrow.plan.request import ReadOptions
from logstore.objects.closing import closing_store
from logstore.spark.read.views import rows_of_task, scan_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SplitPartition(InputPartition):
    """What a task reads, as Spark hands it over."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)


class LogReader(DataSourceReader):
    """Holds no client: it is pickled to executors, and each of those opens its own store.

    It takes no filters from Spark. Spark (4.1 to 4.3) keeps the plan of the last filters with the frame, so another query of
    the same frame, or a second branch of one, would be read with filters that are not its own, and lack rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._scan = scan_of(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with closing_store(open_store(self._options.path)) as store:
            tasks = plan_tasks(self._options, plan_batch(store, self._options))
        # Spark makes a single None of an empty list, so say it ourselves.
        return [SplitPartition(task) for task in tasks] or [SplitPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition.value is None else rows_of_task(self._scan, partition.value)
