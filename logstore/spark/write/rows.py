"""Rows of a DataFrame, as Arrow hands them over, sorted to the partitions that they go to.

    topic       string            the option wins over the column; one of them is needed
    partition   int               where it is not null, it says where; else the key does, as Kafka's default partitioner
                                  would; rows with neither go together, one partition for each Arrow batch, in turn
    key         binary, string    null without a key
    value       binary, string    null is a tombstone
    headers     array<struct<key string, value binary>>
    timestamp   timestamp         null, or no such column: when the task ran

Other columns are left alone, as Spark's Kafka sink does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from logstore.errors import InvalidRecord, KeyRequired, UnknownTopic
from logstore.format.batches.record import Headers, Record
from logstore.spark.write.partitioner import partitions_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

WRITE_COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")
_TYPES = {
    "topic": ("string",),
    "partition": ("int",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
Target = tuple[str, int]


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """`ValueError` if rows of this schema cannot be records."""
    twice = sorted({name for name in schema.names if name in WRITE_COLUMNS and schema.names.count(name) > 1})
    if twice:
        raise ValueError(f"more than one column is named {', '.join(twice)}: which one is meant?")
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is not None and field.dataType.simpleString() not in allowed:
            raise ValueError(
                f"column {field.name} is {field.dataType.simpleString()}; it must be {' or '.join(allowed)}"
            )
    if "value" not in schema.names:
        raise ValueError(f"there is no column value, only {', '.join(schema.names)}")
    if topic is None and "topic" not in schema.names:
        raise ValueError("where to? Set the option topic, or add a column topic")


class Sorted(NamedTuple):
    """Records for one partition, in the order of their rows, and the bytes of keys and values up to each."""

    target: Target
    records: list[Record]
    sizes: np.ndarray[Any, Any]


@dataclass(eq=False)
class RowSorter:
    """Of one task. `_partitions` says how many each topic has. Rows for `_compacted` topics need a key."""

    _partitions: Mapping[str, int]
    _topic: str | None
    _turn: int
    _compacted: frozenset[str] = frozenset()

    def sort(self, batch: pa.RecordBatch) -> Iterator[Sorted]:
        """The rows of the batch, for each partition they go to."""
        if not batch.num_rows:
            return
        names = batch.schema.names
        values = _bytes(batch.column("value"))
        keys = _bytes(batch.column("key")) if "key" in names else None
        stamps = _milliseconds(batch.column("timestamp")) if "timestamp" in names else None
        headers = (
            [_headers(row) for row in batch.column("headers").to_pylist()] if "headers" in names else None
        )
        sizes = _lengths(values) + (_lengths(keys) if keys is not None else 0)
        if headers is not None:
            sizes = sizes + np.array(
                [sum(len(k) * 4 + len(v or b"") + 10 for k, v in row) for row in headers]
            )
        self._turn += 1
        for topic, rows in self._topics(batch):
            if topic in self._compacted and (keys is None or keys.take(_arrow(rows)).null_count):
                raise KeyRequired(
                    f"a row for topic {topic!r} has no key, and the topic is compacted by key: "
                    "nothing of this write is stored"
                )
            places = self._places(topic, batch, rows, keys)
            order = np.argsort(places, kind="stable")
            cuts = np.flatnonzero(np.diff(places[order])) + 1
            for group in np.split(order, cuts):
                chosen = rows[group]
                records = _records(chosen, values, keys, headers, stamps)
                yield Sorted((topic, int(places[group[0]])), records, sizes[chosen])

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        if self._topic is not None:
            yield self._topic, np.arange(batch.num_rows)
            return
        coded = batch.column("topic").dictionary_encode()
        if coded.null_count:
            raise InvalidRecord("a row has a null topic: nothing of this write is stored")
        codes = coded.indices.to_numpy()
        for number, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == number)

    def _places(
        self, topic: str, batch: pa.RecordBatch, rows: np.ndarray[Any, Any], keys: Any
    ) -> np.ndarray[Any, Any]:
        """The partition of each of the rows."""
        count = self._partitions.get(topic)
        if count is None:
            raise UnknownTopic(f"there is no topic {topic!r}: create it before rows are written to it")
        turn = self._turn % count
        if keys is None:
            places = np.full(len(rows), turn)
        else:
            places = partitions_of(keys, count)
            if keys.null_count:
                places[keys.is_null().to_numpy(zero_copy_only=False)] = turn
            places = places[rows]
        if "partition" in batch.schema.names:
            column = batch.column("partition").take(_arrow(rows))
            given = column.fill_null(-1).to_numpy()
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            if valid.any() and not ((given[valid] >= 0) & (given[valid] < count)).all():
                wrong = sorted(set(given[valid].tolist()) - set(range(count)))
                raise InvalidRecord(f"topic {topic!r} has partitions 0 to {count - 1}, not {wrong[:5]}")
            places = np.where(valid, given, places)
        return places


def _records(
    rows: np.ndarray[Any, Any],
    values: Any,
    keys: Any,
    headers: Sequence[Headers] | None,
    stamps: Sequence[int | None] | None,
) -> list[Record]:
    """Plain tuples in the shape of a `Record`: a million of those are built much faster."""
    taken = _arrow(rows)
    picked = rows.tolist()
    nothing: repeat[Any] = repeat(None)
    columns = zip(
        values.take(taken).to_pylist(),
        nothing if keys is None else keys.take(taken).to_pylist(),
        repeat(()) if headers is None else [headers[row] for row in picked],
        nothing if stamps is None else [stamps[row] for row in picked],
        nothing,
        strict=False,
    )
    return cast(list[Record], list(columns))


def _arrow(rows: np.ndarray[Any, Any]) -> Any:
    import pyarrow as pa

    return pa.array(rows)


def _bytes(column: Any) -> Any:
    import pyarrow as pa

    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _lengths(column: Any) -> np.ndarray[Any, Any]:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False), np.int64)


def _milliseconds(column: Any) -> list[int | None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    first = pc.min(micros).as_py()
    if first is not None and first < 0:
        raise InvalidRecord(
            f"a row has a timestamp {-first} µs before 1970, and a record's cannot lie there: "
            "nothing of this write is stored"
        )
    return [None if one is None else one // 1000 for one in micros.to_pylist()]


def _headers(row: list[dict[str, Any] | None] | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs: list[tuple[str, bytes | None]] = []
    for header in row or ():
        if header is None or header["key"] is None:
            raise InvalidRecord("a header is null or has a null key: nothing of this write is stored")
        pairs.append((header["key"], header["value"]))
    return tuple(pairs)
