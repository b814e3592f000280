"""Cutting ranges of offsets into splits, one for each Spark task. Pure: segments in, splits out.

* Every partition that has records gets at least one split, as in Spark's Kafka source; a large one gets as many as its bytes
  ask for, and several small segments share one.
* A cut falls on a border between segments where those are small against the target, else inside of one.
* A split is a range of offsets and the objects that hold it. It is all that an executor needs, and it is small.
"""

from __future__ import annotations

import itertools
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter

import numpy as np

from logstore.arrow.plan.bounds import EVERYTHING, Bounds
from logstore.arrow.plan.log_partitions import LogPartition
from logstore.engine.chain.segment_table import SegmentRef
from logstore.format.batches.transactions import Aborted
from logstore.layout.paths import PartitionPaths

_base_offset = attrgetter("base_offset")
_end_offset = attrgetter("end_offset")


@dataclass(frozen=True, slots=True)
class Split:
    """The records of `paths` from `start` up to, not including, `stop`, as far as they lie in `refs`."""

    paths: PartitionPaths
    start: int
    stop: int
    refs: tuple[SegmentRef, ...]
    bounds: Bounds = EVERYTHING
    aborted: tuple[Aborted, ...] = ()
    """Transactions whose records are left out: of a read of committed ones."""

    @property
    def stored_bytes(self) -> float:
        """About what has to be fetched: of a segment that reaches beyond the split, its share."""
        return sum(
            ref.size
            * (min(ref.end_offset, self.stop) - max(ref.base_offset, self.start))
            / (ref.end_offset - ref.base_offset)
            for ref in self.refs
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Spark pickles each split by itself, in Python: numbers and strings that are packed beforehand cost a fifth."""
        paths = (self.paths.topic, self.paths.incarnation, self.paths.partition)
        refs = [tuple(ref) for ref in self.refs]
        aborted = [tuple(each) for each in self.aborted]
        packed = pickle.dumps((paths, self.start, self.stop, refs, aborted), pickle.HIGHEST_PROTOCOL)
        return _unpacked, (packed, None if self.bounds == EVERYTHING else self.bounds)


def _unpacked(packed: bytes, bounds: Bounds | None) -> Split:
    paths, start, stop, refs, aborted = pickle.loads(packed)
    return Split(
        PartitionPaths(*paths),
        start,
        stop,
        tuple(SegmentRef(*ref) for ref in refs),
        bounds or EVERYTHING,
        tuple(Aborted(*each) for each in aborted),
    )


@dataclass(frozen=True, slots=True)
class Range:
    """What a query wants of one partition."""

    partition: LogPartition
    start: int
    stop: int


def cut(
    ranges: Sequence[Range],
    *,
    max_bytes: int,
    max_records: int | None = None,
    min_splits: int | None = None,
    bounds: Bounds = EVERYTHING,
) -> list[Split]:
    """The splits of all ranges, in order."""
    runs = [run for wanted in ranges if (run := _Run.of(wanted, bounds)) is not None]
    if min_splits is not None and runs:
        # ceil() of each part makes at least as many splits as were asked for.
        max_bytes = min(max_bytes, max(1, int(sum(run.total for run in runs) // min_splits)))
    return [split for run in runs for split in run.splits(max_bytes, max_records, bounds)]


def packed(splits: Sequence[Split], max_bytes: int) -> list[tuple[Split, ...]]:
    """The same splits, in order, in groups of at most about `max_bytes`: small ones share a task."""
    groups: list[list[Split]] = []
    left = 0.0
    for split in splits:
        size = split.stored_bytes
        if not groups or size > left:
            groups.append([])
            left = max_bytes
        groups[-1].append(split)
        left -= size
    return [tuple(group) for group in groups]


def limited_by_bytes(ranges: Sequence[Range], most: int) -> list[int]:
    """Where each range ends if all together hold about `most` stored bytes: each gives up the same share of its own. At
    least one offset of each is left, so a limit that is smaller than a record still lets a stream go on."""
    runs = [_Run.of(wanted, EVERYTHING) for wanted in ranges]
    total = sum(run.total for run in runs if run is not None)
    if total <= most:
        return [wanted.stop for wanted in ranges]
    return [
        wanted.stop
        if run is None
        else max(wanted.start + 1, int(np.interp(run.total * most / total, run.weights, run.borders)))
        for wanted, run in zip(ranges, runs, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Run:
    """The segments of one partition that a query needs, and how their bytes lie over the offsets."""

    partition: LogPartition
    start: int
    stop: int
    refs: list[SegmentRef]
    borders: list[int]  # of the refs' parts that are wanted: start, ends
    weights: list[float]  # bytes before each border

    @classmethod
    def of(cls, wanted: Range, bounds: Bounds) -> _Run | None:
        if not bounds.takes(wanted.partition.topic, wanted.partition.number):
            return None
        start = max(wanted.start, bounds.offset_range[0])
        stop = min(wanted.stop, bounds.offset_range[1])
        if start >= stop:
            return None
        segments = wanted.partition.view.segments
        first = segments.row_at(start)
        behind = bisect_left(segments.table.base_offset, stop, first)
        refs: list[SegmentRef] = []
        borders, sizes = [start], [0.0]
        for ref in segments.refs(first, behind):
            if bounds.bounds_time and not bounds.takes_time(ref.min_timestamp_ms, ref.max_timestamp_ms):
                continue
            refs.append(ref)
            borders.append(min(ref.end_offset, stop))
            held = borders[-1] - max(ref.base_offset, start)
            sizes.append(ref.size * held / (ref.end_offset - ref.base_offset))
        if not refs:
            return None
        return cls(wanted.partition, start, stop, refs, borders, list(itertools.accumulate(sizes)))

    @property
    def total(self) -> float:
        return self.weights[-1]

    def splits(self, max_bytes: int, max_records: int | None, bounds: Bounds) -> list[Split]:
        points = self._points(max(1, ceil(self.total / max_bytes)), max_bytes)
        if max_records is not None:
            points = [cut for pair in itertools.pairwise(points) for cut in _even(*pair, max_records)]
            points.append(self.stop)
        return [
            Split(self.partition.paths, start, stop, refs, bounds, self.partition.aborted(start, stop))
            for start, stop in itertools.pairwise(points)
            if (refs := self._refs_in(start, stop))
        ]

    def _points(self, pieces: int, max_bytes: int) -> list[int]:
        """Offsets that cut the run into pieces of about equal bytes."""
        if pieces == 1:
            return [self.start, self.stop]
        wanted = np.arange(1, pieces) * (self.total / pieces)
        inner = np.interp(wanted, self.weights, self.borders)
        points = {self.start, self.stop}
        for weight, offset in zip(wanted, inner, strict=True):
            after = bisect_left(self.weights, weight)
            if self.weights[after] - self.weights[after - 1] <= max_bytes / 2:
                nearer = (
                    after if self.weights[after] - weight < weight - self.weights[after - 1] else after - 1
                )
                points.add(self.borders[nearer])
            else:
                points.add(int(offset))
        return sorted(points)

    def _refs_in(self, start: int, stop: int) -> tuple[SegmentRef, ...]:
        first = bisect_right(self.refs, start, key=_end_offset)
        return tuple(self.refs[first : bisect_left(self.refs, stop, first, key=_base_offset)])


def _even(start: int, stop: int, most: int) -> list[int]:
    """The starts of the fewest equal ranges that hold at most `most` offsets each."""
    pieces = max(1, ceil((stop - start) / most))
    return [start + (stop - start) * piece // pieces for piece in range(pieces)]
