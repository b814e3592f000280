"""A manifest: a checkpoint of a partition's chain, so that opening it does not read every segment.

It is never the commit point: a segment counts because its object exists. A manifest that is missing, old or damaged costs
requests, not records. Every field of it can be computed again from the chain, except what maintenance decided (the low
watermark, which segments were merged).

    front     fixed size, with a checksum of its own: version counter, nonce, the horizon below which places may have been
              emptied, the chain's state after `next_seq - 1`, row counts. One small GET of it tells the horizon
    rows      zstd of seven int64 columns, one after the other: first seq, last seq, base offset, end offset, size,
              min and max timestamp (a column compresses far better than a row)
    merged    the first seq and the identity (16 bytes) of each merged object, in that order
    retired   the objects that no row names any more: see `retired`
    extras    who owns the chain, in which lane it goes on, how far compaction by key has come (`extras`), if any of
              these is known; the format version is 4 then
    crc       CRC-32C of all before it, and the magic again
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.extras import NOTHING_CLEANED, Claim, Cleaned, Extras
from logstore.format.stored.retired import Retired
from logstore.format.stored.segment import Bytes, WriterMode

FORMAT_VERSION = 3
"""In 1 the retired objects were listed by name; 2 had no horizon and no nonce. Both are read, and not written any more."""
EXTRAS_VERSION = 4
"""Of a manifest that says who owns the chain, or in which lane it goes on: a release that knows nothing of that must not go
on behind it."""
MAGIC = b"LOGMAN\r\n"

_FRONT = struct.Struct("<8sHBBIQQQqqqqQQQQ")
_HORIZON = struct.Struct("<Q8sI")  # collected until, nonce, CRC-32C of the front before it
FRONT_SIZE = _FRONT.size + _HORIZON.size
_CRC = struct.Struct("<I")
_END = struct.Struct("<I8s")
_COLUMNS = 7
_IDENTITY_SIZE = 16
_CLOSED = 1
_ROWS_MAX = 100_000_000
_RETIRED = {
    1: Retired.parse_names,
    2: Retired.parse,
    FORMAT_VERSION: Retired.parse,
    EXTRAS_VERSION: Retired.parse,
}


@dataclass(slots=True)
class SegmentTable:
    """The segments that hold records, in offset order, as columns: 100,000 of them open in milliseconds.

    A row whose seq is in `merged` is an object written by maintenance; the value is its identity.
    Rows are only ever added at the end; maintenance builds a new table.
    """

    first_seq: array[int] = field(default_factory=lambda: array("q"))
    last_seq: array[int] = field(default_factory=lambda: array("q"))
    base_offset: array[int] = field(default_factory=lambda: array("q"))
    end_offset: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    min_timestamp_ms: array[int] = field(default_factory=lambda: array("q"))
    max_timestamp_ms: array[int] = field(default_factory=lambda: array("q"))
    merged: dict[int, str] = field(default_factory=dict)
    placed: dict[int, str] = field(default_factory=dict)
    """The rows that are parts of a lane's entries, by their seq: where they lie. No manifest holds such a row."""

    def __len__(self) -> int:
        return len(self.base_offset)

    def extend(self, source: SegmentTable, start: int, stop: int) -> None:
        """Add the rows of `source` from `start` up to, not including, `stop`, which lie behind all of ours."""
        for column, more in zip(self.columns(), source.columns(), strict=True):
            column.extend(more[start:stop])
        if start < stop and (source.merged or source.placed):
            first, last = source.first_seq[start], source.first_seq[stop - 1]
            for ours, theirs in ((self.merged, source.merged), (self.placed, source.placed)):
                ours.update({seq: name for seq, name in theirs.items() if first <= seq <= last})

    def columns(self) -> tuple[array[int], ...]:
        return (
            self.first_seq,
            self.last_seq,
            self.base_offset,
            self.end_offset,
            self.size,
            self.min_timestamp_ms,
            self.max_timestamp_ms,
        )


@dataclass(slots=True)
class Manifest:
    """The chain up to (not including) `next_seq`.

    `version` grows by one with each manifest of the partition. `end_offset` is where the last segment ends,
    `reserved_until` what it reserves; `source_upper` is −1 unless replicated writers have been here. `retired` is what
    was replaced or expired, and when.

    `collected_until`: places below it may have been emptied by garbage collection; none from it on was. It never falls, and
    is in the store before anything is emptied. `nonce` is random: no two manifests are the same. `owner`, `closed`
    and `claim` are those of the chain's tail. `cleaned`: how far compaction by key has come; if that gets lost, it begins
    again.
    """

    version: int
    next_seq: int
    epoch: int
    mode: WriterMode
    low_watermark: int
    end_offset: int
    reserved_until: int
    source_upper: int
    table: SegmentTable
    retired: Retired = field(default_factory=Retired)
    collected_until: int = 0
    nonce: bytes = bytes(8)
    owner: bytes = b""
    closed: bool = False
    claim: Claim | None = None
    cleaned: Cleaned = NOTHING_CLEANED

    def pack(self) -> bytes:
        table = self.table
        assert not table.placed, "what is in a lane is not in a manifest"
        extras = Extras(owner=self.owner, claim=self.claim, cleaned=self.cleaned).pack()
        rows = compress(ZSTD, b"".join(column.tobytes() for column in table.columns()))
        identities = b"".join(bytes.fromhex(table.merged[seq]) for seq in sorted(table.merged))
        marks = array("q", sorted(table.merged)).tobytes()
        retired = self.retired.pack()
        front = _FRONT.pack(
            MAGIC,
            EXTRAS_VERSION if extras else FORMAT_VERSION,
            self.mode,
            _CLOSED if self.closed else 0,
            len(extras),
            self.version,
            self.next_seq,
            self.epoch,
            self.low_watermark,
            self.end_offset,
            self.reserved_until,
            self.source_upper,
            len(table),
            len(table.merged),
            len(rows),
            len(retired),
        )
        front += _HORIZON.pack(self.collected_until, self.nonce, 0)[:-4]
        front += _CRC.pack(crc32c(front))
        body = front + rows + marks + identities + retired + extras
        return body + _END.pack(crc32c(body), MAGIC)

    @classmethod
    def parse(cls, data: Bytes) -> Manifest:
        if len(data) < _FRONT.size + _END.size:
            raise FormatError("the manifest is cut short", len(data))
        crc, magic = _END.unpack_from(data, len(data) - _END.size)
        front = _FRONT.unpack_from(data)
        if front[0] != MAGIC or magic != MAGIC:
            raise FormatError("no manifest: the magic is missing", 0)
        if crc != crc32c(memoryview(data)[: -_END.size]):
            raise FormatError("the manifest's checksum does not match", 0)
        if front[1] not in _RETIRED:
            raise UnsupportedVersion(
                f"manifest format {front[1]}; this release reads up to {EXTRAS_VERSION}", 8
            )
        count, merged_count, size, retired_size = front[12:16]
        rows_at = _FRONT.size if front[1] < 3 else FRONT_SIZE
        marks_at = rows_at + size
        identities_at = marks_at + merged_count * 8
        retired_at = identities_at + merged_count * _IDENTITY_SIZE
        extras_at = retired_at + retired_size
        if count > _ROWS_MAX or extras_at + front[4] + _END.size != len(data):
            raise FormatError("the manifest's counts do not fit its size", _FRONT.size)
        rows = _inflate(bytes(data[rows_at:marks_at]), count * _COLUMNS * 8)
        marks = array("q")
        marks.frombytes(data[marks_at:identities_at])
        names = bytes(data[identities_at:retired_at])
        merged = {
            seq: names[place * _IDENTITY_SIZE : (place + 1) * _IDENTITY_SIZE].hex()
            for place, seq in enumerate(marks)
        }
        table = SegmentTable(merged=merged)
        for number, column in enumerate(table.columns()):
            column.frombytes(rows[number * count * 8 : (number + 1) * count * 8])
        collected_until, nonce = unknown_horizon(front[6]), bytes(8)
        if front[1] >= 3:
            collected_until, nonce, _ = _HORIZON.unpack_from(data, _FRONT.size)
        extras = Extras.parse(data[extras_at : -_END.size], extras_at)
        return cls(
            version=front[5],
            next_seq=front[6],
            epoch=front[7],
            mode=WriterMode(front[2]),
            low_watermark=front[8],
            end_offset=front[9],
            reserved_until=front[10],
            source_upper=front[11],
            table=table,
            retired=_RETIRED[front[1]](bytes(data[retired_at:extras_at])),
            collected_until=collected_until,
            nonce=nonce,
            owner=extras.owner,
            closed=bool(front[3] & _CLOSED),
            claim=extras.claim,
            cleaned=extras.cleaned,
        )


def unknown_horizon(next_seq: int) -> int:
    """The horizon of a chain of which nobody noted what was emptied: everything may have been but its newest place."""
    return max(0, next_seq - 1)


class Front(NamedTuple):
    """What the first `FRONT_SIZE` bytes alone say."""

    version: int
    next_seq: int
    low_watermark: int
    collected_until: int


def parse_front(front: Bytes) -> Front:
    """`UnsupportedVersion` if the format has no horizon there."""
    if len(front) < FRONT_SIZE:
        raise FormatError("the manifest is cut short", len(front))
    fields = _FRONT.unpack_from(front)
    if fields[0] != MAGIC:
        raise FormatError("no manifest: the magic is missing", 0)
    if fields[1] not in (FORMAT_VERSION, EXTRAS_VERSION):
        raise UnsupportedVersion(
            f"manifest format {fields[1]}; this release finds a horizon in {FORMAT_VERSION}", 8
        )
    horizon, _, crc = _HORIZON.unpack_from(front, _FRONT.size)
    if crc != crc32c(bytes(front[: FRONT_SIZE - _CRC.size])):
        raise FormatError("the checksum of the manifest's front does not match", 0)
    return Front(fields[5], fields[6], fields[8], horizon)


def _inflate(packed: bytes, size: int) -> bytes:
    plain = decompress(ZSTD, packed, max_size=size)
    if len(plain) != size:
        raise FormatError(f"the manifest's rows have {len(plain)} bytes, not {size}", _FRONT.size)
    return plain
