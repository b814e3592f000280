"""What a shared writer holds: appends without offsets, because only the commit decides those.

An *entry* is a group of batches that is stored whole: either one append that came encoded, or one open batch that several
small appends share. Inside an entry offsets count from 0; `place` says where it landed, and every append of it gets its
final offsets then. A *window* is what is committed together. Losing a race gives it a new place in the chain and lets later
entries join it, unless it was put aside for others to commit; the bodies of its batches are encoded once and never change.

Guarded by the partition's lock, except `SharedWindow.build`, which encodes and is called without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from logstore.engine.host.counters import FlushDone
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.results import Receipt
from logstore.engine.shared.pending import Pending
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.record import Record
from logstore.format.batches.sequences import Sequences
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.extras import NO_EXTRAS, AppendId, Extras
from logstore.format.stored.segment import SegmentHeader, SegmentSummary, build_segment
from logstore.layout.paths import PendingName

_PUT_ASIDE_AGAIN = 16
"""After so many places in which it was not: who commits may not know the place where it was born, having come later."""


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
        self, receipt: Receipt, batches: Sequence[tuple[memoryview, BatchInfo]], sequences: Sequences | None
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
    """What one writer has to commit, under one id: with its own segment or, put aside, with another's.

    An attempt's header, and so its place in the chain, stays the same until something is in that place: a lost answer can
    then be told from a lost race. Once it was put aside, or may have been, its entries stay the same as well.
    `since`: when its oldest append came.
    """

    def __init__(self, entries: Iterable[Entry], identity: bytes, since: float = 0.0) -> None:
        self.since = since
        self.id = identity
        self.header: SegmentHeader | None = None
        self.losses = 0
        self.aside: PendingName | None = None  # as which it was last put aside, or was to be
        self.is_aside = False  # and certainly is
        self.again_at: int | None = None  # it is put aside again when the chain gets there without it
        self.is_ours = False  # nobody commits for us, so we do
        self._others: list[Pending] = []
        self._built: tuple[memoryview, SegmentSummary] | None = None
        self.carry(entries)

    def carry(self, entries: Iterable[Entry]) -> None:
        """From now on these. Only while it has no place and is not put aside."""
        assert self.header is None, "what has a place does not change"
        assert self.aside is None, "nor what others may commit"
        self.entries = list(entries)
        self.count = sum(entry.count for entry in self.entries)
        self.charged = sum(entry.charged for entry in self.entries)

    def put_aside(self, header: SegmentHeader) -> memoryview:
        """It is `aside` now. Returns the object: a segment whose offsets count from 0."""
        self.aside, self.is_aside, self.again_at = PendingName(header.seq, self.id), False, None
        header = replace(
            header, base_offset=0, end_offset=self.count, reserved_until=self.count, writer_id=self.id
        )
        return build_segment(header, self._placed(header))[0]

    def is_overlooked(self, seq: int) -> bool:
        """The chain has got to place `seq` without it: time to put it aside again?"""
        if self.again_at is None:
            self.again_at = seq + _PUT_ASIDE_AGAIN
        elif seq >= self.again_at:
            self.is_aside = False
            return True
        return False

    def is_dead(self, identity: bytes) -> None:
        """As it was put aside nobody will commit it any more; from now on it is `identity`."""
        self.id, self.aside, self.is_aside, self.again_at = identity, None, False, None

    def stand_at(self, header: SegmentHeader, others: list[Pending]) -> None:
        """Take this place in the chain, with what others have put aside."""
        count = self.count + sum(other.count for other in others)
        end = header.base_offset + count
        self.header = replace(header, end_offset=end, reserved_until=end, writer_id=self.id)
        self._others, self._built = others, None

    def lost(self) -> None:
        """Another's segment is in our place: the next attempt needs a new one."""
        self.header = self._built = None
        self._others = []
        self.losses += 1
        self.is_ours = False

    def build(self) -> tuple[SegmentHeader, memoryview, SegmentSummary]:
        """The segment's bytes for the place it has: the heads of its batches are rewritten, the bodies are not."""
        header = self.header
        assert header is not None, "a window is built once it has a place"
        if self._built is None:
            theirs = [
                batch.at(base + batch.base_offset, header.epoch)
                for other, base in self.others()
                for batch in other.batches
            ]
            extras = Extras(appends=tuple(self.appends())) if theirs else NO_EXTRAS
            self._built = build_segment(header, self._placed(header) + theirs, extras)
        data, summary = self._built
        return header, data, summary

    def _placed(self, header: SegmentHeader) -> list[EncodedBatch]:
        return [
            batch.encoded().at(base + batch.base_offset, header.epoch)
            for entry, base in self.places(header.base_offset)
            for batch in entry.batches
        ]

    def appends(self) -> Iterator[AppendId]:
        """The ids in the segment, for the place the window has."""
        assert self.header is not None, "asked once the window has a place"
        yield AppendId(self.id, self.header.base_offset, self.count)
        for other, base in self.others():
            yield AppendId(other.name.id, base, other.count)

    def places(self, base_offset: int) -> Iterator[tuple[Entry, int]]:
        """Each entry and its first offset, if they begin at `base_offset`."""
        for entry in self.entries:
            yield entry, base_offset
            base_offset += entry.count

    def others(self) -> Iterator[tuple[Pending, int]]:
        """What is taken along, behind our own, and its first offset."""
        assert self.header is not None, "asked once the window has a place"
        base_offset = self.header.base_offset + self.count
        for other in self._others:
            yield other, base_offset
            base_offset += other.count

    def flushed(self, base_offset: int, seconds: float, size: int, now: float) -> FlushDone:
        """Of our records alone: a segment may hold those of others, and theirs ours."""
        end = base_offset + self.count
        return FlushDone(base_offset, end, size, self.charged, seconds, waited=now - self.since)

    def place(self, base_offset: int) -> list[tuple[Future[Receipt], Receipt]]:
        """It is committed there: every append of it has its offsets now."""
        return [placed for entry, base in self.places(base_offset) for placed in entry.place(base)]
