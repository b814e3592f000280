"""Admission: validate and size records before they can take an offset.

A mistake in the last of a thousand records refuses all thousand: an append is atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from logstore.errors import InvalidRecord, KeyRequired, RecordTooLarge
from logstore.format import kernels
from logstore.format.batches.area import MAX_TIMESTAMP_MS
from logstore.format.batches.batch import HEADER_SIZE, BatchInfo, encode_batch, record_area, split, validate
from logstore.format.batches.record import Record
from logstore.format.batches.records import (
    HEADER_OVERHEAD,
    RECORD_OVERHEAD,
    check_record,
    decode_records,
    record_size,
)
from logstore.format.batches.sequences import advance
from logstore.format.errors import FormatError
from logstore.format.key_hash import all_have_keys

_key = itemgetter(1)
_new_tuple = tuple.__new__  # half the time of Record(…)


class Run(NamedTuple):
    """Checked records of one append. `charged` is the most their batch can take."""

    records: list[Record]
    charged: int


def admit_records(given: object, max_batch_bytes: int) -> list[Run]:
    """The records of one append, cut into runs that each fit a batch."""
    if isinstance(given, Record | bytes | bytearray | memoryview):
        given = (given,)
    elif given is None or isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidRecord(
            f"append takes a Record, bytes, or an iterable of them, not {type(given).__name__}; nothing was appended"
        )
    items: list[Any] = list(given)  # the caller's own may change before they are encoded
    if not items:
        raise InvalidRecord("there is nothing to append: the iterable is empty")
    if type(items[0]) is bytes and set(map(type, items)) == {bytes}:
        items = _plain_records(repeat(None), items)
    cuts = kernels.active.cut(items, max_batch_bytes - HEADER_SIZE)
    if cuts is None:
        return _admit_unusual(items, max_batch_bytes)
    starts = (0, *(stop for stop, _ in cuts))
    return [Run(items[start:stop], charged) for start, (stop, charged) in zip(starts, cuts, strict=False)]


def _admit_unusual(items: Sequence[object], max_batch_bytes: int) -> list[Run]:
    """Records one by one: any that is not plain becomes one, or is refused."""
    runs: list[Run] = []
    records: list[Record] = []
    charged, limit = 0, max_batch_bytes - HEADER_SIZE
    for item in items:
        if type(item) is Record:
            value, key, headers, stamp, _ = item
            size = RECORD_OVERHEAD if headers == () else _plain_headers(headers)
            if (
                size
                and (type(value) is bytes or value is None)
                and (key is None or type(key) is bytes)
                and (stamp is None or (type(stamp) is int and 0 <= stamp <= MAX_TIMESTAMP_MS))
            ):
                record = item
                size += (0 if value is None else len(value)) + (0 if key is None else len(key))
            else:
                record, size = _normalize(item)
        elif type(item) is bytes:
            record, size = Record(item), len(item) + RECORD_OVERHEAD
        else:
            record, size = _normalize(item)
        if charged + size > limit:
            if size > limit:
                raise too_large(size, max_batch_bytes)
            runs.append(Run(records, charged))
            records, charged = [], 0
        records.append(record)
        charged += size
    runs.append(Run(records, charged))
    return runs


def admit_columns(keys: Sequence[bytes], values: Sequence[bytes], max_batch_bytes: int) -> list[Run]:
    """`admit_records` for many records without headers and timestamps."""
    records = _plain_records(keys, values)
    return admit_records(records, max_batch_bytes) if records else []


def _plain_records(keys: Iterable[bytes | None], values: Sequence[bytes]) -> list[Record]:
    """Made without a line of Python for each."""
    fields = zip(values, keys, repeat(()), repeat(None), repeat(None), strict=False)
    return list(map(_new_tuple, repeat(Record), fields))


def _plain_headers(headers: object) -> int:
    """The most that a record with these headers takes beside its key and value; 0 if they need a closer look."""
    size = RECORD_OVERHEAD
    if type(headers) is not tuple:
        return 0
    for pair in headers:
        if type(pair) is not tuple or len(pair) != 2:
            return 0
        name, content = pair
        if type(name) is not str or not name.isascii() or not (content is None or type(content) is bytes):
            return 0
        size += HEADER_OVERHEAD + len(name) + (0 if content is None else len(content))
    return size


def _normalize(item: object) -> tuple[Record, int]:
    """Anything but a plain record of bytes."""
    if isinstance(item, bytes | bytearray | memoryview):
        item = Record(bytes(item))
    try:
        record = check_record(item)  # type: ignore[arg-type]
    except FormatError as error:
        raise InvalidRecord(f"{error.why}; nothing was appended") from error
    return record, record_size(record)


def admit_one(
    value: object, key: object, headers: object, timestamp_ms: int | None, now_ms: int, max_batch_bytes: int
) -> tuple[Record, int]:
    """One record in parts, with its timestamp set, and the most that it can take."""
    if (
        type(value) is bytes
        and (key is None or type(key) is bytes)
        and headers == ()
        and timestamp_ms is None
    ):
        size = len(value) + RECORD_OVERHEAD if key is None else len(value) + len(key) + RECORD_OVERHEAD
        record = _new_tuple(Record, (value, key, (), now_ms, None))
    else:
        record, size = _normalize(Record(value, key, headers, timestamp_ms))  # type: ignore[arg-type]
        if record.timestamp_ms is None:
            record = record._replace(timestamp_ms=now_ms)
    if size > max_batch_bytes - HEADER_SIZE:
        raise too_large(size, max_batch_bytes)
    return record, size


def encode_runs(
    runs: Iterable[Run], now_ms: int, codec_id: int, numbered: tuple[int, int, int] | None = None
) -> list[tuple[memoryview, BatchInfo]]:
    """`numbered`: their producer, its epoch and the number of the first record."""
    encoded = []
    producer_id, epoch, sequence = numbered or (-1, -1, -1)
    for run in runs:
        raw, info = encode_batch(
            run.records,
            now_ms=now_ms,
            codec_id=codec_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        encoded.append((memoryview(raw), info))
        if numbered is not None:
            sequence = advance(sequence, info.count)
    return encoded


def admit_batches(
    raw: object, max_batch_bytes: int, *, control: bool = False
) -> list[tuple[memoryview, BatchInfo]]:
    """Record batches that somebody else encoded, each checked to its last byte. `control`: a broker's own ones, too."""
    if not isinstance(raw, bytes | bytearray | memoryview):
        raise InvalidRecord(
            f"append_batches takes Kafka v2 record batches as bytes, not {type(raw).__name__}"
        )
    view = memoryview(raw)
    if not view.readonly or not view.c_contiguous or view.itemsize != 1:
        # The caller may use its buffer again; and in one of another shape a position is not that of a byte.
        view = memoryview(bytes(view))
    try:
        largest = max((info.size for info in split(view)), default=0)
        if largest > max_batch_bytes:
            raise too_large(largest, max_batch_bytes)
        infos = validate(view, max_batch_bytes=max_batch_bytes, control=control)
    except FormatError as error:
        raise InvalidRecord(
            f"not a record batch that can be stored: {error}; nothing was appended"
        ) from error
    return [(view[info.position : info.position + info.size], info) for info in infos]


def check_keys(runs: Iterable[Run]) -> None:
    """`KeyRequired` for a record without a key: in a topic that is compacted by key it could never be replaced."""
    for run in runs:
        if None in map(_key, run.records):
            raise _keyless()


def check_batch_keys(batches: Iterable[tuple[memoryview, BatchInfo]]) -> None:
    """The same of encoded batches, which are checked otherwise."""
    first = 0
    for raw, info in batches:
        here = info._replace(position=0)
        if not info.is_control and not all_have_keys(record_area(raw, here), info.span):
            error = _keyless()
            keys = map(_key, decode_records(raw, here))
            error.places = tuple(place for place, key in enumerate(keys, first) if key is None)
            raise error
        first += info.count


def _keyless() -> KeyRequired:
    return KeyRequired(
        "a record without a key, and the topic is compacted by key; nothing was appended: give each record a key"
    )


def too_large(size: int, max_batch_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record of up to {size} bytes does not fit a batch of max_batch_bytes={max_batch_bytes}: nothing was appended"
    )
