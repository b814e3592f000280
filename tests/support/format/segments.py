"""Segments of a given size."""

from __future__ import annotations

import struct

from crc32c import crc32c

from logstore.format.batches.batch import PATCH_SIZE, encode_batch, patch_head
from logstore.format.batches.record import Record
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.segment import SegmentHeader, build_segment, parse_segment

MIB = 1 << 20


def segment_of(size: int) -> memoryview:
    """A segment whose records take about `size` bytes, of one batch that many offsets share."""
    raw, info = encode_batch([Record(bytes(64 * 1024))], now_ms=5, codec_id=0)
    batches = [
        EncodedBatch(patch_head(offset, info.size, 1), memoryview(raw)[PATCH_SIZE:], offset, 1, 5, 5)
        for offset in range(size // info.size)
    ]
    header = SegmentHeader(0, 1, 0, len(batches), bytes(16), 0, len(batches))
    return build_segment(header, batches)[0]


def with_attributes(data: bytes, attributes: int) -> bytes:
    """The same segment with these attributes in each of its batches."""
    summary, index = parse_segment(data)
    batches = []
    for base, position, size, count, high_ms, low_ms, _ in index.tolist():
        raw = bytearray(data[position : position + size])
        raw[21:23] = struct.pack(">h", attributes | raw[22] & 7)
        raw[17:21] = struct.pack(">I", crc32c(bytes(raw[21:])))
        batches.append(as_stored(memoryview(bytes(raw)), base, count, low_ms, high_ms))
    return bytes(build_segment(summary.header, batches)[0])
