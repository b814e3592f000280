"""What a segment says beside its records: who owns the chain from here on, and whose appends its records are.

    size u32, CRC-32C u32 of all that follows
    then for each: tag u16, size u32, bytes

A segment that says nothing of the kind has no such area at all, and format version 1. Tags that a release does not know
are passed over: what must not be passed over needs a new format version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError
from logstore.format.lazy_numpy import np

_FRONT = struct.Struct("<II")
_PART = struct.Struct("<HI")
_OWNER = 1
_APPENDS = 2
_CLAIM = 3
_CLEANED = 4
_MARK = struct.Struct("<qq")
_SINCE = struct.Struct("<Q")


@cache
def _append_row() -> np.dtype[np.void]:
    return np.dtype([("id", "V16"), ("base_offset", "<i8"), ("count", "<u4")])


@dataclass(frozen=True, slots=True)
class AppendId:
    """One append among those in a segment: the id that it keeps for its whole life, and the offsets it was given."""

    id: bytes
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The segments behind this one are parts of entries of the lane, from its place `since` on."""

    lane: str
    since: int

    def pack(self) -> bytes:
        return _SINCE.pack(self.since) + self.lane.encode()

    @classmethod
    def parse(cls, data: bytes) -> Claim:
        return cls(data[_SINCE.size :].decode(), *_SINCE.unpack_from(data))


class Mark(NamedTuple):
    """The tombstones below the offset `until` were the last of their keys when a pass over the log ended, at `at_ms`."""

    until: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far compaction by key has come: below `until` no record is left that a later one below `until` replaces. `marks`,
    in order: which tombstones are there still, and since when nothing lies before them that they delete."""

    until: int = 0
    marks: tuple[Mark, ...] = ()

    def pack(self) -> bytes:
        return _SINCE.pack(self.until) + b"".join(_MARK.pack(*mark) for mark in self.marks)

    @classmethod
    def parse(cls, data: bytes) -> Cleaned:
        marks = tuple(Mark(*mark) for mark in _MARK.iter_unpack(data[_SINCE.size :]))
        return cls(_SINCE.unpack_from(data)[0], marks)


NOTHING_CLEANED = Cleaned()


@dataclass(frozen=True, slots=True)
class Extras:
    """`owner`: a document about the process that wrote the segment, or nothing. `claim`: only of a fence. `cleaned`: only of
    a manifest."""

    owner: bytes = b""
    appends: tuple[AppendId, ...] = ()
    claim: Claim | None = None
    cleaned: Cleaned = NOTHING_CLEANED

    def __bool__(self) -> bool:
        return bool(self.owner or self.appends or self.claim or self.cleaned.until)

    def pack(self) -> bytes:
        """No bytes at all if there is nothing to say."""
        parts: list[bytes] = []
        if self.owner:
            parts += (_PART.pack(_OWNER, len(self.owner)), self.owner)
        if self.appends:
            rows = np.array([(one.id, one.base_offset, one.count) for one in self.appends], _append_row())
            parts += (_PART.pack(_APPENDS, rows.nbytes), rows.tobytes())
        if self.claim is not None:
            claim = self.claim.pack()
            parts += (_PART.pack(_CLAIM, len(claim)), claim)
        if self.cleaned.until:
            cleaned = self.cleaned.pack()
            parts += (_PART.pack(_CLEANED, len(cleaned)), cleaned)
        content = b"".join(parts)
        return _FRONT.pack(len(content), crc32c(content)) + content if content else b""

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, position: int = 0) -> Extras:
        """From exactly the area's bytes. `position`: where they begin in the object, for errors."""
        if not len(data):
            return NO_EXTRAS
        content = memoryview(data)[_FRONT.size :]
        if len(data) < _FRONT.size or _FRONT.unpack_from(data) != (len(content), crc32c(content)):
            raise FormatError(
                "the checksum of what the segment says beside its records does not match", position
            )
        owner, at = b"", 0
        appends: tuple[AppendId, ...] = ()
        claim: Claim | None = None
        cleaned = NOTHING_CLEANED
        while at < len(content):
            tag, size = _PART.unpack_from(content, at)
            at += _PART.size
            part = content[at : at + size]
            at += size
            if tag == _OWNER:
                owner = bytes(part)
            elif tag == _APPENDS:
                appends = tuple(AppendId(*row) for row in np.frombuffer(part, _append_row()).tolist())
            elif tag == _CLAIM:
                claim = Claim.parse(bytes(part))
            elif tag == _CLEANED:
                cleaned = Cleaned.parse(bytes(part))
        return cls(owner, appends, claim, cleaned)

    @staticmethod
    def size_at(data: bytes | bytearray | memoryview, position: int) -> int:
        """How large the area is that begins there: for a segment whose footer is damaged."""
        if len(data) - position < _FRONT.size:
            raise FormatError("the segment ends before it has said everything", position)
        return _FRONT.size + int(_FRONT.unpack_from(data, position)[0])


NO_EXTRAS = Extras()
