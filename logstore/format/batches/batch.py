"""Kafka v2 record batches: the unit of encoding, checksum, compression, storage and transfer.

The header (61 bytes, big endian): base offset 8, length of what follows 4, leader epoch 4, magic 1, CRC-32C
of all that follows 4, attributes 2, last offset delta 4, base timestamp 8, max timestamp 8, producer id 8,
producer epoch 2, base sequence 4, record count 4. Then the record area (`area`), compressed as a whole.

* The first 16 bytes lie outside of the CRC: giving a batch its offset patches them (`patch_head`) and nothing
  else.
* A batch that a producer sends has offset deltas 0 … count-1. One of which compaction by key has taken records away is
  sparse: it covers as many offsets as before (`span`), and those of its records are some of them, or none.
* `read_info` and `split` look at headers only; `check_crc` finds damaged bytes; `validate` trusts nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logstore.format import kernels
from logstore.format.batches import codecs
from logstore.format.batches.area import Area, check_timestamp
from logstore.format.batches.record import Record
from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
PATCH_SIZE = 16
MAGIC = 2
MAX_OFFSET = (1 << 63) - 1
# More than this in one batch, decompressed, is a bomb and not a batch. `encode_batch` keeps to it too, so
# that whatever was written can be read.
MAX_DECODED_BYTES = 256 << 20

# Below this size a codec's own framing eats what it could save.
_COMPRESS_FROM = 64
_CODECS = range(len(codecs.CODEC_NAMES))
# From this size on a view is cheaper than a copy.
_VIEW_FROM = 8192

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PATCH = struct.Struct(">qii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_UP_TO_CRC = struct.Struct(">qiibI")
_CRC = struct.Struct(">I")
_TIMESTAMPS = struct.Struct(">qq")
_TIMESTAMPS_AT = 27
_CRC_AT = 17
_CRC_FROM = 21
_LENGTH_FROM = 12

# A NamedTuple made like this takes a third of the time.
_new_tuple = tuple.__new__

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class BatchInfo(NamedTuple):
    """What a batch header says, and where in its buffer the batch lies.

    Timestamps are exact from `encode_batch` and `validate`. From `read_info` and `split` the lower one is the
    lesser of the header's two, and a record may lie below it: headers do not carry the minimum.
    """

    base_offset: int
    position: int
    size: int
    count: int  # type: ignore[assignment]
    max_timestamp_ms: int
    min_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    span: int
    """How many offsets it covers: as many as it has records, unless compaction has taken some away."""

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.span - 1

    @property
    def is_sparse(self) -> bool:
        return self.span != self.count

    @property
    def codec_id(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def encode_batch(
    records: Sequence[Record],
    *,
    now_ms: int,
    codec_id: int = codecs.ZSTD,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> tuple[bytes, BatchInfo]:
    """`records` (at least one, each as `check_record` returns it) as one batch, base offset 0, epoch 0.

    A record without a timestamp gets `now_ms`. If compression makes the batch no smaller, it is stored as it
    is.
    """
    count = len(records)
    if not count:
        raise FormatError("a batch needs at least one record")
    data, base_ms, min_ms, max_ms = kernels.active.encode(records, now_ms)
    if len(data) > MAX_DECODED_BYTES:
        raise FormatError(f"{len(data)} bytes in one batch; at most {MAX_DECODED_BYTES} are allowed")
    if codec_id and (len(data) >= _COMPRESS_FROM or codec_id not in _CODECS):
        packed = codecs.compress(codec_id, data)
        if len(packed) < len(data):
            data, attributes = packed, attributes | codec_id
    rest = (attributes, count - 1, base_ms, max_ms, producer_id, producer_epoch, base_sequence, count)
    fields = (
        0,
        0,
        HEADER_SIZE + len(data),
        count,
        max_ms,
        min_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        attributes,
        count,
    )
    return join_batch(0, 0, rest, data), _new_tuple(BatchInfo, fields)


def join_batch(base_offset: int, leader_epoch: int, rest: Iterable[int], data: Buffer) -> bytes:
    """A batch with a CRC that matches. `rest`: the fields of its header behind the CRC."""
    after = _AFTER_CRC.pack(*rest)
    size = HEADER_SIZE + len(data)
    crc = crc32c(data, crc32c(after))
    return b"".join(
        (_UP_TO_CRC.pack(base_offset, size - _LENGTH_FROM, leader_epoch, MAGIC, crc), after, data)
    )


def header_of(raw: Buffer, info: BatchInfo) -> tuple[int, int, tuple[int, ...]]:
    """What `join_batch` is given: base offset, leader epoch, and the fields behind the CRC."""
    base_offset, _, leader_epoch, _, _, *rest = _HEADER.unpack_from(raw, info.position)
    return base_offset, leader_epoch, tuple(rest)


def patch_head(base_offset: int, size: int, leader_epoch: int) -> bytes:
    """The 16 bytes to put in front of `raw[16:]` of a batch of `size` bytes, once its offset is known."""
    return _PATCH.pack(base_offset, size - _LENGTH_FROM, leader_epoch)


def read_info(raw: Buffer, position: int = 0) -> BatchInfo:
    """The header of the batch at `position`, which must lie in `raw` whole. CRC and records are not read."""
    if position + HEADER_SIZE > len(raw):
        raise FormatError(f"{len(raw) - position} bytes cannot hold a batch header", position)
    (
        base_offset,
        length,
        _leader_epoch,
        magic,
        _crc,
        attributes,
        last_delta,
        base_ms,
        max_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = _HEADER.unpack_from(raw, position)
    if magic != MAGIC:
        raise UnsupportedVersion(f"a batch of magic {magic}; only {MAGIC} is known", position)
    size = length + _LENGTH_FROM
    if size < HEADER_SIZE or position + size > len(raw):
        raise FormatError(f"a batch of {size} bytes where {len(raw) - position} are left", position)
    if count < 0 or last_delta < count - 1 or last_delta < 0:
        raise FormatError(f"a batch of {count} records with last offset delta {last_delta}", position)
    if not 0 <= base_offset < MAX_OFFSET - last_delta:
        raise FormatError(f"a batch of {count} records with base offset {base_offset}", position)
    fields = (
        base_offset,
        position,
        size,
        count,
        max_ms,
        min(base_ms, max_ms),
        producer_id,
        producer_epoch,
        base_sequence,
        attributes,
        last_delta + 1,
    )
    return _new_tuple(BatchInfo, fields)


def split(raw: Buffer) -> list[BatchInfo]:
    """The headers of the batches that lie back to back in `raw`, which they must fill."""
    infos = []
    position = 0
    while position < len(raw):
        info = read_info(raw, position)
        infos.append(info)
        position += info.size
    return infos


def check_crc(raw: Buffer, info: BatchInfo) -> None:
    """`FormatError` if the batch is not, byte for byte, what was encoded (its first 16 bytes apart)."""
    start = info.position
    found = crc32c(memoryview(raw)[start + _CRC_FROM : start + info.size])
    (stored,) = _CRC.unpack_from(raw, start + _CRC_AT)
    if found != stored:
        raise FormatError(f"CRC-32C of a batch is {found:08x}, its header says {stored:08x}", start)


def validate(
    raw: Buffer, *, max_batch_bytes: int, max_decoded_bytes: int = MAX_DECODED_BYTES, control: bool = False
) -> list[BatchInfo]:
    """Check foreign bytes completely: batches that a producer may send, back to back, nothing else.

    Each batch: magic, length, CRC, a known codec, records that are what the header counts, every length in
    bounds, offset deltas 0 … count-1, timestamps that a reader can represent, header keys in UTF-8. Control
    batches (a broker's own) unless with `control`, empty ones and ones larger than the limits are refused.
    Timestamps in the result are exact.
    """
    infos = split(raw)
    if not infos:
        raise FormatError("no batch at all")
    for info in infos:
        if info.is_sparse:
            raise FormatError(
                f"a batch of {info.count} records with last offset delta {info.span - 1}", info.position
            )
    return [_validate_one(raw, info, max_batch_bytes, max_decoded_bytes, control) for info in infos]


def _validate_one(
    raw: Buffer, info: BatchInfo, max_batch_bytes: int, max_decoded_bytes: int, control: bool
) -> BatchInfo:
    where = info.position
    if info.size > max_batch_bytes:
        raise FormatError(f"a batch of {info.size} bytes; at most {max_batch_bytes} are allowed", where)
    check_crc(raw, info)
    if info.attributes & (DELETE_HORIZON if control else CONTROL | DELETE_HORIZON):
        kind = "control batch" if info.is_control else "batch with a delete horizon"
        raise FormatError(f"a {kind}; only a broker writes those", where)
    if info.producer_id >= 0 and (
        info.producer_epoch < 0 or (info.base_sequence < 0 and not info.is_control)
    ):
        raise FormatError(
            f"producer {info.producer_id} with epoch {info.producer_epoch} and sequence {info.base_sequence}",
            where,
        )
    low, high = kernels.active.check(record_area(raw, info, max_decoded_bytes))
    return _new_tuple(BatchInfo, (*info[:4], high, low, *info[6:]))


def check_stored(raw: Buffer, position: int = 0) -> BatchInfo:
    """Check a batch of the log's own completely: one that a producer may have sent, or what compaction has left of it.
    Timestamps in the result are exact."""
    info = read_info(raw, position)
    if not info.is_sparse:
        return _validate_one(raw, info, info.size, MAX_DECODED_BYTES, control=True)
    check_crc(raw, info)
    if not info.count:
        return info
    from logstore.format.plain import fields

    low, high = fields.check(record_area(raw, info), info.span)
    return info._replace(max_timestamp_ms=high, min_timestamp_ms=low)


def record_area(raw: Buffer, info: BatchInfo, max_decoded_bytes: int = MAX_DECODED_BYTES) -> Area:
    """The record area of a batch, decompressed, with what the header says about its timestamps."""
    position, size, count, attributes = info[1], info[2], info[3], info[9]
    start, end = position + HEADER_SIZE, position + size
    codec_id = attributes & CODEC_MASK
    data: bytes | memoryview
    if type(raw) is bytes and (codec_id or size < _VIEW_FROM):
        data = raw[start:end]
    else:
        data = memoryview(raw)[start:end]
        if not data.readonly:
            data = bytes(data)
    room = min(max_decoded_bytes, MAX_DECODED_BYTES)
    if codec_id:
        data = codecs.decompress(codec_id, data, max_size=room)
    elif len(data) > room:
        raise codecs.too_large(room)
    base_ms, max_ms = _TIMESTAMPS.unpack_from(raw, position + _TIMESTAMPS_AT)
    append_ms = check_timestamp(max_ms) if attributes & LOG_APPEND_TIME else None
    return _new_tuple(Area, (data, count, check_timestamp(base_ms), append_ms))
