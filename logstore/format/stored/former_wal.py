"""The WAL files of releases up to 0.1, format 1: one partition and one writer in each. They are read, and written no more.

    file      header (the writer's epoch and its first offset in it) and frames, back to back
    frame     magic, payload length, CRC-32C of length and payload; payload = record batches, verbatim

What a torn end and damage are: as in `wal`.
"""

from __future__ import annotations

import struct

from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError
from logstore.format.stored.segment import Bytes
from logstore.format.stored.wal import HEADER_SIZE, good_frame_after, has_no_header, parse_header

FORMAT_VERSION = 1
FRAME_MAGIC = b"\xf7WF1"
_FRAME = struct.Struct("<4sII")


def is_unwritten(data: Bytes) -> bool:
    """As in `wal`."""
    return has_no_header(data) and not _good_frame_after(data, -1)


def parse_epoch(data: Bytes) -> int:
    """Of the writer that wrote the file."""
    return parse_header(data, FORMAT_VERSION)


def parse_payloads(data: Bytes) -> tuple[list[memoryview], int]:
    """The payloads of a file's frames, and how many bytes of the file are good: fewer than all means a torn last frame."""
    view = memoryview(data)
    payloads: list[memoryview] = []
    position = HEADER_SIZE
    while position < len(view):
        payload = _frame_at(view, position)
        if payload is None:
            if _good_frame_after(data, position):
                raise FormatError("a WAL frame before the end is damaged", position)
            break
        payloads.append(payload)
        position += _FRAME.size + len(payload)
    return payloads, position


def _frame_at(view: memoryview, position: int) -> memoryview | None:
    if len(view) - position < _FRAME.size:
        return None
    magic, length, crc = _FRAME.unpack_from(view, position)
    payload = view[position + _FRAME.size : position + _FRAME.size + length]
    if magic != FRAME_MAGIC or len(payload) != length:
        return None
    return payload if crc32c(payload, crc32c(length.to_bytes(4, "little"))) == crc else None


def _good_frame_after(data: Bytes, position: int) -> bool:
    return good_frame_after(
        data, position, FRAME_MAGIC, lambda view, found: _frame_at(view, found) is not None
    )
