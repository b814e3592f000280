"""A checkpoint of a lane: what its entries up to a place hold, so that nobody has to read them all.

front     fixed size, with a checksum of its own: version counter, nonce, the place below which entries may have been
          split and emptied, the place that it reaches to, the id of the last entry before that. One small GET tells
body      zstd of: the places below that were kept; the claims; the parts that no partition's manifest holds yet
bases     where the partitions' chains stood before their parts, if anybody said so (`claim_base`)
crc       CRC-32C of all before it, and the magic again
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.entry import FIRST, ClaimKey, Part
from logstore.format.stored.segment import Bytes

if TYPE_CHECKING:
    import numpy as np
else:
    from logstore.format.lazy_numpy import np

FORMAT_VERSION = 2
"""In 1 there were no bases, and a claim that had ended may have been gone on behind."""
ADOPTED_VERSION = 3
"""Somebody has adopted the lane, and is named: releases that do not know this know no adoptions either."""
MAGIC = b"LOGLCP\r\n"

_FRONT = struct.Struct("<8sHHIQ8sQQ16sQIIIIQI")
_CRC = struct.Struct("<I")
FRONT_SIZE = _FRONT.size + _CRC.size
_END = struct.Struct("<I8s")


@cache
def _claim_row() -> np.dtype[np.void]:
    return np.dtype(
        [
            ("topic", "<u4"),
            ("partition", "<u4"),
            ("epoch", "<u8"),
            ("next_seq", "<u8"),
            ("end_offset", "<i8"),
            ("reserved_until", "<i8"),
            ("is_sealed", "<u4"),
        ]
    )


@cache
def _part_row() -> np.dtype[np.void]:
    return np.dtype(
        [
            ("claim", "<u4"),
            ("entry", "<u8"),
            ("seq", "<u8"),
            ("flags", "<u4"),
            ("base_offset", "<i8"),
            ("end_offset", "<i8"),
            ("reserved_until", "<i8"),
            ("position", "<u8"),
            ("size", "<u8"),
            ("records", "<u8"),
            ("min_timestamp_ms", "<i8"),
            ("max_timestamp_ms", "<i8"),
        ]
    )


_BODY_MAX = 1 << 30
_SEALED, _LEFT, _BEGUN = 1, 2, 4


class CheckpointedClaim(NamedTuple):
    """Where the chain of the claim's partition was before the parts that follow: its next place and offsets. `is_sealed`:
    nothing follows in the lane. `is_begun`: the lane holds nothing of it yet, and whether it stands only the partition's own
    chain tells. `is_left`: a seal names it, and the chain may go on elsewhere."""

    key: ClaimKey
    next_seq: int
    end_offset: int
    reserved_until: int
    is_sealed: bool
    is_begun: bool = False
    is_left: bool = False


class CheckpointedPart(NamedTuple):
    """A part, and in which entry it lies."""

    entry: int
    part: Part


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
    about the process that adopted the lane last, or nothing. `bases`: `Bases`, packed, because few need them."""

    version: int = 0
    nonce: bytes = bytes(8)
    split_until: int = 0
    next_seq: int = 0
    edge: bytes = FIRST
    kept: tuple[int, ...] = ()
    claims: tuple[CheckpointedClaim, ...] = ()
    parts: tuple[CheckpointedPart, ...] = ()
    ended_before: int = 0
    splits: tuple[Split, ...] = ()
    owner: bytes = b""
    bases: bytes = b""

    def pack(self) -> bytes:
        topics: dict[str, int] = {}
        numbers = {claim.key: number for number, claim in enumerate(self.claims)}

        def split(key: ClaimKey) -> tuple[int, int, int]:
            topic, partition = key.prefix[:-1].rsplit("/", 1)
            return topics.setdefault(topic + "/", len(topics)), int(partition), key.epoch

        claims = np.array(
            [
                (*split(key), *rest, _SEALED * is_sealed | _BEGUN * is_begun | _LEFT * is_left)
                for key, *rest, is_sealed, is_begun, is_left in self.claims
            ],
            _claim_row(),
        )
        parts = np.array([(numbers[part[0]], entry, *part[1:]) for entry, part in self.parts], _part_row())
        names = "\n".join(topics).encode()
        columns = [np.ascontiguousarray(parts[name]).tobytes() for name in _part_row().names or ()]
        body = compress(
            ZSTD,
            b"".join(
                (
                    np.array(self.kept, "<u8").tobytes(),
                    np.array(self.splits, "<u8").tobytes(),
                    names,
                    claims.tobytes(),
                    *columns,
                    self.owner,
                )
            ),
        )
        front = _FRONT.pack(
            MAGIC,
            ADOPTED_VERSION if self.owner else FORMAT_VERSION,
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
            len(parts),
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
        at = kept_count * 8
        kept = tuple(np.frombuffer(body, "<u8", kept_count).tolist())
        pairs = np.frombuffer(body, "<u8", 2 * front[15], at).reshape(-1, 2).tolist()
        splits = tuple(Split(until, at_ms) for until, at_ms in pairs)
        at += 16 * front[15]
        topics = body[at : at + names_size].decode().split("\n")
        at += names_size
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
            for topic, partition, epoch, next_seq, end_offset, reserved, state in np.frombuffer(
                body, _claim_row(), claim_count, at
            ).tolist()
        ]
        at += claim_count * _claim_row().itemsize
        columns = []
        for name in _part_row().names or ():
            kind = _part_row()[name]
            columns.append(np.frombuffer(body, kind, part_count, at).tolist())
            at += part_count * kind.itemsize
        if at + front[2] != len(body):
            raise FormatError("the lane checkpoint's counts do not fit its size", FRONT_SIZE)
        parts = tuple(
            CheckpointedPart(entry, Part(claims[claim].key, *rest))
            for claim, entry, *rest in zip(*columns, strict=True)
        )
        return cls(
            version,
            nonce,
            split_until,
            front[7],
            edge,
            kept,
            tuple(claims),
            parts,
            front[14],
            splits,
            body[at:],
            bytes(data[body_end:end]),
        )


def parse_split_until(front: Bytes) -> int:
    """From the first `FRONT_SIZE` bytes alone."""
    if len(front) < FRONT_SIZE:
        raise FormatError("the lane checkpoint is cut short", len(front))
    fields = _FRONT.unpack_from(front)
    if fields[0] != MAGIC or _CRC.unpack_from(front, _FRONT.size)[0] != crc32c(bytes(front[: _FRONT.size])):
        raise FormatError("the lane checkpoint's front is damaged", 0)
    if not 1 <= fields[1] <= ADOPTED_VERSION:
        raise UnsupportedVersion(
            f"lane checkpoint format {fields[1]}; this release reads up to {ADOPTED_VERSION}", 8
        )
    return int(fields[6])
