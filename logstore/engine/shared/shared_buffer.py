"""What a shared writer holds: appends without offsets, because only the commit decides those.

An *entry* is a group of batches that is stored whole: either one append that came encoded, or one open batch that several
small appends share. Inside an entry offsets count from 0; `place` says where it landed, and every append of it gets its
final offsets then. A *window* is what one attempt to commit carries. Losing a race gives a window a new place in the chain
and lets later entries join it; the bodies of its batches are encoded once and never change.

Guarded by the partition's lock, except `SharedWindow.build`, which encodes and is called without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.results import Receipt
from logstore.format.batch import BatchInfo
from logstore.format.record import Record
from logstore.format.segment import SegmentHeader, SegmentSummary, build_segment
from logstore.format.sequences import Sequences


class Joined(NamedTuple):
    """One append in an entry: the `records` records from `first` on. None: a flush, of all that came before."""

    receipt: Receipt
    future: Future[Receipt]
    first: int
    records: int


@dataclass(slots=True, eq=False)
class Entry:
    batches: list[PendingBatch] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    count: int = 0
    charged: int = 0
    appends: int = 0
    sequences: Sequences | None = None

    def join(self, receipt: Receipt, count: int) -> Future[Receipt]:
        """Note who waits for the `count` records that were added last."""
        future: Future[Receipt] = Future()
        self.joined.append(Joined(receipt, future, self.count - count, count))
        return future

    def part_with_flushes(self) -> list[Joined]:
        """Let go of those who wait here for no append of their own."""
        flushes = [joined for joined in self.joined if not joined.records]
        self.joined = [joined for joined in self.joined if joined.records]
        return flushes

    def place(self, base_offset: int) -> list[tuple[Future[Receipt], Receipt]]:
        """It is at `base_offset`: give each append its offsets. The caller completes the futures, without the lock."""
        placed = []
        for receipt, future, first, records in self.joined:
            receipt.offset = base_offset + first
            receipt.last_offset = receipt.offset + records - 1
            placed.append((future, receipt))
        return placed


class SharedBuffer:
    """The entries that no attempt has taken yet."""

    def __init__(self, codec_id: int, batch_bytes: int) -> None:
        self.charged = 0  # this and the two below: sums over the entries
        self.count = 0
        self.appends = 0
        self._codec_id = codec_id
        self._batch_bytes = batch_bytes
        self._entries: list[Entry] = []
        self._open: Entry | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add_records(self, receipt: Receipt, records: Sequence[Record], charged: int) -> Future[Receipt]:
        """They join the open batch if they fit."""
        entry = self._open
        if entry is None or entry.charged + charged > self._batch_bytes:
            batch = PendingBatch(0, 0, Exposure.DURABLE, self._codec_id)
            entry = self._open = Entry(batches=[batch])
            self._entries.append(entry)
        entry.batches[0].add(records, charged, Exposure.DURABLE)
        self._charge(entry, len(records), charged)
        return entry.join(receipt, len(records))

    def add_encoded(
        self,
        receipt: Receipt,
        batches: Sequence[tuple[memoryview, BatchInfo]],
        sequences: Sequences | None,
    ) -> Future[Receipt]:
        """An entry of its own: one append, stored whole."""
        entry = Entry(sequences=sequences)
        count = 0
        for raw, info in batches:
            entry.batches.append(PendingBatch.ready(count, 0, Exposure.DURABLE, raw, info, info.size))
            count += info.count
        self._entries.append(entry)
        self._charge(entry, count, sum(info.size for _, info in batches))
        self._open = None
        return entry.join(receipt, entry.count)

    def _charge(self, entry: Entry, count: int, charged: int) -> None:
        """One more append in it."""
        entry.count += count
        entry.charged += charged
        entry.appends += 1
        self.charged += charged
        self.count += count
        self.appends += 1

    def last(self) -> Entry | None:
        return self._entries[-1] if self._entries else None

    def take(self, room: int, *, at_least_one: bool) -> list[Entry]:
        """Take entries from the front while they fit into `room` bytes."""
        self._open = None
        taken, size = 0, 0
        for entry in self._entries:
            size += entry.charged
            if size > room and (taken or not at_least_one):
                break
            taken += 1
        entries, self._entries = self._entries[:taken], self._entries[taken:]
        for entry in entries:
            self.charged -= entry.charged
            self.count -= entry.count
            self.appends -= entry.appends
        return entries

    def clear(self) -> list[Entry]:
        """Drop everything, and say what it was."""
        return self.take(self.charged, at_least_one=True)


class SharedWindow:
    """One attempt. Its header, and so its writer id and its place in the chain, stay the same until something is in
    that place: a lost answer can then be told from a lost race."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.header: SegmentHeader | None = None
        self.losses = 0
        self._built: tuple[memoryview, SegmentSummary] | None = None

        self.carry(entries)

    def carry(self, entries: Iterable[Entry]) -> None:
        """From now on these. Only while it has no place."""
        assert self.header is None, "what has a place does not change"
        self.entries = list(entries)
        self.count = sum(entry.count for entry in self.entries)
        self.charged = sum(entry.charged for entry in self.entries)

    def encode(self) -> None:
        """Do what can be done before it has a place. Costs nothing the second time."""
        for entry in self.entries:
            for batch in entry.batches:
                batch.encoded()

    def stand_at(self, header: SegmentHeader) -> None:
        """Take this place in the chain."""
        self.header, self._built = header, None

    def lost(self) -> None:
        """Another's segment is in our place: the next attempt needs a new one."""
        self.header = self._built = None
        self.losses += 1

    def build(self) -> tuple[SegmentHeader, memoryview, SegmentSummary]:
        """The segment's bytes for the place it has: the heads of its batches are rewritten, the bodies are not."""
        header = self.header
        assert header is not None, "a window is built once it has a place"
        if self._built is None:
            self._built = build_segment(
                header,
                [
                    batch.encoded().at(base + batch.base_offset, header.epoch)
                    for entry, base in self.places()
                    for batch in entry.batches
                ],
            )
        data, summary = self._built
        return header, data, summary

    def places(self) -> Iterator[tuple[Entry, int]]:
        """Each entry and its first offset, for the place the window has."""
        header = self.header
        assert header is not None, "asked once the window has a place"
        base = header.base_offset
        for entry in self.entries:
            yield entry, base
            base += entry.count

    def place(self) -> list[tuple[Future[Receipt], Receipt]]:
        """It is committed: every append of it has its offsets now."""
        return [placed for entry, base in self.places() for placed in entry.place(base)]
