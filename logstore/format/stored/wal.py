"""WAL frames: what makes a `local` ack true, for all partitions of a process at once.

    file      header (fixed size: magic, version, CRC) and frames, back to back
    frame     magic, size of the directory, size of all sections, CRC-32C of these sizes and the directory;
              the directory; the sections
    directory a row for each section: its writer's epoch, its size, its CRC-32C, its partition's prefix
    section   record batches of one partition, verbatim

One frame is one group that was fsynced together, and the next is written only after that fsync. So a crash can leave at
most the last frame torn, and nothing in it was acked: it is cut off. A bad frame with a good one anywhere behind it is
damage, and is reported, never skipped: to the partitions whose sections are hit, or to all, if the directory is.

The header is fsynced with the first frame. So a file whose header is not there, cut short or still zeros, was named and
never fsynced, and nothing in it was acked; unless an intact frame is in it: then the header was there once.

Releases up to 0.1 kept a folder for each partition, with files of format 1 (`former_wal`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.segment import Bytes

FORMAT_VERSION = 2
MAGIC = b"LOGWAL\r\n"
FRAME_MAGIC = b"\xf7WF2"

_HEADER = struct.Struct("<8sHHIQq")
_CRC = struct.Struct("<I")
HEADER_SIZE = _HEADER.size + _CRC.size
_FRAME = struct.Struct("<4sIII")
FRAME_OVERHEAD = _FRAME.size
_ROW = struct.Struct("<QIIH")


class Section(NamedTuple):
    """What a frame holds of one partition, and where in the file. `is_sound`: its checksum matches."""

    prefix: str
    epoch: int
    position: int
    size: int
    is_sound: bool


class Unpacked(NamedTuple):
    """One section that is to be written: the batches in pieces, as they lie in memory."""

    prefix: str
    epoch: int
    parts: list[Bytes]


def pack_header(version: int = FORMAT_VERSION, epoch: int = 0, base_offset: int = 0) -> bytes:
    """`epoch` and `base_offset`: of the only writer, in format 1."""
    fields = _HEADER.pack(MAGIC, version, 0, 0, epoch, base_offset)
    return fields + _CRC.pack(crc32c(fields))


def parse_header(data: Bytes, version: int = FORMAT_VERSION) -> int:
    """Check the header of a file of this version. Returns the epoch in it, which format 1 has."""
    magic, found, _, _, epoch, _ = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("no WAL file: the magic is missing", 0)
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(bytes(data[: _HEADER.size])):
        raise FormatError("the WAL header's checksum does not match", 0)
    if found != version:
        raise UnsupportedVersion(f"WAL format {found}; here this release reads {version}", 8)
    return int(epoch)


def has_no_header(data: Bytes) -> bool:
    """Whether it is cut short, or the beginning of one and then zeros."""
    begun = bytes(data[:HEADER_SIZE]).rstrip(b"\0")
    is_begun = len(begun) <= _HEADER.size and begun[: len(MAGIC)] == MAGIC[: len(begun)]
    return len(data) < HEADER_SIZE or is_begun


def is_unwritten(data: Bytes) -> bool:
    """Whether this is a file that was never fsynced, as a power cut leaves it: no header, and no intact frame."""
    return has_no_header(data) and not _good_frame_after(data, -1)


def pack_frame(sections: Iterable[Unpacked]) -> bytes:
    """One frame around the batches."""
    rows, parts, total = list[bytes](), list[Bytes](), 0
    for section in sections:
        crc, size = 0, 0
        for part in section.parts:
            crc, size = crc32c(part, crc), size + len(part)
        name = section.prefix.encode()
        rows += (_ROW.pack(section.epoch, size, crc, len(name)), name)
        parts += section.parts
        total += size
    directory = b"".join(rows)
    crc = crc32c(directory, crc32c(struct.pack("<II", len(directory), total)))
    return b"".join((_FRAME.pack(FRAME_MAGIC, len(directory), total, crc), directory, *parts))


def parse_frames(data: Bytes) -> tuple[list[Section], int]:
    """The sections of a file's frames, and how many bytes of the file are good: fewer than all means a torn last frame."""
    view = memoryview(data)
    sections: list[Section] = []
    position = HEADER_SIZE
    while position < len(view):
        frame = _frame_at(view, position)
        if frame is None or not all(section.is_sound for section in frame):
            if not _good_frame_after(data, position):
                break
            if frame is None:
                raise FormatError("a WAL frame before the end is damaged", position)
        sections += frame
        position = frame[-1].position + frame[-1].size
    return sections, position


def _frame_at(view: memoryview, position: int) -> list[Section] | None:
    """The sections of the frame there, all of them in the file; None if there is none."""
    if len(view) - position < FRAME_OVERHEAD:
        return None
    magic, directory_size, total, crc = _FRAME.unpack_from(view, position)
    begin = position + FRAME_OVERHEAD
    directory, body = view[begin : begin + directory_size], begin + directory_size
    if magic != FRAME_MAGIC or not directory_size or body + total > len(view):
        return None
    if crc32c(directory, crc32c(struct.pack("<II", directory_size, total))) != crc:
        return None
    sections, at = [], 0
    while at < directory_size:
        epoch, size, section_crc, name_size = _ROW.unpack_from(directory, at)
        at += _ROW.size + name_size
        prefix = bytes(directory[at - name_size : at]).decode()
        is_sound = crc32c(view[body : body + size]) == section_crc
        sections.append(Section(prefix, epoch, body, size, is_sound))
        body += size
    return sections


def _good_frame_after(data: Bytes, position: int) -> bool:
    def is_sound(view: memoryview, at: int) -> bool:
        frame = _frame_at(view, at)
        return frame is not None and all(section.is_sound for section in frame)

    return good_frame_after(data, position, FRAME_MAGIC, is_sound)


def good_frame_after(
    data: Bytes, position: int, magic: bytes, is_sound: Callable[[memoryview, int], bool]
) -> bool:
    """Whether any intact frame starts behind `position`: then the bad one is no torn tail."""
    plain = bytes(data)
    found = plain.find(magic, position + 1)
    while found != -1:
        if is_sound(memoryview(plain), found):
            return True
        found = plain.find(magic, found + 1)
    return False
