"""A topic and its table as one frame: the table's files are read by Spark itself, the rest from the log by Python.

No jar is needed: the files of the table's version are Parquet, named one by one. A table from which rows were
deleted says so in files of its own, which Spark cannot read without the format's jar: such a one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from logstore.arrow.plan.log_partitions import open_store
from logstore.lake.rows import Schema
from logstore.lake.union import open_table, tail_of
from logstore.layout.catalog import Catalog
from logstore.objects import close_store
from logstore.spark.options.read_options import TASK_BYTES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def table(spark: SparkSession, url: str, topic: str, *, lake: str, schema: Schema = None) -> DataFrame:
    """All records of the table `lake` and those durable ones of the topic that are not in it yet, each once: a
    snapshot of the moment of this call, with the table's columns.

    Spark reads the table's files as Parquet, with all that it can prune there; the rest is parsed by the tasks as
    the table's columns say, or by `schema` if the table was filled from Avro or Protobuf. The client needs a way to both.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    found = open_table(lake)
    store = open_store(url)
    try:
        tail = tail_of(store, Catalog(store).find(topic), found, None, lake, TASK_BYTES, schema)
    finally:
        close_store(store)
    schema = from_arrow_schema(tail.schema)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_store(url)
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from tail.rows(objects, tail.splits[number])
        finally:
            close_store(objects)

    read.__name__ = f"logstore {topic} in {url}, behind {lake.partition('?')[0]}"
    count = len(tail.splits)
    fresh = spark.range(0, count, 1, max(1, count)).mapInArrow(read, schema)
    files = [
        path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path for path in found.files()
    ]
    return spark.read.schema(schema).parquet(*files).union(fresh) if files else fresh
