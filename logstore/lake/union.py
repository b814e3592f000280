"""Table and log as one: the rows that the table has, and those that are behind its end in the log, each once.

Both ends come from one look at the table: the version that is read is the one whose offsets say where the log goes on. So
it does not matter who commits, compacts or expires snapshots meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from logstore.arrow.plan.committed import CommittedEnds
from logstore.arrow.plan.entry_runs import in_order, over_entries
from logstore.arrow.plan.log_partitions import load
from logstore.arrow.plan.planner import within
from logstore.arrow.plan.splits import Range, Split, cut
from logstore.arrow.scan.heap import keep_what_batches_free
from logstore.arrow.scan.split_scan import Scan
from logstore.lake.projection import projected
from logstore.lake.registration import named, where_it_is
from logstore.lake.rows import LOG_COLUMNS, Schema, lake_rows, values_of_table
from logstore.lake.table_format import Source, TableFormat, asked
from logstore.lake.target import open_target
from logstore.lake.values.protocol import Values
from logstore.layout.catalog import TopicDescriptor
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore
from logstore.topic import Topic

_WHOLE = 1 << 62


def table(
    topic: Topic, lake: str, columns: Sequence[str] | None = None, *, schema: Schema = None
) -> pa.RecordBatchReader:
    """All records of the table `lake` and the durable ones of the topic that are not in it yet, as a stream of Arrow
    batches with the table's columns. DuckDB and Polars take it as it is.

    `columns` are read if they are named; `payload.size` is the struct `payload` with the field `size` alone. Records that
    are only in the log are parsed as the table's columns say; `schema` decodes them if the table was filled from Avro or
    Protobuf. Raises `OffsetOutOfRange` if retention has taken records that the table does not have, and what
    `Topic.arrow_batches` raises.
    """
    objects, current = where_it_is(topic)
    found = open_table(lake)
    tail = tail_of(objects, current, found, columns, lake, schema=schema)
    return pa.RecordBatchReader.from_batches(tail.schema, _rows(found, tail, objects))


def open_table(lake: str) -> TableFormat:
    """Loaded; `ValueError` if there is none."""
    found = open_target(lake)
    if not asked(named(lake), found.load):
        raise ValueError(f"lake={named(lake)!r}: there is no table. A Materializer makes it")
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """What the log has and the table has not, in the table's columns. Small, and pickles: it travels to Spark's
    executors."""

    schema: pa.Schema
    splits: tuple[Split, ...]
    incarnation: str
    values: Values | None

    def rows(self, objects: ObjectStore, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        """Of some of the splits. Whether a value fits is asked of all its fields, also if few are wanted: a row must not
        look different once it is in the table. Only if none is wanted, values are not read."""
        keep_what_batches_free()
        read = [name for name in LOG_COLUMNS if name in self.schema.names]
        if not {*LOG_COLUMNS, "incarnation"}.issuperset(self.schema.names):
            read.append("value")
        # A scan without columns would have no rows; offsets come without a look at a record.
        scan = Scan("", tuple(read or ["offset"]), fail_on_data_loss=True)
        for batch in scan.rows_of_from(objects, splits):
            found, _ = lake_rows(batch, self.incarnation, self.values)
            yield from found.select(self.schema.names).cast(self.schema).to_batches()


def tail_of(
    objects: ObjectStore,
    topic: TopicDescriptor,
    found: TableFormat,
    columns: Sequence[str] | None,
    lake: str,
    max_bytes: int = _WHOLE,
    schema: Schema = None,
) -> Tail:
    """Of the table as it was loaded."""
    whole = found.schema
    chosen = whole if columns is None else projected(whole, columns)
    if not {*LOG_COLUMNS} <= set(whole.names):
        raise ValueError(f"{named(lake)} has the columns {', '.join(whole.names)}: it is no table of a topic")
    values = None
    if "value" not in whole.names:
        values = values_of_table(whole, found.encoding, schema)
    ranges = []
    paths = [PartitionPaths(topic.name, topic.incarnation, number) for number in range(topic.partitions)]
    found_partitions = load(objects, paths)
    CommittedEnds().look(objects, found_partitions)  # as the table: it holds committed records alone
    for partition in found_partitions:
        known = found.next_offset(Source(topic.name, topic.incarnation, partition.number))
        first = partition.low if known is None else within(partition, known, True)
        ranges.append(Range(partition, first, max(first, partition.end)))
    splits = tuple(cut(ranges, max_bytes=max_bytes))
    return Tail(chosen, splits, topic.incarnation, values)


def _rows(found: TableFormat, tail: Tail, objects: ObjectStore) -> Iterator[pa.RecordBatch]:
    for batch in found.read(tail.schema.names):
        yield batch.select(tail.schema.names).cast(tail.schema)
    yield from tail.rows(objects, in_order(over_entries(tail.splits)))
