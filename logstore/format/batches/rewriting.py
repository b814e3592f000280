"""Foreign batches as a topic wants them: in another codec, or stamped with the time of their append.

Offsets, records, producers and sequence numbers stay; attributes, the largest timestamp, the length and the CRC change. What
is damaged is refused before it gets a new checksum.
"""

from __future__ import annotations

import struct
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
    split,
)
from logstore.format.checksum import crc32c

_LENGTH = struct.Struct(">i")
_LENGTH_AT, _LENGTH_FROM = 8, 12
_CRC = struct.Struct(">I")
_CRC_AT, _CRC_FROM = 17, 21
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35


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
    head = bytearray(view[:HEADER_SIZE])
    if wanted.stamps:
        attributes |= LOG_APPEND_TIME
        _TIMESTAMP.pack_into(head, _MAX_TIMESTAMP_AT, now_ms)
    _LENGTH.pack_into(head, _LENGTH_AT, HEADER_SIZE + len(area) - _LENGTH_FROM)
    _ATTRIBUTES.pack_into(head, _ATTRIBUTES_AT, attributes)
    _CRC.pack_into(head, _CRC_AT, crc32c(area, crc32c(memoryview(head)[_CRC_FROM:])))
    return b"".join((head, area))
