"""WAL frames: what makes a `local` ack true.

    file      header (fixed size: magic, version, the writer's epoch, its first offset, CRC) and frames, back to back
    frame     magic, payload length, CRC-32C of length and payload; payload = record batches, verbatim

One frame is one group that was fsynced together, and the next is written only after that fsync. So a crash can leave at
most the last frame torn, and nothing in it was acked: it is cut off. A bad frame with a good one anywhere behind it is
damage, and is reported, never skipped.

The header is fsynced with the first frame. So a file whose header is not there, cut short or still zeros, was named and
never fsynced, and nothing in it was acked; unless an intact frame stands in it: then the header was there once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.segment import Bytes

FORMAT_VERSION = 1
MAGIC = b"LOGWAL\r\n"
FRAME_MAGIC = b"\xf7WF1"

_HEADER = struct.Struct("<8sHHIQq")
_CRC = struct.Struct("<I")
HEADER_SIZE = _HEADER.size + _CRC.size
_FRAME = struct.Struct("<4sII")
FRAME_OVERHEAD = _FRAME.size


@dataclass(frozen=True, slots=True)
class WalHeader:
    """Which writer wrote the file, and from which offset on."""

    epoch: int
    base_offset: int

    def pack(self) -> bytes:
        fields = _HEADER.pack(MAGIC, FORMAT_VERSION, 0, 0, self.epoch, self.base_offset)
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def parse(cls, data: Bytes) -> WalHeader:
        magic, version, _, _, epoch, base_offset = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise FormatError("no WAL file: the magic is missing", 0)
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(bytes(data[: _HEADER.size])):
            raise FormatError("the WAL header's checksum does not match", 0)
        if version != FORMAT_VERSION:
            raise UnsupportedVersion(f"WAL format {version}; this release reads {FORMAT_VERSION}", 8)
        return cls(epoch, base_offset)


def is_unwritten(data: Bytes) -> bool:
    """Whether this is a file that was never fsynced, as a power cut leaves it: no header, or the beginning of one and then
    zeros, and no intact frame."""
    begun = bytes(data[:HEADER_SIZE]).rstrip(b"\0")
    is_begun = len(begun) <= _HEADER.size and begun[: len(MAGIC)] == MAGIC[: len(begun)]
    return (len(data) < HEADER_SIZE or is_begun) and not _good_frame_after(data, -1)


def pack_frame(parts: list[Bytes]) -> bytes:
    """One frame around the batches in `parts`."""
    length = sum(len(part) for part in parts)
    crc = crc32c(length.to_bytes(4, "little"))
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((_FRAME.pack(FRAME_MAGIC, length, crc), *parts))


def parse_frames(data: Bytes) -> tuple[list[memoryview], int]:
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
        position += FRAME_OVERHEAD + len(payload)
    return payloads, position


def _frame_at(view: memoryview, position: int) -> memoryview | None:
    if len(view) - position < FRAME_OVERHEAD:
        return None
    magic, length, crc = _FRAME.unpack_from(view, position)
    payload = view[position + FRAME_OVERHEAD : position + FRAME_OVERHEAD + length]
    if magic != FRAME_MAGIC or len(payload) != length:
        return None
    return payload if crc32c(payload, crc32c(length.to_bytes(4, "little"))) == crc else None


def _good_frame_after(data: Bytes, position: int) -> bool:
    """Whether any intact frame starts behind `position`: then the bad one is no torn tail."""
    plain = bytes(data)
    found = plain.find(FRAME_MAGIC, position + 1)
    while found != -1:
        if _frame_at(memoryview(plain), found) is not None:
            return True
        found = plain.find(FRAME_MAGIC, found + 1)
    return False
