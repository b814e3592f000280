"""Records in and out: checking what a caller hands in, decoding what a batch holds.

`check_record` is the only door: behind it a record is a `Record` with `bytes`, a tuple of headers and a
timestamp in range, and nothing checks again. `decode_records` trusts no length in the bytes, but it does not
look at the CRC: call `check_crc` first, once for each batch.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from logstore.format import batch, body, fields
from logstore.format.batch import BatchInfo, Buffer
from logstore.format.errors import FormatError
from logstore.format.record import Headers, Record

# Length, timestamp delta, offset delta, key length, value length and header count at their widest, and the
# attributes.
_OVERHEAD = 5 + 8 + 5 + 5 + 5 + 5 + 1
_HEADER_OVERHEAD = 5 + 5
_new_tuple = tuple.__new__


def check_record(record: Record) -> Record:
    """`record` with every field of the right type, or a `FormatError` that says which one is not.

    Bytes-like keys and values become `bytes`, any iterable of header pairs a tuple; the offset is dropped,
    because the log gives it.
    """
    if not isinstance(record, Record):
        raise FormatError(f"a record must be a Record, not {type(record).__name__}")
    value, key, headers, stamp, offset = record
    if (
        (type(value) is bytes or value is None)
        and (type(key) is bytes or key is None)
        and headers == ()
        and stamp is None
        and offset is None
    ):
        return record
    return Record(
        _to_bytes(value, "value"),
        _to_bytes(key, "key"),
        _check_headers(headers) if headers != () else (),
        stamp if stamp is None else _check_stamp(stamp),
    )


def record_size(record: Record) -> int:
    """The most that a checked record takes in a batch, uncompressed."""
    value, key, headers, _, _ = record
    size = _OVERHEAD + len(value or b"") + len(key or b"")
    if headers:
        for name, content in headers:
            size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


def decode_records(
    raw: Buffer, info: BatchInfo, *, start_offset: int = 0, stop_offset: int | None = None
) -> list[Record]:
    """The records of one batch with offsets from `start_offset` up to, not including, `stop_offset`."""
    area = batch.record_area(raw, info)
    base_ms, append_ms = batch.timestamps(raw, info)
    first = max(0, start_offset - info.base_offset)
    stop = info.count if stop_offset is None else min(info.count, stop_offset - info.base_offset)
    if info.count < body.COLUMN_WISE_FROM:
        return body.walk(
            area,
            info.count,
            base_offset=info.base_offset,
            base_timestamp_ms=base_ms,
            append_timestamp_ms=append_ms,
            first=first,
            stop=stop,
        )
    _, found = fields.locate([area], [info.count])
    stamps = fields.timestamps(found, base_ms, append_ms)
    if first >= stop:
        return []
    taken = slice(first, stop)
    return list(
        map(
            _new_tuple,
            repeat(Record),
            zip(
                _slices(area, found.value_positions[taken], found.value_lengths[taken]),
                _slices(area, found.key_positions[taken], found.key_lengths[taken]),
                _headers(area, found, first, stop),
                stamps[taken].tolist(),
                range(info.base_offset + first, info.base_offset + stop),
                strict=True,
            ),
        )
    )


def _slices(area: bytes, positions: Any, lengths: Any) -> list[bytes | None]:
    ends = (positions + lengths).tolist()
    starts = positions.tolist()
    if lengths.min() >= 0:
        return [area[start:end] for start, end in zip(starts, ends, strict=True)]
    return [area[start:end] if end >= start else None for start, end in zip(starts, ends, strict=True)]


def _headers(area: bytes, found: fields.Fields, first: int, stop: int) -> Any:
    """The headers of each record: those of the few, or of all, that have any."""
    if not found.with_headers.size:
        return repeat((), stop - first)
    headers: list[Headers] = [()] * (stop - first)
    for index, of_record in fields.headers(area, found):
        if first <= index < stop:
            headers[index - first] = of_record
    return headers


def _to_bytes(item: object, what: str) -> bytes | None:
    if item is None or type(item) is bytes:
        return item
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise FormatError(f"a record's {what} must be bytes or None, not {type(item).__name__}")


def _check_headers(headers: object) -> Headers:
    checked = []
    try:
        for pair in headers:  # type: ignore[attr-defined]
            name, content = pair
            if not isinstance(name, str):
                raise FormatError(f"a header key must be a str, not {type(name).__name__}")
            name.encode()
            checked.append((name, _to_bytes(content, "header value")))
    except UnicodeEncodeError as error:
        raise FormatError(f"a header key has no UTF-8 form: {error.reason}") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError("headers must be (str, bytes or None) pairs") from error
    return tuple(checked)


def _check_stamp(stamp: object) -> int:
    if type(stamp) is not int:
        raise FormatError(f"timestamp_ms must be an int or None, not {type(stamp).__name__}")
    if not 0 <= stamp <= body.MAX_TIMESTAMP_MS:
        raise FormatError(f"timestamp_ms must be between 0 and {body.MAX_TIMESTAMP_MS}, not {stamp}")
    return stamp
