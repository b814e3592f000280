"""A topic and its table as one frame: the table's files are read by Spark itself, the rest from the log by Python.

No jar is needed: the files of the table's version are Parquet, named one by one. A table from which rows were
deleted says so in files of its own, which Spark cannot read without the format's jar: such a one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.arrow.plan.entry_runs import in_order, over_entries
from logstore.arrow.plan.log_partitions import open_store
from logstore.arrow.plan.splits import packed
from logstore.config import MIB
from logstore.lake.rows import Schema
from logstore.lake.union import open_table, tail_of
from logstore.layout.catalog import Catalog
from logstore.objects import close_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 16 * MIB
"""Of the log, as stored: some 100,000 values are parsed in a task. A smaller rest is one task, however many partitions
it is of, because a task costs as much as some thousand rows."""


def table(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    lake: str,
    columns: Sequence[str] | None = None,
    schema: Schema = None,
) -> DataFrame:
    """All records of the table `lake` and those durable ones of the topic that are not in it yet, each once: a
    snapshot of the moment of this call, with the table's columns.

    Spark reads the table's files as Parquet, with all that it can prune there; the rest is parsed by the tasks as
    the table's columns say, or by `schema` if the table was filled from Avro or Protobuf. The client needs a way to both.

    Spark cannot tell the rest which columns a query needs: `columns` does. `payload.size` is the struct `payload` with the
    field `size` alone.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    found = open_table(lake)
    store = open_store(url)
    try:
        tail = tail_of(store, Catalog(store).find(topic), found, columns, lake, _TASK_BYTES, schema)
    finally:
        close_store(store)
    rows = from_arrow_schema(tail.schema)
    tasks = packed(in_order(over_entries(tail.splits)), _TASK_BYTES)
    tail = replace(tail, splits=())  # they are in the tasks, and travel once

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_store(url)
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from tail.rows(objects, tasks[number])
        finally:
            close_store(objects)

    read.__name__ = f"logstore {topic} in {url}, behind {lake.partition('?')[0]}"
    fresh = spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(read, rows)
    files = [
        path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path for path in found.files()
    ]
    if not files:
        return fresh
    table_rows = spark.read.schema(rows).parquet(*files)
    return table_rows.union(fresh) if tasks else table_rows
