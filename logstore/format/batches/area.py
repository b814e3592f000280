"""The record area of a batch: what follows its header once it is decompressed.

Each record is: length, attributes (one byte, unused), timestamp delta, offset delta, key, value, headers;
every number a varint, a length of -1 for null.

What we accept is what Kafka's producers must send: offset deltas 0, 1, 2 … without a hole, every length
inside its record, every record ending where its length says, the last one where the area ends, timestamps
that a reader can represent, header keys in UTF-8. All else is a `FormatError`. `kernels` says who reads and
writes areas; here are the limits and the shapes that all of them share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from logstore.format.errors import FormatError

MAX_TIMESTAMP_MS = (1 << 63) // 1000 - 1  # an Arrow or Spark timestamp counts microseconds in 64 bits
MIN_TIMESTAMP_MS = -1  # Kafka's "no timestamp"
MIN_RECORD_SIZE = 7  # seven fields, one byte each


class Encoded(NamedTuple):
    """An area as bytes, and what the batch header says about it."""

    data: bytes
    base_timestamp_ms: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class Area(NamedTuple):
    """An area to read, and what the batch header said about it.

    `data` is bytes, or a read-only view into a larger buffer. `append_timestamp_ms` is the one timestamp of all
    records if a broker stamped them (LogAppendTime).
    """

    data: bytes | memoryview
    records: int
    base_timestamp_ms: int
    append_timestamp_ms: int | None


# The buffers of Arrow arrays, as the kernels hand them out. They are made for every batch, so they are plain tuples.

# Variable-length bytes: validity (None if there are no nulls), offsets, data (which may be longer than they say).
Binary = tuple[Any, Any, Any]
# Lists of (key, value): validity, offsets, keys, values, how many pairs. A record without headers is null.
HeaderLists = tuple[Any, Any, Binary, Binary, int]
# One entry a record: offset deltas (8 bytes), flags (1 byte: 1 has a key, 2 is a tombstone), the two halves of its key's
# hash (8 bytes each); then the bytes of the longest key. Where a key is longer than the factors reach, its hash is 0.
Keys = tuple[Any, Any, Any, Any, int]
# Timestamps in microseconds, keys, values, headers of some records. What was not asked for is None.
Gathered = tuple[Any, Binary | None, Binary | None, HeaderLists | None]


def check_timestamp(stamp: int) -> int:
    """`stamp`, if it is one that every reader can represent."""
    if type(stamp) is not int or not MIN_TIMESTAMP_MS <= stamp <= MAX_TIMESTAMP_MS:
        raise FormatError(f"a timestamp of {stamp} ms is outside of {MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}")
    return stamp


def check_count(data: bytes | memoryview, records: int) -> None:
    """A count that the area cannot hold is refused before anything is allocated for it."""
    if records * MIN_RECORD_SIZE > len(data):
        raise FormatError(f"{len(data)} bytes cannot hold {records} records")
