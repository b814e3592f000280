"""Records in and out: checking what a caller hands in, decoding what a batch holds.

`check_record` is the only door: behind it a record is a `Record` with `bytes`, a tuple of headers and a
timestamp in range, and nothing checks again. `decode_records` trusts no length in the bytes, but it does not
look at the CRC: call `check_crc` first, once for each batch.
"""

from __future__ import annotations

from logstore.format import kernels
from logstore.format.batches import batch
from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import BatchInfo, Buffer
from logstore.format.batches.record import Headers, Record
from logstore.format.errors import FormatError

RECORD_OVERHEAD = 5 + 8 + 5 + 5 + 5 + 5 + 1
"""Length, timestamp delta, offset delta, key length, value length and header count at their widest, and the attributes."""
HEADER_OVERHEAD = 5 + 5
"""The two lengths of a header."""


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
    size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
    if headers:
        for name, content in headers:
            size += HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


def decode_records(
    raw: Buffer, info: BatchInfo, *, start_offset: int = 0, stop_offset: int | None = None
) -> list[Record]:
    """The records of one batch with offsets from `start_offset` up to, not including, `stop_offset`. A control batch (how
    a transaction ended) has none.
    """
    if info.is_control:
        return []
    first = max(0, start_offset - info.base_offset)
    stop = info.span if stop_offset is None else min(info.span, stop_offset - info.base_offset)
    if first >= stop or not info.count:
        return []
    if info.is_sparse:
        from logstore.format.plain import fields

        return fields.sparse_records(batch.record_area(raw, info), info.span, info.base_offset, first, stop)
    return kernels.active.records(batch.record_area(raw, info), info.base_offset, first, stop)


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
    if not 0 <= stamp <= MAX_TIMESTAMP_MS:
        raise FormatError(f"timestamp_ms must be between 0 and {MAX_TIMESTAMP_MS}, not {stamp}")
    return stamp
