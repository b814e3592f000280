"""`spark.read.format("logstore")`: a reader that plans from manifests on the driver and reads segments on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from logstore.arrow.plan.bounds import EVERYTHING, Bounds
from logstore.arrow.plan.log_partitions import open_store
from logstore.arrow.plan.planner import plan_batch
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.plan.splits import Split
from logstore.objects import close_store
from logstore.spark.read.filters import narrowed
from logstore.spark.read.views import scan_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class SplitPartition(InputPartition):
    """One split, as Spark hands it to a task."""

    def __init__(self, split: Split | None) -> None:
        super().__init__(split)


class LogReader(DataSourceReader):
    """Holds no client: it is pickled to executors, and each of those opens its own store."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._scan = scan_of(options, schema)
        self._bounds = EVERYTHING
        if options.push_filters:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def keep(self, bounds: Bounds) -> None:
        """Read only what may lie within these bounds. The latest view needs all of a partition."""
        self._bounds = bounds.of_partitions() if self._options.view == "latest" else bounds

    def partitions(self) -> Sequence[InputPartition]:
        store = open_store(self._options.path)
        try:
            splits = plan_batch(store, self._options, self._bounds)
        finally:
            close_store(store)
        # Spark makes a single None of an empty list, so say it ourselves.
        return [SplitPartition(split) for split in splits] or [SplitPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition.value is None else self._scan.rows(partition.value)


class _PushFilters:
    """`pushFilters` of a frame that asked for it.

    It has to be asked for, because Spark keeps the plan of the last filters with the frame (seen in 4.2): another query of
    the same frame, or a second branch of one, is then read with filters that are not its own, and lacks rows.

    Spark refuses a reader that overrides the method while `spark.sql.python.filterPushdown.enabled` is off, which is its
    default, and a reader cannot see the session's conf. Spark tells by `__func__` whether a method is overridden; this
    callable shows the inherited one, so it is called where push-down is on and passes the check where it is off.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        # All are handed back: a bound prunes segments and batches, Spark still judges each row.
        self._reader.keep(narrowed(filters))
        return filters
