"""The transactions of one partition, learned from its batches: which are open, and which were aborted.

A transaction is open in a partition from its producer's first transactional batch to the marker that ends it. Below the
first offset of the first open one everything is decided: the last stable offset. Of what was decided only the aborted ones
are kept, as an index: 32 bytes each, until the low watermark passes their markers.

Nothing of it is a secret: whoever reads batches in order, from a place where nothing was open, learns the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from logstore.format.batches.batch import BatchInfo, Buffer, split
from logstore.format.batches.markers import UNKNOWN_START, Marker, read_marker
from logstore.format.batches.sequences import MAX_PRODUCERS


class OpenTransaction(NamedTuple):
    epoch: int
    first_offset: int


class LastEnd(NamedTuple):
    """What the last marker of a producer said."""

    epoch: int
    coordinator_epoch: int
    started_ms: int


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int


class AbortedBatches:
    """Tells whose batches are left out, of some aborted transactions."""

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._markers: dict[int, list[int]] = {}
        for each in sorted(aborted, key=lambda one: one.first_offset):
            self._firsts.setdefault(each.producer_id, []).append(each.first_offset)
            self._markers.setdefault(each.producer_id, []).append(each.marker_offset)

    def holds(self, info: BatchInfo) -> bool:
        """Whether it is a batch of one of them. Its marker is none: whoever decodes records leaves that out anyway."""
        if not self._firsts or not info.is_transactional or info.is_control:
            return False
        place = bisect_right(self._firsts.get(info.producer_id, ()), info.base_offset) - 1
        return place >= 0 and info.base_offset < self._markers[info.producer_id][place]


class Transactions:
    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}  # by producer, in the order of their first offsets
        self.last_ends: dict[int, LastEnd] = {}  # by producer, in the order of their markers
        # Aborted ones, in the order of their markers: producer, first offset, marker, last stable offset after it.
        self._producers, self._firsts, self._markers, self._stable = (array("q") for _ in range(4))

    def last_stable(self, end: int) -> int:
        """Up to where everything below `end` is decided."""
        for transaction in self.open.values():
            return min(end, transaction.first_offset)
        return end

    def is_stale(self, marker: Marker) -> bool:
        """Whether it ends a transaction that has ended here: it was repeated, or a former coordinator sends it."""
        last = self.last_ends.get(marker.producer_id)
        if last is None:
            return False
        if marker.producer_epoch < last.epoch:
            return True
        if marker.started_ms != UNKNOWN_START and last.started_ms != UNKNOWN_START:
            return marker.started_ms <= last.started_ms
        return marker.coordinator_epoch < last.coordinator_epoch

    def began(self, producer_id: int, epoch: int, offset: int) -> None:
        """A transactional batch at `offset`: the first of a transaction, or a later one."""
        if producer_id not in self.open:
            self.open[producer_id] = OpenTransaction(epoch, offset)

    def ended(self, marker: Marker, offset: int) -> None:
        was_open = self.open.pop(marker.producer_id, None)
        self.last_ends.pop(marker.producer_id, None)
        self.last_ends[marker.producer_id] = LastEnd(
            marker.producer_epoch, marker.coordinator_epoch, marker.started_ms
        )
        if len(self.last_ends) > MAX_PRODUCERS:
            del self.last_ends[next(iter(self.last_ends))]
        if was_open is not None and not marker.is_commit:
            self._add(marker.producer_id, was_open.first_offset, offset, self.last_stable(offset + 1))

    def _add(self, producer_id: int, first: int, marker: int, stable: int) -> None:
        self._producers.append(producer_id)
        self._firsts.append(first)
        self._stable.append(stable)
        self._markers.append(marker)  # last: `aborted`, of another thread, counts the rows by it

    def replay(self, raw: Buffer, info: BatchInfo) -> None:
        """Take in a batch of the log."""
        if info.is_control:
            marker = read_marker(raw, info)
            if marker is not None:
                self.ended(marker, info.base_offset)
        elif info.is_transactional:
            self.began(info.producer_id, info.producer_epoch, info.base_offset)

    def aborted(self, start: int, stop: int) -> list[Aborted]:
        """Those that have records from `start` up to, not including, `stop`; in the order of their first offsets."""
        found = []
        for row in range(bisect_left(self._markers, start), len(self._markers)):
            if self._firsts[row] < stop:
                found.append(Aborted(self._producers[row], self._firsts[row], self._markers[row]))
            if self._stable[row] >= stop:
                break  # what was aborted later began at or behind it
        return sorted(found, key=lambda each: each.first_offset)

    def forget_below(self, low: int) -> None:
        """The records below are deleted: nobody asks about their transactions."""
        gone = bisect_left(self._markers, low)
        if gone:
            for column in (self._producers, self._firsts, self._markers, self._stable):
                del column[:gone]

    def dump(self, offset: int, beginning: Container[int] = ()) -> dict[str, Any]:
        """What it knows of the log below `offset`, for `load`. Markers at or above it must not have been taken in.
        `beginning`: producers whose open transaction has no batch below it, though that may not lie where it says."""
        return {
            "open": [
                [pid, *each]
                for pid, each in self.open.items()
                if each.first_offset < offset and pid not in beginning
            ],
            "ends": [[pid, *each] for pid, each in self.last_ends.items()],
            "aborted": [
                column.tolist() for column in (self._producers, self._firsts, self._markers, self._stable)
            ],
        }

    @classmethod
    def load(cls, content: dict[str, Any]) -> Transactions:
        loaded = cls()
        loaded.open = {int(pid): OpenTransaction(*each) for pid, *each in content["open"]}
        loaded.last_ends = {int(pid): LastEnd(*each) for pid, *each in content["ends"]}
        columns: Iterable[list[int]] = content["aborted"]
        loaded._producers, loaded._firsts, loaded._markers, loaded._stable = (
            array("q", column) for column in columns
        )
        return loaded


def batches_below(stop: int, parts: Iterable[bytes | memoryview]) -> tuple[bytes | memoryview, ...]:
    """The batches that begin before the offset `stop`. Each transaction begins with a batch: none lies across."""
    kept: list[bytes | memoryview] = []
    for part in parts:
        for batch in split(part):
            if batch.base_offset >= stop:
                if batch.position:
                    kept.append(memoryview(part)[: batch.position])
                return tuple(kept)
        kept.append(part)
    return tuple(kept)
