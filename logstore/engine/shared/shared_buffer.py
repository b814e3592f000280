"""What a shared writer holds: appends without offsets, because only the commit decides those.

An *entry* is a group of batches that is stored whole: either one append that came encoded, or one open batch that several
small appends share. Inside an entry offsets count from 0; `place` says where it landed, and every append of it gets its
final offsets then. A *window* is what is committed together. Losing a race gives it a new place in the chain and lets later
entries join it, unless it was put aside for others to commit; the bodies of its batches are encoded once and never change.

Guarded by the partition's lock, except `SharedWindow.at`, which encodes and is called without it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from logstore.format.stored.segment import HEADER_SIZE, SegmentHeader, SegmentSummary, build_segment
from logstore.layout.paths import PendingName

_PUT_ASIDE_AGAIN = 64
"""After so many places in which it is not: who commits may not know the place where it was born, having come later."""


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
    sequences: Sequences | None = None

    @property
    def count(self) -> int:
        return sum(batch.count for batch in self.batches)

    @property
    def charged(self) -> int:
        return sum(batch.charged for batch in self.batches)

    def join(self, receipt: Receipt, count: int) -> Future[Receipt]:
        """Note who waits for the `count` records that were added last."""
        future: Future[Receipt] = Future()
        self.joined.append(Joined(receipt, future, self.count - count, count))
        return future

    def part_with_flushes(self) -> list[Entry]:
        """Those who wait here for no append of their own, in an entry without records, if there are any."""
        flushes = [joined for joined in self.joined if not joined.records]
        self.joined = [joined for joined in self.joined if joined.records]
        return [Entry(joined=flushes)] if flushes else []

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
        return self._joined(entry, receipt, len(records), charged)

    def add_encoded(
        self, receipt: Receipt, batches: Sequence[tuple[memoryview, BatchInfo]], sequences: Sequences | None
    ) -> Future[Receipt]:
        """An entry of its own: one append, stored whole."""
        entry, count = Entry(sequences=sequences), 0
        for raw, info in batches:
            entry.batches.append(PendingBatch.ready(count, 0, Exposure.DURABLE, raw, info, info.size))
            count += info.count
        self._entries.append(entry)
        self._open = None
        return self._joined(entry, receipt, count, entry.charged)

    def _joined(self, entry: Entry, receipt: Receipt, count: int, charged: int) -> Future[Receipt]:
        self.charged += charged
        self.count += count
        self.appends += 1
        return entry.join(receipt, count)

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
            self.appends -= sum(joined.records > 0 for joined in entry.joined)
        return entries

    def take_all(self) -> list[Entry]:
        return self.take(self.charged, at_least_one=True)


class Attempt(NamedTuple):
    """A window's segment at one place in the chain, and the ids of all appends in it."""

    header: SegmentHeader
    data: memoryview
    summary: SegmentSummary
    appends: list[AppendId]

    @property
    def batches(self) -> memoryview:
        return self.data[HEADER_SIZE : self.summary.index_position]


class SharedWindow:
    """What one writer has to commit, under one id: with its own segment or, put aside, with another's.

    An attempt, and so its place in the chain, stays the same until something is in that place: a lost answer can then be
    told from a lost race. Once it was put aside, or may have been, its entries stay the same as well.
    `since`: when its oldest append came.
    """

    def __init__(self, identity: bytes, since: float) -> None:
        self.since = since
        self.id = identity
        self.attempt: Attempt | None = None
        self.aside: PendingName | None = None  # as which it was last put aside, or was to be
        self.is_aside = False  # and certainly is
        self.is_ours = False  # nobody commits for us, so we do
        self.carry([])

    def carry(self, entries: list[Entry]) -> None:
        """From now on these. Only while it has no place and is not put aside."""
        assert self.attempt is None, "what has a place does not change"
        assert self.aside is None, "nor what others may commit"
        self.entries = entries
        self.count = sum(entry.count for entry in self.entries)
        self.charged = sum(entry.charged for entry in self.entries)

    def put_aside(self, header: SegmentHeader) -> memoryview:
        """It is `aside` now. Returns the object: a segment whose offsets count from 0."""
        self.aside, self.is_aside = PendingName(header.seq, self.id), False
        return self.at(replace(header, base_offset=0)).data

    def is_overlooked(self, seq: int) -> bool:
        """The chain has got to place `seq` without it: time to put it aside again?"""
        return self.aside is not None and seq >= self.aside.born + _PUT_ASIDE_AGAIN

    def lost(self) -> None:
        """Another's segment is in our place: the next attempt needs a new one."""
        self.attempt, self.is_ours = None, False

    def at(self, header: SegmentHeader, others: Sequence[Pending] = ()) -> Attempt:
        """It and what others have put aside as a segment in the header's place: the heads of the batches are rewritten, the
        bodies are not."""
        end = header.base_offset
        batches: list[EncodedBatch] = []
        for entry in self.entries:
            batches += [batch.encoded().at(end + batch.base_offset, header.epoch) for batch in entry.batches]
            end += entry.count
        appends = [AppendId(self.id, header.base_offset, self.count)]
        for other in others:
            batches += [batch.at(end + batch.base_offset, header.epoch) for batch in other.batches]
            appends.append(AppendId(other.name.id, end, other.count))
            end += other.count
        header = replace(header, end_offset=end, reserved_until=end, writer_id=self.id)
        extras = Extras(appends=tuple(appends)) if others else NO_EXTRAS
        return Attempt(header, *build_segment(header, batches, extras), appends)

    def flushed(self, base_offset: int, seconds: float, size: int, now: float) -> FlushDone:
        """Of our records alone: a segment may hold those of others, and theirs ours."""
        end = base_offset + self.count
        return FlushDone(base_offset, end, size, self.charged, seconds, waited=now - self.since)

    def place(self, base_offset: int) -> list[tuple[Future[Receipt], Receipt]]:
        """It is committed there: every append of it has its offsets now."""
        placed = []
        for entry in self.entries:
            placed += entry.place(base_offset)
            base_offset += entry.count
        return placed
