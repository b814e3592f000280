"""Segments of a given size."""

from __future__ import annotations

from logstore.format.batches.batch import PATCH_SIZE, encode_batch, patch_head
from logstore.format.batches.record import Record
from logstore.format.stored.segment import EncodedBatch, SegmentHeader, build_segment

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
