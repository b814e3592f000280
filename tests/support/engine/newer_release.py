"""Objects as a later release might write them."""

from __future__ import annotations

import struct

from crc32c import crc32c

from logstore.format.stored.segment import HEADER_SIZE, SegmentHeader, build_segment

_VERSION_AT = 8


def newer(data: bytes, size: int | None = None) -> bytes:
    """The same bytes as version 9 would write them, if it changed nothing else: the checksum at the end is right."""
    size = len(data) if size is None else size
    changed = bytearray(data[:size])
    struct.pack_into("<H", changed, _VERSION_AT, 9)
    return bytes(changed)


def newer_segment(seq: int, base: int) -> bytes:
    header = SegmentHeader(seq, 9, base, base, bytes(16), 0, base)
    data, summary = build_segment(header, [])
    front = newer(bytes(data), HEADER_SIZE - 4)
    front += struct.pack("<I", crc32c(front))
    footer = bytearray(front + summary.pack()[HEADER_SIZE:])
    footer[-12:-8] = struct.pack("<I", crc32c(bytes(footer[:-12])))
    return front + bytes(footer)


def newer_manifest(data: bytes) -> bytes:
    body = newer(data)[:-12]
    return body + struct.pack("<I", crc32c(body)) + data[-8:]
