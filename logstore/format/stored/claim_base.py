"""Bases: where the chains of a lane's partitions stood before their parts, as a lane's checkpoint keeps it.

With its base and its parts a partition is known whole: whoever plans or opens a thousand of them reads the lane and asks for
none of them. A base is what a reader would have remembered who loaded the partition then, and it is used like that: it may
be old, and what it names may be gone, but what it says was true.

    zstd of: counts; names of topics and lanes; documents of owners; a row for each base; the rows of their segments, as
    columns; the merged objects among them; those that lie in other lanes; a low watermark for each partition that has one

The checkpoint's own checksum covers it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.errors import FormatError
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.manifest import FRONT_SIZE, SegmentTable
from logstore.format.stored.segment import Bytes

if TYPE_CHECKING:
    import numpy as np
else:
    from logstore.format.lazy_numpy import np

_COUNTS = struct.Struct("<IIIIIIII")


@cache
def _base_row() -> np.dtype[np.void]:
    return np.dtype(
        [
            ("topic", "<u4"),
            ("partition", "<u4"),
            ("epoch", "<u8"),
            ("next_seq", "<u8"),
            ("end_offset", "<i8"),
            ("reserved_until", "<i8"),
            ("source_upper", "<i8"),
            ("since", "<u8"),
            ("owner", "<u4"),
            ("has_front", "<u4"),
            ("rows", "<u4"),
            ("merged", "<u4"),
            ("placed", "<u4"),
        ]
    )


@cache
def _merged_row() -> np.dtype[np.void]:
    return np.dtype([("seq", "<i8"), ("identity", "V16")])


@cache
def _placed_row() -> np.dtype[np.void]:
    return np.dtype([("seq", "<i8"), ("lane", "<u4"), ("entry", "<u8"), ("position", "<u8")])


@cache
def _low_row() -> np.dtype[np.void]:
    return np.dtype([("topic", "<u4"), ("partition", "<u4"), ("epoch", "<u8"), ("low", "<i8")])


_SIZE_MAX = 1 << 30


class Place(NamedTuple):
    """Where in a lane a segment lies that was written there by an earlier owner. How large it is, its row says."""

    lane: str
    entry: int
    position: int


@dataclass(frozen=True, slots=True)
class ClaimBase:
    """The chain of a partition up to the place `next_seq`, behind the claim or behind parts that a manifest holds.

    `since`: the claim's. `front`: of the manifest that was there when the chain was loaded, no bytes if there was none.
    `placed`: the rows of `table` that lie in other lanes, by their seq.
    """

    next_seq: int
    end_offset: int
    reserved_until: int
    source_upper: int
    since: int
    owner: bytes
    front: bytes
    table: SegmentTable
    placed: Mapping[int, Place] = field(default_factory=dict)


@dataclass(slots=True)
class Bases:
    """`lows`: of each partition, at least so much of it was deleted, whatever its base says."""

    of: dict[ClaimKey, ClaimBase] = field(default_factory=dict)
    lows: dict[ClaimKey, int] = field(default_factory=dict)

    def raise_lows(self, lows: Mapping[ClaimKey, int]) -> None:
        """A low watermark never falls."""
        for key, low in lows.items():
            self.lows[key] = max(low, self.lows.get(key, 0))

    def pack(self) -> bytes:
        """No bytes at all if there is nothing to say."""
        if not self.of and not self.lows:
            return b""
        topics, lanes, owners = _Names(), _Names(), _Names()

        def claim(key: ClaimKey) -> tuple[int, int, int]:
            topic, partition = key.prefix[:-1].rsplit("/", 1)
            return topics.number((topic + "/").encode()), int(partition), key.epoch

        rows, merged, placed = [], [], []
        for key, base in self.of.items():
            table = base.table
            sizes = len(table), len(table.merged), len(base.placed)
            rows.append(
                (
                    *claim(key),
                    base.next_seq,
                    base.end_offset,
                    base.reserved_until,
                    base.source_upper,
                    base.since,
                    owners.number(base.owner),
                    bool(base.front),
                    *sizes,
                )
            )
            merged += [(seq, bytes.fromhex(identity)) for seq, identity in table.merged.items()]
            placed += [
                (seq, lanes.number(one.lane.encode()), one.entry, one.position)
                for seq, one in base.placed.items()
            ]
        lows = np.array([(*claim(key), low) for key, low in self.lows.items()], _low_row())
        columns = zip(*(base.table.columns() for base in self.of.values()), strict=True)
        body = b"".join(
            (
                topics.pack(),
                lanes.pack(),
                owners.pack(),
                np.array(rows, _base_row()).tobytes(),
                b"".join(base.front for base in self.of.values()),
                *(column.tobytes() for one in columns for column in one),
                np.array(merged, _merged_row()).tobytes(),
                np.array(placed, _placed_row()).tobytes(),
                lows.tobytes(),
            )
        )
        counts = _COUNTS.pack(
            len(topics.all),
            len(lanes.all),
            len(owners.all),
            len(rows),
            sum(len(base.table) for base in self.of.values()),
            len(merged),
            len(placed),
            len(lows),
        )
        return compress(ZSTD, counts + body)

    @classmethod
    def parse(cls, packed: Bytes) -> Bases:
        if not packed:
            return cls()
        cut = _Cut(decompress(ZSTD, bytes(packed), max_size=_SIZE_MAX))
        topic_count, lane_count, owner_count, base_count, row_count, merged_count, placed_count, low_count = (
            _COUNTS.unpack(cut.take(_COUNTS.size))
        )
        topics = [name.decode() for name in cut.names(topic_count)]
        lanes = [name.decode() for name in cut.names(lane_count)]
        owners = cut.names(owner_count)
        rows = cut.rows(_base_row(), base_count)
        fronts = cut.take(FRONT_SIZE * sum(row[9] for row in rows))
        columns = [cut.take(row_count * 8) for _ in range(7)]
        merged = cut.rows(_merged_row(), merged_count)
        placed = cut.rows(_placed_row(), placed_count)
        lows = cut.rows(_low_row(), low_count)
        cut.end()
        found = cls(lows={ClaimKey(f"{topics[t]}{p}/", epoch): low for t, p, epoch, low in lows})
        front_at = row_at = merged_at = placed_at = 0
        for topic, partition, epoch, seq, end, reserved, upper, since, owner, has_front, *sizes in rows:
            count, merges, places = sizes
            table = SegmentTable(
                merged={seq: bytes(name).hex() for seq, name in merged[merged_at : merged_at + merges]}
            )
            for column, values in zip(table.columns(), columns, strict=True):
                column.frombytes(values[row_at * 8 : (row_at + count) * 8])
            front_size = FRONT_SIZE if has_front else 0
            found.of[ClaimKey(f"{topics[topic]}{partition}/", epoch)] = ClaimBase(
                seq,
                end,
                reserved,
                upper,
                since,
                owners[owner],
                fronts[front_at : front_at + front_size],
                table,
                {
                    seq: Place(lanes[lane], entry, position)
                    for seq, lane, entry, position in placed[placed_at : placed_at + places]
                },
            )
            front_at, row_at = front_at + front_size, row_at + count
            merged_at, placed_at = merged_at + merges, placed_at + places
        return found


class _Names:
    """Each once, with a number."""

    def __init__(self) -> None:
        self.all: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        return self.all.setdefault(name, len(self.all))

    def pack(self) -> bytes:
        return np.array([len(name) for name in self.all], "<u4").tobytes() + b"".join(self.all)


class _Cut:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise FormatError("the bases in the lane checkpoint do not fit their counts", None)
        self._at += size
        return taken

    def names(self, count: int) -> list[bytes]:
        sizes = np.frombuffer(self.take(4 * count), "<u4").tolist()
        return [self.take(size) for size in sizes]

    def rows(self, kind: np.dtype[np.void], count: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = np.frombuffer(self.take(kind.itemsize * count), kind).tolist()
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise FormatError("the bases in the lane checkpoint do not fit their counts", None)
