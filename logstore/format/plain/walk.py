"""Reading a record area in plain Python, one record after the other."""

from __future__ import annotations

from itertools import repeat

from logstore.format import varint
from logstore.format.batches.area import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    Area,
    check_count,
    check_timestamp,
)
from logstore.format.batches.record import Headers, Record
from logstore.format.errors import FormatError

_new_tuple = tuple.__new__


def walk(source: Area, base_offset: int, first: int, stop: int) -> list[Record]:
    """Check every record of the area; return those with index `first` up to, not including, `stop`."""
    data, count, base_timestamp_ms, append_timestamp_ms = source
    area = bytes(data)
    check_count(area, count)
    records: list[Record] = []
    add = records.append
    size = len(area)
    position = 0
    stamp = None if append_timestamp_ms is None else check_timestamp(append_timestamp_ms)
    try:
        # Most varints are one byte long, lengths often two. A call for each of them would cost more than all
        # the rest.
        for index in range(count):
            number = area[position]
            if number < 0x80:
                position += 1
            elif (more := area[position + 1]) < 0x80:
                number += (more << 7) - 0x80
                position += 2
            else:
                number, position = varint.read_unsigned(area, position)
            end = position + (number >> 1)
            if number & 1 or end > size:
                raise FormatError(
                    f"the length of record {index} reaches past the {size} bytes there are", position
                )

            number = area[position + 1]
            if number < 0x80:
                position += 2
            else:
                number, position = varint.read_unsigned(area, position + 1, varint.LONG_BYTES)
            if append_timestamp_ms is None:
                stamp = base_timestamp_ms + ((number >> 1) ^ -(number & 1))
                if not MIN_TIMESTAMP_MS <= stamp <= MAX_TIMESTAMP_MS:
                    check_timestamp(stamp)

            number = area[position]
            if number < 0x80:
                position += 1
            else:
                number, position = varint.read_unsigned(area, position)
            if number != index << 1:
                raise FormatError(f"record {index} has another offset delta", position)

            number = area[position]
            if number < 0x80:
                position += 1
            else:
                number, position = varint.read_unsigned(area, position)
            if number & 1:
                _check_null(number, position)
                key = None
            else:
                start = position
                position += number >> 1
                key = area[start:position]

            number = area[position]
            if number < 0x80:
                position += 1
            elif (more := area[position + 1]) < 0x80:
                number += (more << 7) - 0x80
                position += 2
            else:
                number, position = varint.read_unsigned(area, position)
            if number & 1:
                _check_null(number, position)
                value = None
            else:
                start = position
                position += number >> 1
                value = area[start:position]

            if area[position]:
                headers, position = read_headers(area, position, end)
            else:
                headers = ()
                position += 1
            # No field can end before it begins, so one check at the end covers every length inside of the
            # record.
            if position != end:
                raise FormatError(f"record {index} does not end where its length says", position)
            if first <= index < stop:
                add(_new_tuple(Record, (value, key, headers, stamp, base_offset + index)))
    except IndexError:
        raise FormatError(f"the records reach past their {size} bytes", position) from None
    if position != size:
        raise FormatError(f"{size - position} bytes after the last record", position)
    return records


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


def _check_null(number: int, position: int) -> None:
    if number != 1:
        raise FormatError(f"a length of {(number >> 1) ^ -1}", position)


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
