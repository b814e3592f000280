"""An entry of a lane: one object that commits the records of many partitions.

    header     fixed size: what kind it is, its place in the lane, its id and the id of the entry before it
    copy       of the directory, zstd, with a checksum of its own; of data without the note. Releases before it have none
    parts      for each partition a whole segment (`segment`), back to back, verbatim
    directory  topics; a fixed-width row for each part; a row for each claim that ends here; a note: who ended it, or
               where the chains ended whose first parts are here (`claim_base`). A transfer has no parts: its rows are the
               fences with which the claims that it ends go on, and its note says in which lane
    footer     fixed size: a copy of the header, counts, sizes, checksums

An *ask* is a void entry by which another process asks the owner to end claims: data without parts, which names `ASK` as the
entry before it, with a row for each claim; its note says of whom it was judged that he may be stopped, and who asks.

A part is an ordinary segment in every byte, with a header, an index and checksums of its own: who reads a partition reads a
slice of the entry and needs to know nothing of lanes, and damage in a part is found by those alone who read it. The tail
alone (footer and directory) tells what the entry holds of whom. If it is damaged, or was cut off, the front tells the same
(`Entry.parse_front`), so no single damage hides whose records are here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, starmap
from typing import NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.extras import Claim
from logstore.format.stored.pages import in_one_piece
from logstore.format.stored.segment import Bytes

FORMAT_VERSION = 1
MAGIC = b"LOGLANE\n"

_HEADER = struct.Struct("<8sHBBIQ16s16sq")
_CRC = struct.Struct("<I")
HEADER_SIZE = _HEADER.size + _CRC.size
_FOOTER = struct.Struct(
    "<IIIIQQI"
)  # topics, parts, seals, size of the note, of the directory, of the object; CRC-32C of the directory
_END = struct.Struct("<I8s")
_COPY = struct.Struct("<8sI")  # magic, size of the zstd part; behind that its CRC-32C
_COPY_MAGIC = b"LOGLDIR\n"
_COPY_MAX = 1 << 30
FOOTER_SIZE = HEADER_SIZE + _FOOTER.size + _END.size

_PART_ROW = struct.Struct("<IIQQIqqqQQQqq")
"""Topic, partition, epoch, seq, flags, base offset, end offset, reserved until, position, size, records,
min and max timestamp in ms."""

_POSITION, _POSITION_AT = struct.Struct("<Q"), struct.calcsize("<IIQQIqqq")
_SEAL_ROW = struct.Struct("<IIQ")
"""Topic, partition, epoch."""


_new_tuple = tuple.__new__  # half the time of Part(…)
_NAME = struct.Struct("<H")
_COUNTS = struct.Struct("<IIII")  # topics, parts, seals, size of the note
_NAMES_GUESS = 4096
FIRST = bytes(16)
"""What the first entry of a lane names as the one before it."""
ASK = b"\0" * 13 + b"ask"
"""What an ask names as the one before it: no entry has this id, so an ask is void wherever it stands, for every release."""


class EntryKind(IntEnum):
    """What an entry is for."""

    DATA = 0
    SEAL = 1
    """Some claims end here: what the lane's owner puts behind it no longer counts for their partitions. The owner itself may
    end claims with data, behind the parts."""
    FENCE = 2
    """The lane ends here, and all its claims with it."""
    ADOPTION = 3
    """The next life of a named lane begins here. All claims go on; what the life before puts behind it is void."""
    TRANSFER = 4
    """Some claims end here and go on in another lane. Of each that nobody has ended before, the row says the fence of the
    next epoch, which has the place behind the last part and is nowhere else."""


_KINDS = frozenset(EntryKind)


class ClaimKey(NamedTuple):
    """Whose records: a partition, by the name of its folder (`topics/‹topic›/‹incarnation›/‹partition›/`), in one epoch."""

    prefix: str
    epoch: int


class Part(NamedTuple):
    """One partition's segment in an entry. `seq` is its place in the chain of that partition, `flags` are the segment's."""

    claim: ClaimKey
    seq: int
    flags: int
    base_offset: int
    end_offset: int
    reserved_until: int
    position: int
    size: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def fence_row(claim: ClaimKey, seq: int, flags: int, offset: int, reserved_until: int) -> Part:
    """What a transfer says of a claim that begins: a fence, of which there are no bytes."""
    return Part(claim, seq, flags, offset, offset, reserved_until, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """`id` is random and new for each attempt at a new place; `prev` is the id of the last entry before it that counts.
    `known_until`: who made it knew what is in all places below, so an empty one among them was emptied; 0: not said."""

    kind: EntryKind
    seq: int
    id: bytes
    prev: bytes
    created_at_ms: int
    known_until: int = 0

    @property
    def is_ask(self) -> bool:
        return self.prev == ASK

    def may_know(self, seq: int) -> bool:
        """Whether its maker may have known what was in that place."""
        return not self.is_ask and (self.known_until == 0 or self.known_until > seq)

    def pack(self) -> bytes:
        behind = self.seq - self.known_until + 1 if self.known_until else 0
        fields = _HEADER.pack(
            MAGIC, FORMAT_VERSION, self.kind, 0, behind, self.seq, self.id, self.prev, self.created_at_ms
        )
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def parse(cls, data: Bytes) -> EntryHeader:
        if len(data) < HEADER_SIZE:
            raise FormatError(
                f"a lane entry's header has {HEADER_SIZE} bytes, here are {len(data)}", len(data)
            )
        magic, version, kind, _, behind, seq, identity, prev, created = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise FormatError("no lane entry: the magic is missing", 0)
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(bytes(data[: _HEADER.size])):
            raise FormatError("the lane entry's header does not match its checksum", 0)
        if version != FORMAT_VERSION or kind not in _KINDS:
            raise UnsupportedVersion(
                f"lane entry format {version}, kind {kind}; this release reads {FORMAT_VERSION}", 8
            )
        known_until = max(0, seq - behind + 1) if behind else 0
        return cls(EntryKind(kind), seq, identity, prev, created, known_until)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the tail of an entry tells. `note`: of a fence, a seal or an adoption a document about the process that made it,
    of data the bases of claims that begin here; or nothing."""

    header: EntryHeader
    parts: tuple[Part, ...] = ()
    seals: tuple[ClaimKey, ...] = ()
    note: bytes = b""

    @property
    def owner(self) -> bytes:
        """Who made a fence, a seal or an ask."""
        if self.header.kind is EntryKind.TRANSFER:
            return _parse_transfer(self.note)[1]
        if self.header.is_ask:
            return _parse_ask(self.note)[1]
        return b"" if self.header.kind is EntryKind.DATA else self.note

    @property
    def successor(self) -> Claim:
        """Of a transfer: where the claims go on."""
        return _parse_transfer(self.note)[0]

    @property
    def judged(self) -> bytes:
        """Of an ask: who had adopted the lane when its maker judged whether he may stop that one."""
        return _parse_ask(self.note)[0]

    @property
    def bases(self) -> bytes:
        """`Bases`, packed, of the claims that begin here."""
        return self.note if self.header.kind is EntryKind.DATA and not self.header.is_ask else b""

    @classmethod
    def parse(cls, tail: Bytes) -> Entry:
        """From the last bytes of the object: as many as `tail_needed` says, or more."""
        header, topics, parts, seals, note_size, size, _, crc = _footer(tail)
        end = len(tail) - FOOTER_SIZE
        directory = bytes(tail[end - size : end]) if size <= end else b""
        if len(directory) != size or crc32c(directory) != crc:
            raise FormatError("the lane entry's directory is damaged", None)
        return cls._from(header, directory, (topics, parts, seals, note_size), 0)

    @classmethod
    def parse_front(cls, data: Bytes) -> Entry:
        """From the whole object, or what is left of it, if its end does not tell. Of data without its note."""
        header = EntryHeader.parse(data)
        magic, size = (
            _COPY.unpack_from(data, HEADER_SIZE) if len(data) >= HEADER_SIZE + _COPY.size else (b"", 0)
        )
        if magic != _COPY_MAGIC:
            raise FormatError("the lane entry has no second directory, or that is damaged, too", HEADER_SIZE)
        at = HEADER_SIZE + _COPY.size
        packed = bytes(data[at : at + size])
        if len(data) < at + size + _CRC.size or _CRC.unpack_from(data, at + size)[0] != crc32c(packed):
            raise FormatError("the lane entry's second directory is damaged", at)
        body = decompress(ZSTD, packed, max_size=_COPY_MAX)
        topics, parts, seals, note_size = _COUNTS.unpack_from(body)
        counts = topics, parts, seals, note_size
        return cls._from(header, body[_COUNTS.size :], counts, at + size + _CRC.size)

    @classmethod
    def _from(
        cls, header: EntryHeader, directory: bytes, counts: tuple[int, int, int, int], start: int
    ) -> Entry:
        """`start`: where the positions in its rows count from."""
        topics, parts, seals, note_size = counts
        names: list[str] = []
        at = 0
        for _ in range(topics):
            (length,) = _NAME.unpack_from(directory, at)
            at += _NAME.size + length
            names.append(directory[at - length : at].decode())
        seals_at = at + parts * _PART_ROW.size
        note_at = seals_at + seals * _SEAL_ROW.size
        if note_at + note_size != len(directory):
            raise FormatError("the lane entry's directory does not fit its counts", None)
        part_rows = _PART_ROW.iter_unpack(directory[at:seals_at])
        if start:
            part_rows = ((*row[:8], row[8] + start, *row[9:]) for row in part_rows)
        if header.kind is EntryKind.TRANSFER:
            _parse_transfer(directory[note_at:])
        if header.is_ask:
            _parse_ask(directory[note_at:])
        return cls(
            header,
            tuple(
                Part(ClaimKey(f"{names[topic]}{partition}/", epoch), *rest)
                for topic, partition, epoch, *rest in part_rows
            ),
            tuple(
                ClaimKey(f"{names[topic]}{partition}/", epoch)
                for topic, partition, epoch in _SEAL_ROW.iter_unpack(directory[seals_at:note_at])
            ),
            directory[note_at:],
        )


def transfer_note(successor: Claim, owner: bytes) -> bytes:
    """The note of a transfer."""
    packed = successor.pack()
    return _NAME.pack(len(packed)) + packed + owner


def _parse_transfer(note: bytes) -> tuple[Claim, bytes]:
    size = _NAME.unpack_from(note)[0] if len(note) >= _NAME.size else len(note)
    end = _NAME.size + size
    if end > len(note) or size < 8:
        raise FormatError("the lane entry does not say where its claims go on", None)
    return Claim.parse(note[_NAME.size : end]), note[end:]


def _parse_ask(note: bytes) -> tuple[bytes, bytes]:
    size = _NAME.unpack_from(note)[0] if len(note) >= _NAME.size else len(note)
    if _NAME.size + size > len(note):
        raise FormatError("the lane entry does not say who asks", None)
    return note[_NAME.size : _NAME.size + size], note[_NAME.size + size :]


def tail_needed(tail: Bytes) -> int:
    """How many of the object's last bytes `Entry.parse` needs."""
    return FOOTER_SIZE + int(_footer(tail)[5])


def tail_for(parts: int) -> int:
    """How many of an object's last bytes tell of so many parts, of few topics: a guess before the first look."""
    return FOOTER_SIZE + parts * _PART_ROW.size + _NAMES_GUESS


def object_size(tail: Bytes) -> int:
    """How large the object is that ends with these bytes."""
    return int(_footer(tail)[6])


def _footer(tail: Bytes) -> tuple[EntryHeader, int, int, int, int, int, int, int]:
    if len(tail) < FOOTER_SIZE:
        raise FormatError(f"a lane entry's footer has {FOOTER_SIZE} bytes, here are {len(tail)}", len(tail))
    footer = bytes(tail[-FOOTER_SIZE:])
    crc, magic = _END.unpack_from(footer, FOOTER_SIZE - _END.size)
    if magic != MAGIC or crc != crc32c(footer[: -_END.size]):
        raise FormatError("the lane entry's end is missing or damaged", None)
    return (EntryHeader.parse(footer), *_FOOTER.unpack_from(footer, HEADER_SIZE))


class NewPart(NamedTuple):
    """A segment that is to go into an entry, in pieces, and what its row says beside where it lies."""

    claim: ClaimKey
    seq: int
    flags: int
    base_offset: int
    end_offset: int
    reserved_until: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    size: int
    pieces: Sequence[Bytes]


def build_transfer(
    header: EntryHeader, fences: Sequence[Part], successor: Claim, owner: bytes
) -> tuple[memoryview, Entry]:
    """Each of the claims before these ends, and goes on in the lane of `successor`."""
    parts = [NewPart(*fence[:6], *fence[8:], 0, ()) for fence in fences]
    seals = [ClaimKey(fence.claim.prefix, fence.claim.epoch - 1) for fence in fences]
    return build_entry(header, parts, seals, transfer_note(successor, owner))


def build_ask(
    seq: int, name: bytes, now_ms: int, claims: Sequence[ClaimKey], judged: bytes, owner: bytes
) -> tuple[EntryHeader, memoryview]:
    """It says nothing of the places before it, of which its maker may know nothing."""
    header = EntryHeader(EntryKind.DATA, seq, name, ASK, now_ms)
    return header, build_entry(header, [], claims, _NAME.pack(len(judged)) + judged + owner)[0]


def build_entry(
    header: EntryHeader, parts: Sequence[NewPart], seals: Sequence[ClaimKey] = (), note: bytes = b""
) -> tuple[memoryview, Entry]:
    """The whole object, in one piece, read-only, and what its tail says."""
    topics: dict[str, int] = {}

    def split(claim: ClaimKey) -> tuple[int, int, int]:
        prefix, epoch = claim
        topic, _, partition = prefix[:-1].rpartition("/")
        return topics.setdefault(topic, len(topics)), int(partition), epoch

    position, rows = 0, []
    for claim, seq, flags, base, end, reserved, records, low_ms, high_ms, size, _ in parts:
        rows.append(
            (*split(claim), seq, flags, base, end, reserved, position, size, records, low_ms, high_ms)
        )
        position += size
    seal_rows = b"".join(_SEAL_ROW.pack(*split(claim)) for claim in seals)
    names = b"".join(_NAME.pack(len(name)) + name for name in (f"{topic}/".encode() for topic in topics))
    has_bases = header.kind is EntryKind.DATA and not header.is_ask
    kept = b"" if has_bases else note  # the bases can be done without
    packed = b"".join(starmap(_PART_ROW.pack, rows))
    copy = _copy(_COUNTS.pack(len(topics), len(parts), len(seals), len(kept)), names, packed, seal_rows, kept)
    start = HEADER_SIZE + len(copy)
    placed = [
        _new_tuple(Part, (part[0], *row[3:8], row[8] + start, *row[9:]))
        for part, row in zip(parts, rows, strict=True)
    ]
    directory = bytearray().join((names, packed, seal_rows, note))
    for at, part in enumerate(placed):
        _POSITION.pack_into(directory, len(names) + at * _PART_ROW.size + _POSITION_AT, part.position)
    size = start + position + len(directory) + FOOTER_SIZE
    front = header.pack()
    footer = front + _FOOTER.pack(
        len(topics), len(parts), len(seals), len(note), len(directory), size, crc32c(directory)
    )
    footer += _END.pack(crc32c(footer), MAGIC)
    pieces: list[Bytes] = [
        front,
        copy,
        *chain.from_iterable([part.pieces for part in parts]),
        directory,
        footer,
    ]
    return in_one_piece(pieces, size), Entry(header, tuple(placed), tuple(seals), note)


def _copy(*directory: bytes) -> bytes:
    packed = compress(ZSTD, b"".join(directory))
    return _COPY.pack(_COPY_MAGIC, len(packed)) + packed + _CRC.pack(crc32c(packed))


def check_whole(data: Bytes) -> Entry:
    """Every byte outside of the parts: both directories say the same, and so do the headers. For `verify`; an entry of
    releases before has one directory."""
    entry = Entry.parse(data)
    if object_size(data) != len(data):
        raise FormatError(
            f"the lane entry says that it has {object_size(data)} bytes, here are {len(data)}", None
        )
    if EntryHeader.parse(data) != entry.header:
        raise FormatError("the lane entry's header and footer differ", 0)
    starts = [part.position for part in entry.parts]
    if min(starts, default=len(data) - tail_needed(data)) > HEADER_SIZE:
        front = Entry.parse_front(data)
        if (front.parts, front.seals) != (entry.parts, entry.seals):
            raise FormatError("the lane entry's two directories differ", HEADER_SIZE)
    return entry
