"""A topic and its table as one frame: the table is read by Spark itself, the rest from the log by Python.

No jar is needed: the files of the table's version are Parquet, named one by one. A table from which rows were
deleted says so in files of its own, which Spark cannot read without the format's jar: such a one is refused. A session that
was set up for the format reads the table's version through that, and knows what its log says of files and rows.
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
from logstore.lake.table_format import TableFormat
from logstore.lake.union import open_table, tail_of
from logstore.layout.catalog import Catalog
from logstore.objects.closing import closing_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

_TASK_BYTES = 16 * MIB
"""Of the log, as stored: some 100,000 values are parsed in a task. A smaller rest is one task, however many partitions
it is of, because a task costs as much as some thousand rows."""
_EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
"""By which a session says that it has the format's jar. To try and see would cost a tenth of a CPU second each time."""


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

    Spark reads the table by its format's jar, if the session has the jar's extension among `spark.sql.extensions`; if not,
    its files as Parquet. It prunes there what it can. The rest is parsed by the tasks as the table's columns say, or by
    `schema` if the table was filled from Avro or Protobuf. The client needs a way to both.

    Spark cannot tell the rest which columns a query needs: `columns` does. `payload.size` is the struct `payload` with the
    field `size` alone.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    found = open_table(lake)
    with closing_store(open_store(url)) as store:
        tail = tail_of(store, Catalog(store).find(topic), found, columns, lake, _TASK_BYTES, schema)
    rows = from_arrow_schema(tail.schema)
    tasks = packed(in_order(over_entries(tail.splits)), _TASK_BYTES)
    tail = replace(tail, splits=())  # they are in the tasks, and travel once

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing_store(open_store(url)) as objects:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from tail.rows(objects, tasks[number])

    read.__name__ = f"logstore {topic} in {url}, behind {lake.partition('?')[0]}"
    fresh = spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(read, rows)
    table_rows = _rows_of_table(spark, found, rows)
    if table_rows is None:
        return fresh
    return table_rows.union(fresh) if tasks else table_rows


def _rows_of_table(spark: SparkSession, found: TableFormat, rows: StructType) -> DataFrame | None:
    """None if it has no file: then nothing says which columns a file has."""
    how = found.spark_read()
    if _EXTENSIONS[how.form] in (spark.conf.get("spark.sql.extensions", "") or ""):
        native = spark.read.format(how.form).options(**how.options).load(_as_hadoop_has_it(how.path))
        return native.select(*(_narrowed(native, wanted) for wanted in rows))
    files = [_as_hadoop_has_it(path) for path in found.files()]
    return spark.read.schema(rows).parquet(*files) if files else None


def _as_hadoop_has_it(path: str) -> str:
    return f"s3a://{path[5:]}" if path.startswith("s3://") else path


def _narrowed(frame: DataFrame, wanted: StructField) -> Column:
    """The column, without the fields of structs that nobody wants: Spark prunes them in the files, too."""
    name = f"`{wanted.name}`"
    left_out = _left_out(frame.schema[wanted.name].dataType, wanted.dataType, "")
    return frame[name].dropFields(*left_out).alias(wanted.name) if left_out else frame[name]


def _left_out(known: DataType, wanted: DataType, within: str) -> list[str]:
    from pyspark.sql.types import StructType

    if not isinstance(known, StructType) or not isinstance(wanted, StructType):
        return []
    found = []
    for field in known:
        name = f"{within}`{field.name}`"
        if field.name not in wanted.names:
            found.append(name)
        else:
            found += _left_out(field.dataType, wanted[field.name].dataType, f"{name}.")
    return found
