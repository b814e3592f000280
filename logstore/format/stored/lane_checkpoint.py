"""A checkpoint of a lane: what its entries up to a place hold, so that nobody has to read them all.

front     fixed size, with a checksum of its own: version counter, nonce, the place below which entries may have been
          split and emptied, the place that it reaches to, the id of the last entry before that. One small GET tells
body      zstd of: the places below that were kept; the claims; the parts that no partition's manifest holds yet; who
          adopted the lane; which claims went on in other lanes, with which fences
bases     where the partitions' chains ended before their parts, if anybody said so (`claim_base`)
crc       CRC-32C of all before it, and the magic again
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any, NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.checksum import crc32c
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.entry import FIRST, ClaimKey, Part, fence_row
from logstore.format.stored.extras import Claim
from logstore.format.stored.part_rows import ROW_SIZE, PartRows, pack_columns, parse_columns
from logstore.format.stored.segment import Bytes

FORMAT_VERSION = 2
"""In 1 there were no bases, and a claim that had ended may have been gone on behind."""
ADOPTED_VERSION = 3
"""Somebody has adopted the lane, and is named: releases that do not know this know no adoptions either."""
LOST_VERSION = 4
"""Entries before its place could not be read: releases that do not know this would not say what may be lost."""
TRANSFERRED_VERSION = 5
"""Claims went on in other lanes, and it is said where."""
MAGIC = b"LOGLCP\r\n"

_FRONT = struct.Struct("<8sHHIQ8sQQ16sQIIIIQI")
_CRC = struct.Struct("<I")
FRONT_SIZE = _FRONT.size + _CRC.size
_END = struct.Struct("<I8s")

_CLAIM_ROW = struct.Struct("<IIQQqqI")
"""Topic, partition, epoch, next seq, end offset, reserved until, what has become of it."""

_NUMBER = struct.Struct("<I")  # of a part's claim: a column before those of `part_rows`
_SPLIT_ROW = struct.Struct("<QQ")
_MOVED_ROW = struct.Struct("<IQIqqIQI")
"""Of a claim that went on in another lane: claim, seq, flags, offset, reserved until, lane, since, owner."""
_MOVED_SIZES = struct.Struct("<III")  # rows, bytes of the lanes' names, owners
_BODY_MAX = 1 << 30
_SEALED, _LEFT, _BEGUN, _IN_DOUBT = 1, 2, 4, 8


class Moved(NamedTuple):
    """A claim went on in another lane: the fence with the next one, what that says, and who made it."""

    fence: Part
    claim: Claim
    owner: bytes


class CheckpointedClaim(NamedTuple):
    """Where the chain of the claim's partition was before the parts that follow: its next place and offsets. `is_sealed`:
    nothing follows in the lane. `is_begun`: the lane holds nothing of it yet, and whether it is committed only the
    partition's own chain tells. `is_left`: a seal names it, and the chain may go on elsewhere. `moved`: in which lane, if
    it is not the partition's own chain."""

    key: ClaimKey
    next_seq: int
    end_offset: int
    reserved_until: int
    is_sealed: bool
    is_begun: bool = False
    is_left: bool = False
    moved: Moved | None = None


class Split(NamedTuple):
    """All entries below `until` were split by then."""

    until: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class LaneCheckpoint:
    """The lane up to (not including) `next_seq`. `split_until`: data entries below it may have been deleted, and their
    records are in the manifests of their partitions; `kept` are the places below it that hold a seal, a fence or a void
    entry, which stay. `edge`: the id of the last entry that counts. `ended_before`: the place behind the last fence, which
    has ended all claims that began before it. `splits`: when what was split, for whoever deletes it. `owner`: a document
    about the process that adopted the lane last, or nothing. `bases`: `Bases`, packed, because few need them. `lost`: places
    whose entries could not be read, and `in_doubt` the claims that may have had their last records there."""

    version: int = 0
    nonce: bytes = bytes(8)
    split_until: int = 0
    next_seq: int = 0
    edge: bytes = FIRST
    kept: tuple[int, ...] = ()
    claims: tuple[CheckpointedClaim, ...] = ()
    parts: tuple[PartRows, ...] = ()
    ended_before: int = 0
    splits: tuple[Split, ...] = ()
    owner: bytes = b""
    bases: bytes = b""
    lost: tuple[int, ...] = ()
    in_doubt: frozenset[ClaimKey] = frozenset()

    @property
    def _format(self) -> int:
        """The lowest that says it all: an older release reads what it can."""
        if any(claim.moved is not None for claim in self.claims):
            return TRANSFERRED_VERSION
        return LOST_VERSION if self.lost else ADOPTED_VERSION if self.owner else FORMAT_VERSION

    def pack(self) -> bytes:
        topics: dict[str, int] = {}
        numbers = {claim.key: number for number, claim in enumerate(self.claims)}

        def split(key: ClaimKey) -> tuple[int, int, int]:
            topic, partition = key.prefix[:-1].rsplit("/", 1)
            return topics.setdefault(topic + "/", len(topics)), int(partition), key.epoch

        claims = [
            (
                *split(one.key),
                one.next_seq,
                one.end_offset,
                one.reserved_until,
                _SEALED * one.is_sealed
                | _BEGUN * one.is_begun
                | _LEFT * one.is_left
                | _IN_DOUBT * (one.key in self.in_doubt),
            )
            for one in self.claims
        ]
        names = "\n".join(topics).encode()
        moved = _pack_moved(self.claims)
        part_claims = [number for rows in self.parts for number in repeat(numbers[rows.claim], len(rows))]
        body = compress(
            ZSTD,
            b"".join(
                (
                    struct.pack(f"<{len(self.kept)}Q", *self.kept),
                    b"".join(starmap(_SPLIT_ROW.pack, self.splits)),
                    names,
                    b"".join(starmap(_CLAIM_ROW.pack, claims)),
                    struct.pack(f"<{len(part_claims)}I", *part_claims),
                    pack_columns(self.parts),
                    self.owner,
                    moved,
                    struct.pack(f"<{len(self.lost)}Q", *self.lost),
                )
            ),
        )
        front = _FRONT.pack(
            MAGIC,
            self._format,
            len(self.owner),
            len(self.bases),
            self.version,
            self.nonce,
            self.split_until,
            self.next_seq,
            self.edge,
            len(body),
            len(self.kept),
            len(names),
            len(claims),
            len(part_claims),
            self.ended_before,
            len(self.splits),
        )
        front += _CRC.pack(crc32c(front))
        data = front + body + self.bases
        return data + _END.pack(crc32c(data), MAGIC)

    @classmethod
    def parse(cls, data: Bytes) -> LaneCheckpoint:
        split_until = parse_split_until(data)
        front = _FRONT.unpack_from(data)
        version, nonce, edge = front[4], front[5], front[8]
        body_size, kept_count, names_size, claim_count, part_count = front[9:14]
        body_end = FRONT_SIZE + body_size
        end = body_end + front[3]
        if len(data) != end + _END.size or _END.unpack_from(data, end) != (crc32c(data[:end]), MAGIC):
            raise FormatError("the lane checkpoint's checksum does not match", end)
        body = decompress(ZSTD, bytes(data[FRONT_SIZE:body_end]), max_size=_BODY_MAX)
        splits_at = kept_count * 8
        names_at = splits_at + front[15] * _SPLIT_ROW.size
        claims_at = names_at + names_size
        at = claims_at + claim_count * _CLAIM_ROW.size
        parts_at = at + part_count * _NUMBER.size
        parts_end = parts_at + part_count * ROW_SIZE
        if parts_end + front[2] > len(body):
            raise FormatError("the lane checkpoint's counts do not fit its size", FRONT_SIZE)
        kept = struct.unpack_from(f"<{kept_count}Q", body)
        splits = tuple(Split(*row) for row in _SPLIT_ROW.iter_unpack(body[splits_at:names_at]))
        topics = body[names_at:claims_at].decode().split("\n")
        rows = list(_CLAIM_ROW.iter_unpack(body[claims_at:at]))
        claims = [
            CheckpointedClaim(
                ClaimKey(f"{topics[topic]}{partition}/", epoch),
                next_seq,
                end_offset,
                reserved,
                bool(state & _SEALED),
                bool(state & _BEGUN),
                bool(state & (_LEFT if front[1] > 1 else _SEALED)),
            )
            for topic, partition, epoch, next_seq, end_offset, reserved, state in rows
        ]
        part_claims = [claims[number].key for (number,) in _NUMBER.iter_unpack(body[at:parts_at])]
        owner, at = body[parts_end : parts_end + front[2]], parts_end + front[2]
        if front[1] >= TRANSFERRED_VERSION:
            at = _parse_moved(body, at, claims)
        lost_size = len(body) - at
        if lost_size < 0 or lost_size % 8 or (lost_size and front[1] < LOST_VERSION):
            raise FormatError("the lane checkpoint's counts do not fit its size", FRONT_SIZE)
        return cls(
            version,
            nonce,
            split_until,
            front[7],
            edge,
            kept,
            tuple(claims),
            parse_columns(part_claims, body[parts_at:parts_end]),
            front[14],
            splits,
            owner,
            bytes(data[body_end:end]),
            struct.unpack_from(f"<{lost_size // 8}Q", body, at),
            frozenset(claim.key for claim, row in zip(claims, rows, strict=True) if row[-1] & _IN_DOUBT),
        )


def _pack_moved(claims: tuple[CheckpointedClaim, ...]) -> bytes:
    """No bytes at all if none did."""
    lanes: dict[str, int] = {}
    owners: dict[bytes, int] = {}
    rows = []
    for number, one in enumerate(claims):
        if one.moved is not None:
            fence, claim, owner = one.moved
            rows.append(
                (
                    number,
                    fence.seq,
                    fence.flags,
                    fence.base_offset,
                    fence.reserved_until,
                    lanes.setdefault(claim.lane, len(lanes)),
                    claim.since,
                    owners.setdefault(owner, len(owners)),
                )
            )
    if not rows:
        return b""
    names = "\n".join(lanes).encode()
    sizes = struct.pack(f"<{len(owners)}I", *map(len, owners))
    front = _MOVED_SIZES.pack(len(rows), len(names), len(owners))
    return front + b"".join(starmap(_MOVED_ROW.pack, rows)) + names + sizes + b"".join(owners)


def _parse_moved(body: bytes, at: int, claims: list[CheckpointedClaim]) -> int:
    """Puts them into `claims`. Returns where they end."""
    if len(body) - at < _MOVED_SIZES.size:
        raise FormatError("the lane checkpoint is cut short", len(body))
    count, names_size, owner_count = _MOVED_SIZES.unpack_from(body, at)
    at += _MOVED_SIZES.size
    rows_at, at = at, at + count * _MOVED_ROW.size
    rows = list(_MOVED_ROW.iter_unpack(body[rows_at:at]))
    lanes = body[at : at + names_size].decode().split("\n")
    at += names_size
    sizes = struct.unpack_from(f"<{owner_count}I", body, at)
    at += 4 * owner_count
    owners = []
    for size in sizes:
        owners.append(body[at : at + size])
        at += size
    for number, seq, flags, offset, reserved, lane, since, owner in rows:
        one = claims[number]
        key = ClaimKey(one.key.prefix, one.key.epoch + 1)
        fence = fence_row(key, seq, flags, offset, reserved)
        claims[number] = one._replace(moved=Moved(fence, Claim(lanes[lane], since), owners[owner]))
    return at


def parse_split_until(front: Bytes) -> int:
    """From the first `FRONT_SIZE` bytes alone."""
    return int(_front(front)[6])


def parse_reach(front: Bytes) -> tuple[int, int]:
    """Likewise: its version counter, and the place that it reaches to."""
    fields = _front(front)
    return int(fields[4]), int(fields[7])


def _front(front: Bytes) -> tuple[Any, ...]:
    if len(front) < FRONT_SIZE:
        raise FormatError("the lane checkpoint is cut short", len(front))
    fields = _FRONT.unpack_from(front)
    if fields[0] != MAGIC or _CRC.unpack_from(front, _FRONT.size)[0] != crc32c(bytes(front[: _FRONT.size])):
        raise FormatError("the lane checkpoint's front is damaged", 0)
    if not 1 <= fields[1] <= TRANSFERRED_VERSION:
        raise UnsupportedVersion(
            f"lane checkpoint format {fields[1]}; this release reads up to {TRANSFERRED_VERSION}", 8
        )
    return fields
