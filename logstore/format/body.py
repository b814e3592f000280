"""The record area of a batch: what stands after its header once it is decompressed.

Each record is: length, attributes (one byte, unused), timestamp delta, offset delta, key, value, headers;
every number a varint, a length of -1 for null. `encode` writes an area, `walk` reads one record after the
other. Large areas are written column by column and read by `fields`, which says the same with NumPy.

What `walk` accepts is what Kafka's producers must send: offset deltas 0, 1, 2 … without a hole, every length
inside its record, every record ending where its length says, the last one where the area ends. All else is a
`FormatError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from logstore.format import varint
from logstore.format.errors import FormatError
from logstore.format.record import Headers, Record

MAX_TIMESTAMP_MS = (1 << 63) // 1000 - 1  # an Arrow or Spark timestamp counts microseconds in 64 bits
MIN_TIMESTAMP_MS = -1  # Kafka's "no timestamp"
MIN_RECORD_SIZE = 7  # seven fields, one byte each
# Below this many records one loop is faster than setting up the columns.
COLUMN_WISE_FROM = 24

_TABLE = varint.TABLE
_TABLE_SIZE = varint.TABLE_SIZE
# The same table for NumPy, by length: -1 finds the last entry, which is null.
_LENGTHS = np.array([*varint.TABLE, varint.NULL], dtype=object)
# How many bytes a length and what it measures take together.
_SPANS = np.array([length + len(_TABLE[length]) for length in range(_TABLE_SIZE)] + [1], dtype=np.int64)
# Attributes, a timestamp delta of zero and the offset delta: how most records begin.
_HEADS: list[bytes] = [b"\0\0" + number for number in varint.TABLE]
_HEAD_SIZES = np.array([len(head) for head in _HEADS], dtype=np.int64)
_PLAIN = {bytes}
_NULLABLE = {bytes, type(None)}


class Area(NamedTuple):
    """An encoded record area and what the batch header says about it."""

    data: bytes
    base_timestamp_ms: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def encode(records: Sequence[Record], now_ms: int) -> Area:
    """`records` (each as `check_record` returns it) as one area; `now_ms` where a timestamp is missing."""
    try:
        if len(records) < COLUMN_WISE_FROM:
            return _encode_one_by_one(records, now_ms)
        return _encode_by_columns(records, now_ms)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"not records that passed check_record: {error}") from error


def _encode_one_by_one(records: Sequence[Record], now_ms: int) -> Area:
    base = records[0][3]
    if base is None:
        base = now_ms
    low = high = base
    parts: list[bytes] = []
    for index, (value, key, headers, stamp, _) in enumerate(records):
        if stamp is None:
            stamp = now_ms
        if stamp == base:
            head = _HEADS[index]
        else:
            low, high = min(low, stamp), max(high, stamp)
            head = b"\0" + varint.encode(stamp - base) + _TABLE[index]
        tail = encode_headers(headers) if headers else b"\0"
        size = len(head) + len(tail)
        if key is None:
            key, key_size = b"", varint.NULL
        else:
            key_size = length(len(key))
        if value is None:
            value, value_size = b"", varint.NULL
        else:
            value_size = length(len(value))
        if type(key) is not bytes or type(value) is not bytes:
            _refuse_type(index, key, value)
        size += len(key_size) + len(key) + len(value_size) + len(value)
        parts += (length(size), head, key_size, key, value_size, value, tail)
    return Area(b"".join(parts), base, check_timestamp(low), check_timestamp(high))


def _encode_by_columns(records: Sequence[Record], now_ms: int) -> Area:
    """One list with seven entries a record, filled column by column: no Python code runs per record."""
    count = len(records)
    values, keys, headers, stamps, _ = zip(*records, strict=True)
    base, low, high, heads, sizes = _heads(stamps, now_ms)
    parts: list[Any] = [b"\0"] * (7 * count)
    parts[1::7] = heads
    for column, place in ((keys, 2), (values, 4)):
        lengths = _fill(parts, place, column)
        sizes = sizes + (_SPANS[lengths] if isinstance(lengths, np.ndarray) else _spans(lengths))
    if any(headers):
        tails = [encode_headers(of_record) if of_record else b"\0" for of_record in headers]
        parts[6::7] = tails
        sizes = sizes + np.fromiter(map(len, tails), np.int64, count)
    else:
        sizes = sizes + 1
    if sizes.max() < _TABLE_SIZE:
        parts[0::7] = _LENGTHS[sizes].tolist()
    else:
        parts[0::7] = map(length, sizes.tolist())
    return Area(b"".join(parts), base, check_timestamp(low), check_timestamp(high))


def _heads(stamps: Sequence[int | None], now_ms: int) -> tuple[int, int, int, list[bytes], Any]:
    """Base, lowest and highest timestamp; each record's bytes before the key; how many those are."""
    count = len(stamps)
    distinct = set(stamps)
    if len(distinct) == 1 and count <= _TABLE_SIZE:
        (stamp,) = distinct
        base = now_ms if stamp is None else stamp
        return base, base, base, _HEADS[:count], _HEAD_SIZES[:count]
    if None in distinct:
        stamps = [now_ms if stamp is None else stamp for stamp in stamps]
    known = cast(Sequence[int], stamps)
    first = {stamp: b"\0" + varint.encode(stamp - known[0]) for stamp in set(known)}
    heads = [first[stamp] + length(index) for index, stamp in enumerate(known)]
    return known[0], min(first), max(first), heads, np.fromiter(map(len, heads), np.int64, count)


def _fill(parts: list[Any], place: int, column: Sequence[bytes | None]) -> Any:
    """Put a column and its lengths in their places; return the lengths, -1 for null."""
    count = len(column)
    kinds = set(map(type, column))
    if not kinds <= _NULLABLE:
        _refuse_types(column)
    if kinds == _PLAIN:
        lengths = np.fromiter(map(len, column), np.int64, count)  # type: ignore[arg-type]
        parts[place + 1 :: 7] = column
    else:
        lengths = np.fromiter((-1 if item is None else len(item) for item in column), np.int64, count)
        parts[place + 1 :: 7] = [item or b"" for item in column]
    if lengths.max() < _TABLE_SIZE:
        parts[place::7] = _LENGTHS[lengths].tolist()
        return lengths
    sizes: list[int] = lengths.tolist()
    parts[place::7] = map(length, sizes)
    return sizes


def _spans(lengths: list[int]) -> Any:
    return np.fromiter((max(size, 0) + len(length(size)) for size in lengths), np.int64, len(lengths))


def length(size: int) -> bytes:
    """A length as a varint; -1 is null."""
    return _TABLE[size] if 0 <= size < _TABLE_SIZE else varint.encode(size)


def encode_headers(headers: Headers) -> bytes:
    """The headers of one record, with their count in front."""
    parts = [length(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (length(len(name)), name)
        if value is None:
            parts.append(varint.NULL)
        elif type(value) is bytes:
            parts += (length(len(value)), value)
        else:
            raise TypeError(f"a header value is a {type(value).__name__}")
    return b"".join(parts)


def walk(
    area: bytes,
    count: int,
    *,
    base_offset: int = 0,
    base_timestamp_ms: int = 0,
    append_timestamp_ms: int | None = None,
    first: int = 0,
    stop: int | None = None,
) -> list[Record]:
    """Check every record of the area; return those with index `first` to `stop`.

    `append_timestamp_ms` is the one timestamp of a batch that was stamped by a broker (LogAppendTime).
    """
    check_count(area, count)
    records: list[Record] = []
    stop = count if stop is None else stop
    position = 0
    stamp = append_timestamp_ms
    for index in range(count):
        size, position = varint.read(area, position)
        end = position + size
        if not position < end <= len(area):
            raise FormatError(
                f"record {index} claims {size} bytes; {len(area) - position} are left", position
            )
        delta, position = varint.read_long(area, position + 1)
        if append_timestamp_ms is None:
            stamp = base_timestamp_ms + delta
            check_timestamp(stamp)
        number, position = varint.read(area, position)
        if number != index:
            raise FormatError(f"record {index} has offset delta {number}", position)
        key, position = _read_bytes(area, position, end)
        value, position = _read_bytes(area, position, end)
        headers, position = read_headers(area, position, end)
        if position != end:
            raise FormatError(f"record {index} does not end where its length says", position)
        if first <= index < stop:
            records.append(Record(value, key, headers, stamp, base_offset + index))
    if position != len(area):
        raise FormatError(f"{len(area) - position} bytes after the last record", position)
    return records


def check_count(area: bytes, count: int) -> None:
    """A count that the area cannot hold is refused before anything is allocated for it."""
    if count * MIN_RECORD_SIZE > len(area):
        raise FormatError(f"{len(area)} bytes cannot hold {count} records")


def read_headers(area: bytes, position: int, end: int) -> tuple[Headers, int]:
    """The headers that start at `position`, and the position after them."""
    if position < end and area[position] == 0:
        return (), position + 1
    count, position = varint.read(area, position)
    if not 0 <= count * 2 <= end - position:
        raise FormatError(f"{end - position} bytes cannot hold {count} headers", position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in repeat(None, count):
        name, after = _read_bytes(area, position, end)
        if name is None:
            raise FormatError("a header without a key", position)
        try:
            key = name.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"a header key is not UTF-8: {error.reason}", position) from None
        value, position = _read_bytes(area, after, end)
        headers.append((key, value))
    return tuple(headers), position


def _read_bytes(area: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = varint.read(area, position)
    if size < 0:
        if size != -1:
            raise FormatError(f"a length of {size}", position)
        return None, position
    after = position + size
    if after > end:
        raise FormatError(f"a length of {size} reaches past its record", position)
    return area[position:after], after


def check_timestamp(stamp: int) -> int:
    if type(stamp) is not int or not MIN_TIMESTAMP_MS <= stamp <= MAX_TIMESTAMP_MS:
        raise FormatError(f"a timestamp of {stamp} ms is outside of {MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}")
    return stamp


def _refuse_types(column: Sequence[object]) -> NoReturn:
    index = next(i for i, item in enumerate(column) if type(item) not in _NULLABLE)
    _refuse_type(index, column[index], b"")


def _refuse_type(index: int, key: object, value: object) -> NoReturn:
    wrong = key if type(key) is not bytes else value
    raise FormatError(f"record {index} holds a {type(wrong).__name__} where bytes or None must be")
