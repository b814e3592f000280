"""Taking records out of batches, as compaction by key does: what stays keeps its offset, its bytes and its order.

A batch that loses records keeps base offset, last offset delta, base timestamp, producer id, epoch and sequence, as in
Kafka, so every Kafka client reads it; the bytes of its other records are copied as they are and compressed again. One that
loses all of them may stay as a bare header, which is how a producer's last number stays known.
"""

from __future__ import annotations

from typing import Any

from logstore.format import kernels
from logstore.format.batches import codecs
from logstore.format.batches.area import Area
from logstore.format.batches.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    BatchInfo,
    Buffer,
    header_of,
    join_batch,
    record_area,
)

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
    base_offset, leader_epoch, (_, last_delta, _, _, *producer, _) = header_of(raw, info)
    rest = (attributes, last_delta, base_ms, max_ms, *producer, count)
    return join_batch(base_offset, leader_epoch, rest, data)
