"""What a segment says beside its records: who owns the chain from here on, and whose appends its records are.

    size u32, CRC-32C u32 of all that follows
    then for each: tag u16, size u32, bytes

A segment that says nothing of the kind has no such area at all, and format version 1. Tags that a release does not know
are passed over: what must not be passed over needs a new format version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from logstore.format.errors import FormatError

_FRONT = struct.Struct("<II")
_PART = struct.Struct("<HI")
_OWNER = 1
_APPENDS = 2
_CLAIM = 3
_SINCE = struct.Struct("<Q")
_APPEND_ROW = np.dtype([("id", "V16"), ("base_offset", "<i8"), ("count", "<u4")])


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


@dataclass(frozen=True, slots=True)
class Extras:
    """`owner`: a document about the process that wrote the segment, or nothing. `claim`: only of a fence."""

    owner: bytes = b""
    appends: tuple[AppendId, ...] = ()
    claim: Claim | None = None

    def __bool__(self) -> bool:
        return bool(self.owner or self.appends or self.claim)

    def pack(self) -> bytes:
        """No bytes at all if there is nothing to say."""
        parts: list[bytes] = []
        if self.owner:
            parts += (_PART.pack(_OWNER, len(self.owner)), self.owner)
        if self.appends:
            rows = np.array([(one.id, one.base_offset, one.count) for one in self.appends], _APPEND_ROW)
            parts += (_PART.pack(_APPENDS, rows.nbytes), rows.tobytes())
        if self.claim is not None:
            claim = self.claim.pack()
            parts += (_PART.pack(_CLAIM, len(claim)), claim)
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
        while at < len(content):
            tag, size = _PART.unpack_from(content, at)
            at += _PART.size
            part = content[at : at + size]
            at += size
            if tag == _OWNER:
                owner = bytes(part)
            elif tag == _APPENDS:
                appends = tuple(AppendId(*row) for row in np.frombuffer(part, _APPEND_ROW).tolist())
            elif tag == _CLAIM:
                claim = Claim.parse(bytes(part))
        return cls(owner, appends, claim)

    @staticmethod
    def size_at(data: bytes | bytearray | memoryview, position: int) -> int:
        """How large the area is that begins there: for a segment whose footer is damaged."""
        if len(data) - position < _FRONT.size:
            raise FormatError("the segment ends before it has said everything", position)
        return _FRONT.size + int(_FRONT.unpack_from(data, position)[0])


NO_EXTRAS = Extras()
