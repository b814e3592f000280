"""Taking records out of batches, as compaction by key does: what stays keeps its offset, its bytes and its order.

A batch that loses records keeps base offset, last offset delta, base timestamp, producer id, epoch and sequence, as in
Kafka, so every Kafka client reads it; the bytes of its other records are copied as they are and compressed again. One that
loses all of them may stay as a bare header, which is how a producer's last number stays known.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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

if TYPE_CHECKING:
    from logstore.format.plain.fields import Fields

_FRONT = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_AFTER_CRC = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH_FROM = 12
_NO_TIMESTAMP = -1


class Located(NamedTuple):
    """The records of some batches, and where their fields lie in `joined`; one entry a record in each of the arrays.
    `firsts`: where the records of each batch begin, and one more for the end."""

    infos: Sequence[BatchInfo]
    areas: Sequence[Area]
    joined: bytes
    found: Fields
    offsets: Any
    firsts: Any

    @property
    def is_tombstone(self) -> Any:
        return self.found.value_lengths < 0

    @property
    def has_key(self) -> Any:
        return self.found.key_lengths >= 0


def locate(batches: Sequence[tuple[Buffer, BatchInfo]]) -> Located:
    """Of batches, each with one record at the least, and with the bytes that it lies in."""
    from logstore.format.plain import fields  # as kernels do: imported when called

    areas = [record_area(raw, info) for raw, info in batches]
    infos = [info for _, info in batches]
    counts = np.array([info.count for info in infos])
    spans = [info.span for info in infos] if any(info.is_sparse for info in infos) else None
    joined, _, found = fields.locate(areas, spans)
    offsets = np.repeat(np.array([info.base_offset for info in infos], np.int64), counts) + found.numbers
    return Located(infos, areas, joined, found, offsets, np.append(0, counts.cumsum()))


def thinned(raw: Buffer, located: Located, row: int, keep: Any) -> tuple[bytes, int, int]:
    """The batch `row` of those located, with the records alone for which `keep` is true: its bytes, and the lowest and the
    highest timestamp that are left."""
    info, area, found = located.infos[row], located.areas[row], located.found
    rows = np.arange(located.firsts[row], located.firsts[row + 1])[keep]
    if not len(rows):
        return emptied(raw, info), _NO_TIMESTAMP, _NO_TIMESTAMP
    # Neighbours that stay are copied in one piece.
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = found.starts[rows[np.append(0, breaks + 1)]].tolist()
    ends = found.ends[rows[np.append(breaks, len(rows) - 1)]].tolist()
    data = b"".join([located.joined[start:end] for start, end in zip(starts, ends, strict=True)])
    if area.append_timestamp_ms is not None:
        low = high = area.append_timestamp_ms
    else:
        stamps = found.timestamp_deltas[rows]
        low = area.base_timestamp_ms + int(stamps.min())
        high = area.base_timestamp_ms + int(stamps.max())
    return _packed(raw, info, area.base_timestamp_ms, high, len(rows), data), low, high


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
