"""Catalog helpers: what is in a log store, as a DataFrame, and a scan that saves Spark one conversion of each row.

Both look at the store from the client, so the client needs to reach it; the scan's tasks then read it as
`spark.read` would. They use nothing but the DataFrame API, so they work over Spark Connect too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logstore.arrow.plan.bounds import EVERYTHING
from logstore.arrow.plan.log_partitions import LogPartition, load, open_store
from logstore.arrow.plan.planner import plan_batch, plan_tasks
from logstore.arrow.plan.request import Subscription
from logstore.layout.catalog import Catalog
from logstore.layout.paths import PartitionPaths
from logstore.objects.closing import closing_store
from logstore.spark.options.read_options import read_options
from logstore.spark.read.views import rows_of_task, scan_of, schema_of
from logstore.spark.read.where import bounds_of, columns_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "topic string, partition int, low_offset bigint, end_offset bigint, segments bigint, bytes bigint, "
    "min_timestamp timestamp, max_timestamp timestamp, epoch bigint, writer string"
)
# The last day of year 9999, in UTC. East of Greenwich the year 10000 begins on it, and Python, which collects a timestamp
# as local time, has no datetime for that: one such row would make the whole frame uncollectable.
_LAST_DAY_MS = 253_402_214_400_000


def describe(spark: SparkSession, url: str) -> DataFrame:
    """One row for each partition of each topic: offsets, segments, sizes, timestamps. Reads manifests only."""
    with closing_store(open_store(url)) as store:
        topics = Catalog(store).all()
        found = load(
            store,
            [
                PartitionPaths(topic.name, topic.incarnation, number)
                for topic in topics
                for number in range(topic.partitions)
            ],
            missing_ok=True,
        )
    return spark.createDataFrame([_row(partition) for partition in found], _COLUMNS)


def _row(partition: LogPartition) -> tuple[Any, ...]:
    table, tail = partition.view.segments.table, partition.view.tail
    return (
        partition.topic,
        partition.number,
        partition.low,
        partition.end,
        len(table),
        sum(table.size),
        _timestamp(min(table.min_timestamp_ms, default=None)),
        _timestamp(max(table.max_timestamp_ms, default=None)),
        tail.epoch,
        tail.mode.name.lower(),
    )


def _timestamp(milliseconds: int | None) -> Any:
    from datetime import UTC, datetime, timedelta

    if milliseconds is None or milliseconds >= _LAST_DAY_MS:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def scan(spark: SparkSession, url: str, *, where: str | None = None, **options: object) -> DataFrame:
    """`spark.read.format("logstore")` with these options, planned now and read through `mapInArrow`.

    Rows are the same. Spark converts each Arrow row once instead of twice, so a scan of whole rows is faster; the plan is
    fixed by this call, so a later action sees no later record.

    `where` is a condition in SQL, as `DataFrame.where` takes it. What it says of topic, partition, offset and timestamp
    prunes partitions, segments and batches before they are fetched: comparisons with constants, joined by AND.
    """
    checked = read_options(
        {"path": url} | {name: _text(value) for name, value in options.items()}, streaming=False
    )
    names = schema_of(checked).names
    bounds = EVERYTHING
    if where is not None:
        bounds = bounds_of(where, spark.conf.get("spark.sql.session.timeZone") or "UTC")
        if checked.view == "latest":
            bounds = (
                bounds.of_partitions()
            )  # an older value must not come back because its successor is left out
        if checked.view != "upsert":
            needed = columns_in(where) - set(names)
            checked = replace(checked, columns=(*checked.columns, *sorted(needed)))
    schema = schema_of(checked)
    how = scan_of(checked, schema)
    with closing_store(open_store(url)) as store:
        tasks = plan_tasks(checked, plan_batch(store, checked, bounds))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from rows_of_task(how, tasks[number])

    # Spark shows the function's name in the plan and in its UI: there it says what is read.
    read.__name__ = f"logstore {_named(checked.subscription)} in {checked.path}"
    rows = spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(read, schema)
    if where is None:
        return rows
    found = rows.where(where)
    return found if found.columns == names else found.select(*names)


def _named(wanted: Subscription) -> str:
    topics = wanted.topics or [topic for topic, _ in wanted.assigned]
    return ",".join(topics) if topics else f"/{wanted.pattern}/"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
