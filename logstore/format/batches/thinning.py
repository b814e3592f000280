"""Taking records out of batches, as compaction by key does: what stays keeps its offset, its bytes and its order.

A batch that loses records keeps base offset, last offset delta, base timestamp, producer id, epoch and sequence, as in
Kafka, so every Kafka client reads it; the bytes of its other records are copied as they are and compressed again. One that
loses all of them may stay as a bare header, which is how a producer's last number stays known.
"""

from __future__ import annotations

import struct
from typing import Any

from logstore.format import kernels
from logstore.format.batches import codecs
from logstore.format.batches.area import Area
from logstore.format.batches.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchInfo,
    Buffer,
    record_area,
)
from logstore.format.checksum import crc32c

_FRONT = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_AFTER_CRC = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH_FROM = 12
_NO_TIMESTAMP = -1


def thinned(raw: Buffer, info: BatchInfo, keep: Any, area: Area | None = None) -> tuple[bytes, int, int]:
    """A batch with the records alone for which `keep` has a 1, one byte each: its bytes, and the lowest and the highest
    timestamp that are left. `area`: its records, if they were read before."""
    if not keep.any():
        return emptied(raw, info), _NO_TIMESTAMP, _NO_TIMESTAMP
    area = record_area(raw, info) if area is None else area
    data, low, high = kernels.active.pick(area, info.span, keep)
    return _packed(raw, info, area.base_timestamp_ms, high, int(keep.sum()), data), low, high


def emptied(raw: Buffer, info: BatchInfo) -> bytes:
    """What is left of a batch without any record."""
    return _packed(raw, info, _NO_TIMESTAMP, _NO_TIMESTAMP, 0, b"")


def _packed(raw: Buffer, info: BatchInfo, base_ms: int, max_ms: int, count: int, data: bytes) -> bytes:
    attributes = info.attributes & ~CODEC_MASK
    if not count:
        attributes &= ~LOG_APPEND_TIME
    elif info.codec_id:
        packed = codecs.compress(info.codec_id, data)
        if len(packed) < len(data):
            data, attributes = packed, attributes | info.codec_id
    rest = _AFTER_CRC.pack(
        attributes,
        info.span - 1,
        base_ms,
        max_ms,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
        count,
    )
    base_offset, _, epoch, magic = _FRONT.unpack_from(raw, info.position)
    front = _FRONT.pack(base_offset, HEADER_SIZE + len(data) - _LENGTH_FROM, epoch, magic)
    return b"".join((front, _CRC.pack(crc32c(data, crc32c(rest))), rest, data))
