"""Encoding a record area in plain Python.

A table of ready varints and one `b"".join`. A small batch is one loop; a larger one is written column by
column, with eight entries a record in one list, so that no Python code runs for a single record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np

from logstore.format import varint
from logstore.format.batches.area import Encoded, check_timestamp
from logstore.format.batches.record import Headers, Record
from logstore.format.errors import FormatError

# Below this many records one loop is faster than setting up the columns.
COLUMN_WISE_FROM = 24

_TABLE = varint.TABLE
_TABLE_SIZE = varint.TABLE_SIZE
# The same table for NumPy, by length: -1 finds the last entry, which is null.
_LENGTHS = np.array([*varint.TABLE, varint.NULL], dtype=object)
# How many bytes a length and what it measures take together.
_SPANS = np.array([length + len(_TABLE[length]) for length in range(_TABLE_SIZE)] + [1], dtype=np.int64)
_LENGTH_SIZES = np.array([len(number) for number in _TABLE], dtype=np.int64)
# Attributes and timestamp delta, by delta.
_MOMENTS = np.array([b"\0" + number for number in _TABLE], dtype=object)
_PLAIN = {bytes}
_NULLABLE = {bytes, type(None)}


def encode(records: Sequence[Record], now_ms: int) -> Encoded:
    """`records` (each as `check_record` returns it) as one area; `now_ms` where a timestamp is missing."""
    try:
        if len(records) < COLUMN_WISE_FROM:
            return _encode_one_by_one(records, now_ms)
        return _encode_by_columns(records, now_ms)
    except FormatError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise FormatError(f"not records that check_record has passed: {error}") from error


def _encode_one_by_one(records: Sequence[Record], now_ms: int) -> Encoded:
    base = records[0][3]
    if base is None:
        base = now_ms
    low = high = base
    parts: list[bytes] = []
    for index, (value, key, headers, stamp, _) in enumerate(records):
        if stamp is None:
            stamp = now_ms
        if stamp == base:
            head = b"\0\0" + _TABLE[index]
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
    return Encoded(b"".join(parts), base, check_timestamp(low), check_timestamp(high))


def _encode_by_columns(records: Sequence[Record], now_ms: int) -> Encoded:
    """One list with eight entries a record, filled column by column."""
    count = len(records)
    values, keys, headers, stamps, _ = zip(*records, strict=True)
    parts: list[Any] = [b"", b"\0\0", b"", b"", b"", b"", b"", b"\0"] * count
    base, low, high, sizes = _fill_timestamps(parts, stamps, now_ms)
    if count <= _TABLE_SIZE:
        parts[2::8] = _TABLE[:count]
        sizes = sizes + _LENGTH_SIZES[:count]
    else:
        numbers = list(map(length, range(count)))
        parts[2::8] = numbers
        sizes = sizes + np.fromiter(map(len, numbers), np.int64, count)
    sizes = sizes + _fill(parts, 3, keys) + _fill(parts, 5, values)
    if any(headers):
        tails = [encode_headers(of_record) if of_record else b"\0" for of_record in headers]
        parts[7::8] = tails
        sizes += np.fromiter(map(len, tails), np.int64, count)
    else:
        sizes += 1
    parts[0::8] = _LENGTHS[sizes].tolist() if sizes.max() < _TABLE_SIZE else map(length, sizes.tolist())
    return Encoded(b"".join(parts), base, low, high)


def _fill_timestamps(
    parts: list[Any], stamps: Sequence[int | None], now_ms: int
) -> tuple[int, int, int, Any]:
    """Put attributes and timestamp deltas in their places; return base, lowest, highest and the sizes."""
    distinct = set(stamps)
    if len(distinct) == 1:
        base = check_timestamp(now_ms if stamps[0] is None else stamps[0])
        return base, base, base, 2
    if None in distinct:
        distinct.remove(None)
        distinct.add(now_ms)
        stamps = [now_ms if stamp is None else stamp for stamp in stamps]
    if set(map(type, distinct)) != {int}:
        raise TypeError("a timestamp must be an int or None")
    low, high = (check_timestamp(end(cast(set[int], distinct))) for end in (min, max))
    base = cast(int, stamps[0])
    deltas = np.fromiter(cast(Sequence[int], stamps), np.int64, len(stamps)) - base
    if base == low and high - base < _TABLE_SIZE:
        parts[1::8] = _MOMENTS[deltas].tolist()
        return base, low, high, _LENGTH_SIZES[deltas] + 1
    moments = [b"\0" + varint.encode(delta) for delta in deltas.tolist()]
    parts[1::8] = moments
    return base, low, high, np.fromiter(map(len, moments), np.int64, len(moments))


def _fill(parts: list[Any], place: int, column: Sequence[bytes | None]) -> Any:
    """Put a column and its lengths in their places; return how many bytes each takes, with its length."""
    kinds = set(map(type, column))
    if not kinds <= _NULLABLE:
        _refuse_types(column)
    if kinds == _PLAIN:
        lengths = np.fromiter(map(len, cast(Sequence[bytes], column)), np.int64, len(column))
        parts[place + 1 :: 8] = column
    else:
        lengths = np.fromiter((-1 if item is None else len(item) for item in column), np.int64, len(column))
        parts[place + 1 :: 8] = [item or b"" for item in column]
    if lengths.max() < _TABLE_SIZE:
        parts[place::8] = _LENGTHS[lengths].tolist()
        return _SPANS[lengths]
    numbers = list(map(length, lengths.tolist()))
    parts[place::8] = numbers
    return np.fromiter(map(len, numbers), np.int64, len(numbers)) + np.maximum(lengths, 0)


def length(size: int) -> bytes:
    """A length as a varint; -1 is null."""
    return _TABLE[size] if 0 <= size < _TABLE_SIZE else varint.encode(size)


def encode_headers(headers: Headers) -> bytes:
    """The headers of one record, with their count in front."""
    if type(headers) is not tuple:
        raise TypeError("headers must be a tuple")
    parts = [length(len(headers))]
    for pair in headers:
        if type(pair) is not tuple:
            raise TypeError("a header must be a tuple")
        key, value = pair
        name = key.encode()
        parts += (length(len(name)), name)
        if value is None:
            parts.append(varint.NULL)
        elif type(value) is bytes:
            parts += (length(len(value)), value)
        else:
            raise TypeError(f"a header value is a {type(value).__name__}")
    return b"".join(parts)


def _refuse_types(column: Sequence[object]) -> NoReturn:
    index = next(i for i, item in enumerate(column) if type(item) not in _NULLABLE)
    _refuse_type(index, column[index], b"")


def _refuse_type(index: int, key: object, value: object) -> NoReturn:
    wrong = key if type(key) is not bytes else value
    raise FormatError(f"record {index} holds a {type(wrong).__name__} where bytes or None must be")
