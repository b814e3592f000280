"""Source ranges: what a replicated writer holds, and the three-way rule that says what becomes of it.

A range covers the source offsets from `lower` up to, not including, `upper`, and carries the records that they gave. Against
the frontier (how far the partition has the source already) a range, or a part of one, is

    below   the partition has it: a peer stored it. Dropped, and counted. Keeping it would pin the writer for ever, because
            the frontier never comes back to it.
    at      it begins where the partition ends: it is to be stored now.
    above   something before it is missing: it is kept until that has come, from us or from a peer.

Pure, no I/O, and guarded by the writer's lock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from logstore.engine.write.admission import Run, admit_columns, admit_records
from logstore.errors import LogStoreError, RecordTooLarge, StraddlingTransaction, fresh
from logstore.format.batches.record import Record


class Applied(NamedTuple):
    """A source range is in the partition: `by` us, or by a peer. `upper`: how far the partition has the source now."""

    by: Literal["us", "peer"]
    upper: int


class Place(Enum):
    BELOW = "below"
    AT = "at"
    ABOVE = "above"


def classify(lower: int, upper: int, frontier: int) -> Place:
    """The three-way rule. A range that straddles the frontier is AT: its part below is dropped first."""
    if upper <= frontier:
        return Place.BELOW
    return Place.ABOVE if lower > frontier else Place.AT


@dataclass(slots=True, eq=False)
class SourceRange:
    """`runs`: its records, cut to fit batches. `positions`: the source offset of each record, never falling; None if they
    are not known. `exact`: it is stored whole or not at all, because what it holds was computed from the partition as it
    stood at `lower`."""

    lower: int
    upper: int
    runs: list[Run]
    positions: list[int] | None
    charged: int
    exact: bool = False
    future: Future[Applied] = field(default_factory=Future)

    def uncharge(self) -> int:
        """It takes no room any more. Returns how much it took."""
        freed, self.charged = self.charged, 0
        return freed

    def tell(self, outcome: Applied | LogStoreError) -> None:
        """What has become of it."""
        if self.future.set_running_or_notify_cancel():
            if isinstance(outcome, Applied):
                self.future.set_result(outcome)
            else:
                self.future.set_exception(fresh(outcome))

    @property
    def records(self) -> list[Record]:
        return [record for run in self.runs for record in run.records]

    @property
    def count(self) -> int:
        return sum(len(run.records) for run in self.runs)

    def slice(self, lower: int, upper: int) -> list[Record] | None:
        """Its records from `lower` up to, not including, `upper`; None if that cannot be told."""
        if lower <= self.lower and upper >= self.upper:
            return self.records
        if self.positions is None:
            return [] if not self.runs else None
        return self.records[bisect_left(self.positions, lower) : bisect_left(self.positions, upper)]

    def trim(self, frontier: int) -> int:
        """Drop what is below the frontier, which lies inside. Returns how many records that was."""
        if self.positions is None:
            if self.runs:
                raise StraddlingTransaction(
                    f"source range {self.lower} to {self.upper} straddles {frontier}, up to where a peer has stored, and "
                    f"its records carry no source offsets: nothing of it was stored; send what is left from {frontier} on, "
                    "or set each record's offset"
                )
            self.lower = frontier
            return 0
        cut = bisect_left(self.positions, frontier)
        self.positions = self.positions[cut:]
        self.lower = frontier
        left = cut
        while left:
            records, charged = self.runs[0]
            if left < len(records):
                self.runs[0] = Run(records[left:], charged)
                break
            left -= len(records)
            del self.runs[0]
        return cut


def positions(records: list[Record | bytes], lower: int, upper: int) -> list[int] | None:
    """The source offset of each record, if they are known: their own `offset`, or, if none has one and there are exactly as
    many records as source offsets, one after the other."""
    given = [record.offset for record in records if isinstance(record, Record) and record.offset is not None]
    if not given:
        return list(range(lower, upper)) if len(records) == upper - lower else None
    if len(given) != len(records):
        raise ValueError(
            f"{len(given)} of {len(records)} records carry a source offset: give it to all or to none"
        )
    if given[0] < lower or given[-1] >= upper or any(a > b for a, b in pairwise(given)):
        raise ValueError(f"the records' source offsets must rise from {lower} and stay below {upper}")
    return given


def take_range(
    given: Iterable[Record | bytes], lower: int, upper: int, max_batch_bytes: int, max_range_bytes: int
) -> SourceRange:
    """Check everything that can be wrong with a range, before anything is taken."""
    records = list(given)
    _check_bounds(lower, upper, len(records))
    known = positions(records, lower, upper)
    runs = admit_records(records, max_batch_bytes) if records else []
    return SourceRange(lower, upper, runs, known, _charge(runs, max_range_bytes))


def take_exact_range(
    keys: Sequence[bytes],
    values: Sequence[bytes],
    lower: int,
    upper: int,
    max_batch_bytes: int,
    max_range_bytes: int,
) -> SourceRange:
    """The same for one that is stored whole or not at all."""
    _check_bounds(lower, upper, len(keys))
    runs = admit_columns(keys, values, max_batch_bytes)
    return SourceRange(lower, upper, runs, None, _charge(runs, max_range_bytes), exact=True)


def _check_bounds(lower: int, upper: int, count: int) -> None:
    for name, value in (("lower", lower), ("upper", upper)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name}={value!r}: a source offset is an int, 0 or more")
    if lower > upper or (lower == upper and count):
        raise ValueError(
            f"source range {lower} to {upper} with {count} records: it ends before it begins, or is empty and has records"
        )


def _charge(runs: Sequence[Run], max_range_bytes: int) -> int:
    charged = sum(run.charged for run in runs)
    if charged > max_range_bytes:
        raise RecordTooLarge(
            f"a source range of {charged} bytes can never fit max_buffered_bytes={max_range_bytes}: nothing was taken; "
            "cut it"
        )
    return charged


class HeldRanges:
    """Ranges in the order of their lower ends."""

    def __init__(self) -> None:
        self._ranges: list[SourceRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def charged(self) -> int:
        return sum(held.charged for held in self._ranges)

    def add(self, held: SourceRange) -> None:
        insort(self._ranges, held, key=attrgetter("lower"))

    def touching(self, frontier: int) -> list[SourceRange]:
        """Take out those that begin before the frontier: below it, or straddling. O(what is taken out)."""
        count = bisect_left(self._ranges, frontier, key=attrgetter("lower"))
        while count < len(self._ranges) and self._ranges[count].upper <= frontier:
            count += 1  # empty ranges that end right at it
        taken, self._ranges = self._ranges[:count], self._ranges[count:]
        return taken

    def ready(self, frontier: int, room: int) -> list[SourceRange]:
        """Take out what can be stored now, as one commit: ranges that follow each other from the frontier on."""
        count = 0
        for held in self._ranges:
            if held.lower != frontier or (count and (held.charged > room or held.exact)):
                break
            count += 1
            frontier = held.upper
            room -= held.charged
            if held.exact:
                break
        taken, self._ranges = self._ranges[:count], self._ranges[count:]
        return taken

    def first(self) -> SourceRange | None:
        return self._ranges[0] if self._ranges else None

    def clear(self) -> list[SourceRange]:
        taken, self._ranges = self._ranges, []
        return taken
