"""What a view of the log looks like, and how it is read: the log itself, its latest values, an upsert view's changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from logstore.arrow.plan.entry_runs import Task
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.plan.splits import Split
from logstore.arrow.scan.latest import LatestScan
from logstore.arrow.scan.split_scan import Scan
from logstore.arrow.scan.upsert import STORED, UpsertScan
from logstore.spark.options.schema import columns_of, spark_schema, upsert_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

AnyScan = Scan | LatestScan | UpsertScan


def schema_of(options: ReadOptions) -> StructType:
    """The row that a read with these options gives."""
    return upsert_schema() if options.view == "upsert" else spark_schema(options.columns)


def scan_of(options: ReadOptions, schema: StructType) -> AnyScan:
    """How to read rows of `schema`, which is `schema_of(options)` unless the user gave another one."""
    if options.view == "upsert":
        if schema != upsert_schema():
            raise ValueError(f"view=upsert has the columns {upsert_schema().simpleString()} and no others")
        return UpsertScan(Scan(options.path, STORED, options.fail_on_data_loss))
    scan = Scan(options.path, columns_of(schema), options.fail_on_data_loss)
    return LatestScan(scan) if options.view == "latest" else scan


def rows_of_task(scan: AnyScan, task: Task) -> Iterator[pa.RecordBatch]:
    """What a task reads, on its executor."""
    if isinstance(task, Split):
        return scan.rows(task)
    assert isinstance(scan, Scan), "views are of whole partitions"
    return scan.rows_of(task)
