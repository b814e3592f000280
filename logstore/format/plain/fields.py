"""Where the fields of many records lie: the same reading of record areas as `walk`, with NumPy.

One short loop finds where the records begin (each says only how long it is, so that is one after the other);
every other field is gathered for all records at once. The areas are joined with zeros behind them, so that a
varint which runs off the end reads zeros and is found out by the checks, never by a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from logstore.format import varint
from logstore.format.batches.area import Area, check_count, check_timestamp
from logstore.format.batches.record import Headers, Record
from logstore.format.errors import FormatError
from logstore.format.plain.walk import read_headers

# The fixed fields of a record take at most 1 + 8 + 5 + 5 bytes past the last point where a bound is checked.
PADDING = 32


class Fields(NamedTuple):
    """One entry a record, in order. Positions are in the joined areas; a length of -1 is null."""

    timestamp_deltas: Any
    key_positions: Any
    key_lengths: Any
    value_positions: Any
    value_lengths: Any
    header_positions: Any  # of the header count
    ends: Any
    with_headers: Any  # the indices of the records that have any
    numbers: Any  # the offset deltas
    starts: Any  # of the records, their lengths included


def locate(areas: Sequence[Area], spans: Sequence[int] | None = None) -> tuple[bytes, Any, Fields]:
    """Join the areas; return the joined bytes, the same as an array, and the fields in them.

    Header contents are not looked at: `headers` does that. `spans`: how many offsets each area's batch covers, where
    compaction by key may have taken records away; else the deltas must be 0, 1, 2 …
    """
    joined = b"".join([*(area.data for area in areas), bytes(PADDING)])
    positions: list[int] = []
    start = 0
    for area in areas:
        check_count(area.data, area.records)
        positions += _record_positions(joined, start, start + len(area.data), area.records)
        start += len(area.data)
    positions.append(start)
    data = np.frombuffer(joined, np.uint8)
    bounds = np.fromiter(positions, np.int64, len(positions))
    return joined, data, _gather(data, bounds, [area.records for area in areas], spans)


def _record_positions(data: bytes, start: int, end: int, count: int) -> list[int]:
    """The position of each record's length. The last record must end at `end`."""
    steps, position = _steps(), start
    if not count:
        if start != end:
            raise FormatError(f"{end - start} bytes where no record is")
        return []
    try:
        # No branch, and no name looked up but for the data: this loop is half of what decoding costs.
        ends = [position := position + steps[data[position]][data[position + 1]] for _ in range(count)]
    except TypeError:  # a length of more than two bytes, or below 0
        ends = _record_ends(data, start, count)
    except IndexError:
        raise FormatError(f"the records reach past their {end} bytes") from None
    if ends[-1] != end:
        raise FormatError(f"{count} records end at byte {ends[-1]}, the data at {end}")
    return [start, *ends[:-1]]


@cache
def _steps() -> list[list[Any]]:
    """By the first two bytes of a record's length: how far away the next record is, if two bytes tell."""
    numbers = list(range((1 << 13) + 2))  # each number once, however many places it has
    unknown = [None] * 256
    return [
        unknown
        if first & 1
        else [numbers[(first >> 1) + 1]] * 256
        if first < 0x80
        else [numbers[(first & 0x7F | more << 7) // 2 + 2] for more in range(0x80)] + unknown[0x80:]
        for first in range(256)
    ]


def _record_ends(data: bytes, position: int, count: int) -> list[int]:
    """Where each record ends, whatever its length takes."""
    ends = []
    for _ in range(count):
        length, position = varint.read(data, position)
        if length < 0:
            raise FormatError(f"a record length of {length}", position)
        position += length
        ends.append(position)
    return ends


def _gather(data: Any, bounds: Any, counts: Sequence[int], spans: Sequence[int] | None) -> Fields:
    positions, ends = bounds[:-1], bounds[1:]
    lengths, position = _varints(data, positions, varint.INT_BYTES)
    if (position + lengths != ends).any():
        raise FormatError("a record with a negative length")
    deltas, position = _varints(data, position + 1, varint.LONG_BYTES)
    numbers, position = _varints(data, position, varint.INT_BYTES)
    if spans is None:
        expected = [np.arange(count) for count in counts]
        if (numbers != (expected[0] if len(expected) == 1 else np.concatenate(expected))).any():
            raise FormatError("offset deltas are not 0, 1, 2 …")
    else:
        _check_growing(numbers, counts, spans)
    key_lengths, key_positions = _varints(data, position, varint.INT_BYTES)
    position = _after(key_positions, key_lengths, ends)
    value_lengths, value_positions = _varints(data, position, varint.INT_BYTES)
    header_positions = _after(value_positions, value_lengths, ends)
    header_counts, position = _varints(data, header_positions, varint.INT_BYTES)
    with_headers = np.flatnonzero(header_counts)
    if with_headers.size and (
        header_counts.min() < 0 or (header_counts * 2 > ends - position)[with_headers].any()
    ):
        raise FormatError("a record cannot hold the headers that it counts")
    if ((position != ends) & (header_counts == 0)).any():
        raise FormatError("a record does not end where its length says")
    return Fields(
        deltas,
        key_positions,
        key_lengths,
        value_positions,
        value_lengths,
        header_positions,
        ends,
        with_headers,
        numbers,
        positions,
    )


def _after(positions: Any, lengths: Any, ends: Any) -> Any:
    lowest = lengths.min()
    if lowest < -1:
        raise FormatError(f"a length of {lowest}")
    after = positions + (lengths if lowest >= 0 else np.maximum(lengths, 0))
    if (after > ends).any():
        raise FormatError("a length reaches past its record")
    return after


def _check_growing(numbers: Any, counts: Sequence[int], spans: Sequence[int]) -> None:
    """Within each batch the deltas grow, from 0 at the least to the batch's last at the most."""
    of_batch = np.repeat(np.arange(len(counts)), counts)
    same = of_batch[1:] == of_batch[:-1]
    if (
        (numbers < 0).any()
        or (numbers >= np.asarray(spans, np.int64)[of_batch]).any()
        or (same & (numbers[1:] <= numbers[:-1])).any()
    ):
        raise FormatError("offset deltas do not grow, or reach past the batch")


def _varints(data: Any, positions: Any, max_bytes: int) -> tuple[Any, Any]:
    """The varint at each position, and the positions after them.

    One byte or two is what they nearly always have; those are put together in arrays of one and two bytes a number,
    which take a fraction of the time that 64 bits do.
    """
    first = data[positions]
    after = positions + 1
    wide = first > 0x7F
    if not wide.any():
        return _signed(first.view(np.int8)), after
    second = data[after] * wide
    if second.max() > 0x7F:
        return _long_varints(data, positions, max_bytes)
    number = second.astype(np.int16)
    number <<= 7
    number |= first & 0x7F
    after += wide
    return _signed(number), after


def _signed(number: Any) -> Any:
    return ((number >> 1) ^ -(number & 1)).astype(np.int64)


def _long_varints(data: Any, positions: Any, max_bytes: int) -> tuple[Any, Any]:
    """`_varints` of any length."""
    after = positions + 1
    byte = data[positions]
    number = byte.astype(np.int64)
    live = np.flatnonzero(byte > 0x7F)
    shift = 7
    while live.size:
        if shift == 7 * max_bytes:
            raise FormatError(f"a varint is longer than {max_bytes} bytes")
        byte = data[after[live]]
        # The continuation bit of the byte before is still in the number: take it out, and put these seven bits in its
        # place.
        number[live] += (byte.astype(np.int64) - 1) << shift
        after[live] += 1
        live = live[byte > 0x7F]
        shift += 7
    if max_bytes == varint.INT_BYTES and (number >> 32).any():
        raise FormatError("a varint does not fit in 32 bits")
    return (number >> 1) ^ -(number & 1), after


def timestamps(areas: Sequence[Area], found: Fields) -> Any:
    """The timestamp of each record, in milliseconds, checked."""
    if len(areas) == 1:
        base, append = areas[0].base_timestamp_ms, areas[0].append_timestamp_ms
        stamps = found.timestamp_deltas + base if append is None else np.full(len(found.ends), append)
    else:
        counts = [area.records for area in areas]
        # Where a broker gave the timestamp, the deltas count for nothing.
        moving = np.repeat([area.append_timestamp_ms is None for area in areas], counts)
        fixed = [
            area.base_timestamp_ms if area.append_timestamp_ms is None else area.append_timestamp_ms
            for area in areas
        ]
        stamps = np.repeat(np.array(fixed, np.int64), counts) + found.timestamp_deltas * moving
    check_timestamp(int(stamps.min()))
    check_timestamp(int(stamps.max()))
    return stamps


def headers(joined: bytes, found: Fields) -> Iterator[tuple[int, Headers]]:
    """The headers of every record that has any, with its index; they must end where the record ends."""
    chosen = found.with_headers
    starts, ends = found.header_positions[chosen].tolist(), found.ends[chosen].tolist()
    for index, start, end in zip(chosen.tolist(), starts, ends, strict=True):
        of_record, position = read_headers(joined, start, end)
        if position != end:
            raise FormatError(f"record {index} does not end where its length says", position)
        yield index, of_record


def check(area: Area, span: int | None = None) -> tuple[int, int]:
    """Check every record, headers too; return the lowest and the highest timestamp. `span`: of a sparse batch."""
    joined, _, found = locate([area], None if span is None else [span])
    stamps = timestamps([area], found)
    for _ in headers(joined, found):
        pass
    return int(stamps.min()), int(stamps.max())


def records(area: Area, base_offset: int, first: int, stop: int) -> list[Record]:
    """Check every record; return those with index `first` up to, not including, `stop`."""
    data, _, found = locate([area])
    return _built(area, data, found, slice(first, stop), range(base_offset + first, base_offset + stop))


def sparse_records(area: Area, span: int, base_offset: int, first: int, stop: int) -> list[Record]:
    """The same of a batch that compaction has taken records from: those with offset delta `first` up to, not including,
    `stop`."""
    data, _, found = locate([area], [span])
    begin, end = np.searchsorted(found.numbers, (first, stop)).tolist()
    offsets = (found.numbers[begin:end] + base_offset).tolist()
    return _built(area, data, found, slice(begin, end), offsets)


def _built(area: Area, data: bytes, found: Fields, taken: slice, offsets: Sequence[int]) -> list[Record]:
    stamps = timestamps([area], found)
    of_records: list[Headers] | None = None
    if found.with_headers.size:
        of_records = [()] * area.records
        for index, of_record in headers(data, found):
            of_records[index] = of_record
    columns = zip(
        _slices(data, found.value_positions[taken], found.value_lengths[taken]),
        _slices(data, found.key_positions[taken], found.key_lengths[taken]),
        repeat(()) if of_records is None else of_records[taken],
        stamps[taken].tolist(),
        offsets,
        strict=False,  # an endless repeat
    )
    return list(map(tuple.__new__, repeat(Record), columns))


def _slices(data: bytes, positions: Any, lengths: Any) -> list[bytes | None]:
    starts, ends = positions.tolist(), (positions + lengths).tolist()
    # A null has length -1: it ends before it starts.
    return [data[start:end] if start <= end else None for start, end in zip(starts, ends, strict=True)]
