"""Foreign batches as a topic wants them: in another codec, or stamped with the time of their append.

Offsets, records, producers and sequence numbers stay; attributes, the largest timestamp, the length and the CRC change. What
is damaged is refused before it gets a new checksum.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.format.batches import codecs
from logstore.format.batches.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_DECODED_BYTES,
    BatchInfo,
    Buffer,
    check_crc,
    header_of,
    join_batch,
    split,
)


class Rewrite(NamedTuple):
    """What is wanted of a batch. `codec_id` None: the codec that it has. `stamps`: its records get the time of
    the append."""

    codec_id: int | None = None
    level: int | None = None
    stamps: bool = False


def rewrite(raw: Buffer, wanted: Rewrite, now_ms: int) -> bytes:
    """The batches that lie back to back in `raw`, as they are wanted. `FormatError` if one is damaged."""
    return b"".join(_one(raw, info, wanted, now_ms) for info in split(raw))


def _one(raw: Buffer, info: BatchInfo, wanted: Rewrite, now_ms: int) -> bytes:
    check_crc(raw, info)
    view = memoryview(raw)[info.position : info.position + info.size]
    area: Buffer = view[HEADER_SIZE:]
    attributes = info.attributes
    if wanted.codec_id is not None and wanted.codec_id != info.codec_id:
        plain = codecs.decompress(info.codec_id, area, max_size=MAX_DECODED_BYTES)
        area = codecs.compress(wanted.codec_id, plain, wanted.level)
        attributes = attributes & ~CODEC_MASK | wanted.codec_id
    base_offset, leader_epoch, (_, last_delta, base_ms, max_ms, *rest) = header_of(raw, info)
    if wanted.stamps:
        attributes, max_ms = attributes | LOG_APPEND_TIME, now_ms
    return join_batch(base_offset, leader_epoch, (attributes, last_delta, base_ms, max_ms, *rest), area)
