"""The committed segments of a partition, by offset and by time.

Guarded by the partition's lock. Rows are added at the end as commits happen; maintenance swaps in a new table. A look-up is
O(log n) and touches memory only. Offsets that no row covers, between the low watermark and the end, are lost: they were
shown to readers and went down with a crash before they were stored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import ge
from typing import TYPE_CHECKING, NamedTuple

from logstore.format.lazy_numpy import np
from logstore.format.stored.manifest import SegmentTable
from logstore.format.stored.segment import SegmentSummary
from logstore.layout.paths import PartitionPaths

if TYPE_CHECKING:
    import numpy.typing as npt

_FEW_ROWS = 64


class SegmentRef(NamedTuple):
    """One committed object that holds the offsets from `base_offset` up to, not including, `end_offset`."""

    key: str
    seq: int
    base_offset: int
    end_offset: int
    size: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class LostRange(NamedTuple):
    """Offsets that hold no record and never will: `start` up to, not including, `end`."""

    start: int
    end: int


@dataclass(slots=True)
class Segments:
    """`is_complete`: no row stands for something missing or unreadable. Only then may the table become a manifest: a row
    that is a guess would outlive the repair of what it stands for."""

    paths: PartitionPaths
    table: SegmentTable
    is_complete: bool = True

    def __len__(self) -> int:
        return len(self.table)

    def add(self, seq: int, size: int, summary: SegmentSummary, key: str | None = None) -> None:
        """A new last segment; an empty one (a fence, a reservation) holds nothing to look up and is left out. `key`: where
        it lies, if not in its place in the partition's own chain."""
        header = summary.header
        if header.end_offset > header.base_offset:
            self.add_row(
                seq,
                header.base_offset,
                header.end_offset,
                size,
                summary.min_timestamp_ms,
                summary.max_timestamp_ms,
            )
            if key is not None:
                self.table.placed[seq] = key

    def add_merged(self, first: int, last: int, identity: str, size: int, summary: SegmentSummary) -> None:
        """A merged object as the new last row: it holds what the segments from `first` to `last` held."""
        self.add(first, size, summary)
        self.table.last_seq[-1] = last
        self.table.merged[first] = identity

    def add_row(self, seq: int, base: int, end: int, size: int, low_ms: int, high_ms: int) -> None:
        table = self.table
        assert not table.end_offset or base >= table.end_offset[-1], "segments must not overlap"
        table.first_seq.append(seq)
        table.last_seq.append(seq)
        table.base_offset.append(base)
        table.end_offset.append(end)
        table.size.append(size)
        table.min_timestamp_ms.append(low_ms)
        table.max_timestamp_ms.append(high_ms)

    def ref(self, row: int) -> SegmentRef:
        return self.refs(row, row + 1)[0]

    def refs(self, start: int, stop: int) -> list[SegmentRef]:
        """The rows from `start` up to, not including, `stop`, as far as there are any."""
        paths, merged, placed = self.paths, self.table.merged, self.table.placed
        prefix = paths.prefix
        columns = (column[start:stop] for column in self.table.columns())
        return [
            SegmentRef(
                paths.merged(first, last, merged[first])
                if first in merged
                else placed.get(first) or f"{prefix}{first:020d}.seg",
                first,
                base,
                end,
                size,
                low_ms,
                high_ms,
            )
            for first, last, base, end, size, low_ms, high_ms in zip(*columns, strict=True)
        ]

    def row_at(self, offset: int) -> int:
        """The row that covers the offset, or the next one there is; `len(self)` if there is none."""
        return bisect_right(self.table.end_offset, offset)

    def refs_from(self, offset: int, max_bytes: int) -> list[SegmentRef]:
        """The segment that covers the offset (or the next), and those behind it until `max_bytes` are surely reached."""
        refs: list[SegmentRef] = []
        sure = 0
        for row in range(self.row_at(offset), len(self)):
            ref = self.ref(row)
            if refs:
                sure += ref.size
            refs.append(ref)
            if sure >= max_bytes:
                break
        return refs

    def reach_end(self, refs: list[SegmentRef]) -> bool:
        """Whether there is no segment behind these, which are neighbours; true of none at all."""
        return not refs or refs[-1].end_offset == self.table.end_offset[-1]

    def behind(self, ref: SegmentRef, count: int) -> list[SegmentRef]:
        """The next `count` segments after this one."""
        first = self.row_at(ref.end_offset)
        return self.refs(first, first + count)

    def holds(self, seq: int) -> bool:
        """Whether the last row, or one before it, has the segment at this place of the chain."""
        return bool(self.table.last_seq) and self.table.last_seq[-1] >= seq

    def up_to(self, next_seq: int) -> Segments:
        """Without the rows from `next_seq` on."""
        table = SegmentTable()
        table.extend(self.table, 0, bisect_left(self.table.first_seq, next_seq))
        return Segments(self.paths, table, self.is_complete)

    def followed_by(self, newer: Segments, next_seq: int) -> Segments | None:
        """These rows, which reach up to `next_seq`, and those of `newer` from there on; None if one of those lies across."""
        first = bisect_left(newer.table.last_seq, next_seq)
        if first < len(newer) and newer.table.first_seq[first] < next_seq:
            return None
        table = SegmentTable()
        table.extend(self.table, 0, len(self))
        table.extend(newer.table, first, len(newer))
        return Segments(self.paths, table, self.is_complete and newer.is_complete)

    def all(self) -> list[SegmentRef]:
        return self.refs(0, len(self))

    def lost_ranges(self, low: int, end: int) -> list[LostRange]:
        """What no segment covers between `low` and `end`."""
        table = self.table
        if len(table) <= _FEW_ROWS and all(map(ge, (low, *table.end_offset), (*table.base_offset, end))):
            return []  # as it is with most, each time that one is opened
        ends = np.array([low, *table.end_offset], np.int64)
        bases = np.array([*table.base_offset, end], np.int64)
        holes = np.nonzero(ends < bases)[0]
        return [LostRange(max(low, int(ends[i])), int(bases[i])) for i in holes if bases[i] > low]

    def rows_by_time(self, timestamp_ms: int) -> npt.NDArray[np.intp]:
        """The rows that may hold a record with this timestamp or a later one, in offset order."""
        high = np.frombuffer(self.table.max_timestamp_ms, np.int64) if len(self) else np.empty(0, np.int64)
        return np.nonzero(high >= timestamp_ms)[0]
