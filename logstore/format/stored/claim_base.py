"""Bases: where the chains of a lane's partitions ended before their parts, as a lane's checkpoint keeps it.

With its base and its parts a partition is known whole: whoever plans or opens a thousand of them reads the lane and asks for
none of them. A base is what a reader would have remembered who loaded the partition then, and it is used like that: it may
be old, and what it names may be gone, but what it says was true.

    zstd of: counts; names of topics and lanes; documents of owners; a row for each base; the rows of their segments, as
    columns; the merged objects among them; those that lie in other lanes; a low watermark for each partition that has one

The checkpoint's own checksum covers it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from operator import is_
from typing import Any, NamedTuple

from logstore.format.batches.codecs import ZSTD, compress, decompress
from logstore.format.errors import FormatError
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.manifest import FRONT_SIZE, SegmentTable
from logstore.format.stored.segment import Bytes

NO_ROWS = SegmentTable()
"""Of all that have none: nobody adds to what is said."""
_COUNTS = struct.Struct("<IIIIIIII")

_BASE_ROW = struct.Struct("<IIQQqqqQIIIII")
"""Topic, partition, epoch, next seq, end offset, reserved until, source upper, since, owner, has front, rows, merged,
placed."""

_MERGED_ROW = struct.Struct("<q16s")
"""Seq, identity."""

_PLACED_ROW = struct.Struct("<qIQQ")
"""Seq, lane, entry, position."""

_LOW_ROW = struct.Struct("<IIQq")
"""Topic, partition, epoch, low."""


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

    @property
    def said(self) -> tuple[int, int, int, int, int, bytes, bytes]:
        """All but the rows."""
        return (
            self.next_seq,
            self.end_offset,
            self.reserved_until,
            self.source_upper,
            self.since,
            self.owner,
            self.front,
        )


@dataclass(slots=True)
class Bases:
    """`lows`: of each partition, at least so much of it was deleted, whatever its base says."""

    of: dict[ClaimKey, ClaimBase] = field(default_factory=dict)
    lows: dict[ClaimKey, int] = field(default_factory=dict)

    def raise_lows(self, lows: Mapping[ClaimKey, int]) -> None:
        """A low watermark never falls."""
        for key, low in lows.items():
            self.lows[key] = max(low, self.lows.get(key, 0))

    def is_still(self, before: Bases) -> bool:
        """Whether it says the very same of each partition, without a look at their rows."""
        is_same = self.of.keys() == before.of.keys() and self.lows == before.lows
        return is_same and all(map(is_, self.of.values(), map(before.of.__getitem__, self.of)))

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
        lows = [(*claim(key), low) for key, low in self.lows.items()]
        columns = zip(*(base.table.columns() for base in self.of.values()), strict=True)
        body = b"".join(
            (
                topics.pack(),
                lanes.pack(),
                owners.pack(),
                _packed(_BASE_ROW, rows),
                b"".join(base.front for base in self.of.values()),
                *(column.tobytes() for one in columns for column in one),
                _packed(_MERGED_ROW, merged),
                _packed(_PLACED_ROW, placed),
                _packed(_LOW_ROW, lows),
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
        rows = cut.rows(_BASE_ROW, base_count)
        fronts = cut.take(FRONT_SIZE * sum(row[9] for row in rows))
        columns = [cut.take(row_count * 8) for _ in range(7)]
        merged = cut.rows(_MERGED_ROW, merged_count)
        placed = cut.rows(_PLACED_ROW, placed_count)
        lows = cut.rows(_LOW_ROW, low_count)
        cut.end()
        found = cls(lows={ClaimKey(f"{topics[t]}{p}/", epoch): low for t, p, epoch, low in lows})
        front_at = row_at = merged_at = placed_at = 0
        for topic, partition, epoch, seq, end, reserved, upper, since, owner, has_front, *sizes in rows:
            count, merges, places = sizes
            table = NO_ROWS
            if count:
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


def _packed(kind: struct.Struct, rows: Iterable[tuple[object, ...]]) -> bytes:
    return b"".join(starmap(kind.pack, rows))


class _Names:
    """Each once, with a number."""

    def __init__(self) -> None:
        self.all: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        return self.all.setdefault(name, len(self.all))

    def pack(self) -> bytes:
        return struct.pack(f"<{len(self.all)}I", *map(len, self.all)) + b"".join(self.all)


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
        return [self.take(size) for size in struct.unpack(f"<{count}I", self.take(4 * count))]

    def rows(self, kind: struct.Struct, count: int) -> list[tuple[Any, ...]]:
        return list(kind.iter_unpack(self.take(kind.size * count)))

    def end(self) -> None:
        if self._at != len(self._data):
            raise FormatError("the bases in the lane checkpoint do not fit their counts", None)
