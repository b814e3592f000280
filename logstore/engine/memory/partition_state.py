"""Partition state: committed segments, the flush window and the write buffer, behind one lock and one look-up.

A record moves from the buffer into the window and from there into a segment; each move happens under the lock, whole, so a
look-up finds every acked record exactly once whenever it comes. Nothing slow is done under the lock: no I/O, no encoding.

The state owns its lock and its fields. Others read a field, which needs no lock, ask for several that belong together
(`marks`, `look_up`), and call a transition. A writer's own fields are guarded by the same lock, so that an append, a commit
and a stop are one step each: `WriterLifecycle` takes it with `writers_lock`, once, for every kind of writer.

The watermarks, all guarded by the same lock, and none of them ever moves back:

    low ≤ durable ≤ buffered ≤ next

`durable` covers what is in committed segments and nothing else. `buffered` covers what was acked at any level; it
always falls on the end of a batch (see `PendingBatch`).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeVar

from logstore.config import Visibility
from logstore.engine.chain.bases import Settled, settled_of
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_table import LostRange, SegmentRef, Segments
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.host.clock import Clock
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.write_buffer import WriteBuffer
from logstore.errors import OffsetOutOfRange
from logstore.format.stored.manifest import SegmentTable

T = TypeVar("T")
logger = logging.getLogger(__name__)

_BATCH_BYTES_MIN = 68  # no batch is smaller: bounds how many may fit a read


class Marks(NamedTuple):
    """The watermarks of a partition at one moment: the first offset there is, one past the last one in the object store, and
    one past the last acked one. Never `low > durable` or `durable > buffered`."""

    low: int
    durable: int
    buffered: int


@dataclass(frozen=True, slots=True)
class Overview:
    """What `health()` shows of the state, at one moment."""

    epoch: int
    marks: Marks
    unconfirmed: LostRange | None
    segments: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """One consistent look: where the batches from an offset on lie, and the watermarks at that moment."""

    low: int
    durable: int
    buffered: int
    refs: list[SegmentRef]
    window: list[PendingBatch]
    buffer: list[PendingBatch]


class PartitionState:
    """`has_local_writer`: an exclusive writer is open here or being opened, and it alone moves the end of the chain.
    Whoever else looks at the store may see a segment before its writer knows that it is committed, or the fence of
    the writer's successor.
    """

    def __init__(self, view: ChainView) -> None:
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)  # a watermark moved, or the partition can serve no more
        self.segments: Segments = view.segments
        self.tail: ChainTail = view.tail
        self.low = view.low_watermark
        self.durable = view.tail.end_offset
        self.buffered = view.tail.end_offset
        self.windows: list[FlushWindow] = []  # in the order of their offsets
        self.buffer: WriteBuffer | None = None
        self.has_local_writer = False
        self._readers_waiting = 0
        self._listeners: tuple[Callable[[], None], ...] = ()

    # Looking

    def marks(self) -> Marks:
        """All three at one moment; read one by one they may belong to different ones."""
        with self._lock:
            return self._marks()

    def _marks(self) -> Marks:
        return Marks(self.low, self.durable, self.buffered)

    def overview(self, writer: Callable[[], T]) -> tuple[Overview, T]:
        """The state, and what `writer` says, at one moment: it is called with the lock held."""
        with self._lock:
            unconfirmed = self._unconfirmed()
            return Overview(self.tail.epoch, self._marks(), unconfirmed, len(self.segments)), writer()

    def high_watermark(self, visibility: Visibility) -> int:
        """For `committed`, the most that it can be: where the first open transaction begins is not known here."""
        return self.buffered if visibility == "buffered" else self.durable

    def readable_end(self, visibility: Visibility) -> int:
        """Up to where there are records to be had: below the high watermark once a writer has stopped and taken its
        tail along."""
        return self.durable if self.buffer is None else self.high_watermark(visibility)

    def look_up(self, offset: int, visibility: Visibility, max_bytes: int, where: str) -> Lookup:
        """Where to read from `offset` on. Raises `OffsetOutOfRange` outside of the low and the high watermark."""
        with self._lock:
            high = self.high_watermark(visibility)
            if not self.low <= offset <= high:
                raise OffsetOutOfRange(self.low, high, offset, where)
            refs = self.segments.refs_from(offset, max(max_bytes, 0)) if offset < self.durable else []
            window: list[PendingBatch] = []
            buffer: list[PendingBatch] = []
            limit = max(max_bytes, 0) // _BATCH_BYTES_MIN + 1
            # What is pending follows the last segment. A read that takes only some of the segments ends before it, also if
            # these are less than `max_bytes`: not all of an object is batches.
            if visibility == "buffered" and high > self.durable and self.segments.reach_end(refs):
                for taken in self.windows:
                    if taken.header.end_offset > offset:
                        window += taken.batches_from(offset, high, limit)
                if self.buffer is not None:
                    buffer = self.buffer.batches_from(offset, high, limit)
            return Lookup(self.low, self.durable, self.buffered, refs, window, buffer)

    def lost_between(self, start: int, stop: int) -> list[LostRange]:
        """The lost offsets from `start` up to `stop`. Those that retention has removed meanwhile were not lost."""
        with self._lock:
            start = max(start, self.low)
            row = self.segments.row_at(start)
            lost: list[LostRange] = []
            table = self.segments.table
            while start < min(stop, self.durable):
                base = table.base_offset[row] if row < len(table) else self.durable
                if base > start:
                    lost.append(LostRange(start, min(base, stop)))
                start = table.end_offset[row] if row < len(table) else self.durable
                row += 1
            return lost

    @property
    def reaches_past_tail(self) -> bool:
        """Whether the last row is a merged object that holds, too, what the successor of the writer here has appended."""
        ends = self.segments.table.end_offset
        return bool(ends) and ends[-1] > self.tail.end_offset

    def is_lost(self, start: int, end: int) -> bool:
        """Whether any of these offsets went down with a crash."""
        return bool(self.lost_between(start, end))

    def lost_ranges(self) -> list[LostRange]:
        with self._lock:
            return self.segments.lost_ranges(self.low, self.tail.end_offset)

    def unconfirmed(self) -> LostRange | None:
        """The offsets past the durable high watermark that readers may have seen; None if there are none.

        Where an exclusive writer is open in this process they are exactly those that it has acked. Of another process it is
        known what it has reserved: it may have shown all of that, or nothing, and may be alive or dead.
        """
        with self._lock:
            return self._unconfirmed()

    def _unconfirmed(self) -> LostRange | None:
        end = self.buffered if self.has_local_writer else max(self.buffered, self.tail.start_offset)
        return LostRange(self.durable, end) if end > self.durable else None

    def reserved_end(self) -> int:
        """Before this offset a reader may have been anywhere."""
        with self._lock:
            unconfirmed = self._unconfirmed()
            return self.durable if unconfirmed is None else unconfirmed.end

    def refs(self) -> list[SegmentRef]:
        """The committed objects."""
        with self._lock:
            return self.segments.all()

    def refs_behind(self, ref: SegmentRef, count: int) -> list[SegmentRef]:
        """The next ones after it."""
        with self._lock:
            return self.segments.behind(ref, count)

    def is_named(self, ref: SegmentRef) -> bool:
        """Whether its object is still the one that holds these offsets."""
        with self._lock:
            row = self.segments.row_at(max(ref.base_offset, self.low))
            return row < len(self.segments) and self.segments.ref(row).key == ref.key

    def refs_by_time(self, timestamp_ms: int) -> tuple[Marks, Iterable[SegmentRef]]:
        """The segments that may hold a record of this time or a later one, and the watermarks at the same moment."""
        with self._lock:
            segments, rows = self.segments, self.segments.rows_by_time(timestamp_ms)
            # They are made without the lock: a table only grows, or is replaced as a whole.
            return self._marks(), (segments.ref(int(row)) for row in rows)

    def pending_from(self, offset: int) -> tuple[list[PendingBatch], int]:
        """The batches from `offset` on that are in no segment yet, closed, up to the first atomic append, whose offsets and
        those behind it are not certain; and the durable high watermark."""
        found: list[PendingBatch] = []
        with self._lock:
            for window in self.windows:
                found += window.batches
            if self.buffer is not None:
                found += self.buffer.batches_from(offset, self.buffer.next_offset, len(self.buffer))
            certain = takewhile(lambda batch: batch.atomic is None, found)
            return [batch for batch in certain if batch.base_offset >= offset], self.durable

    def extend_table(self, table: SegmentTable, next_seq: int) -> tuple[ChainTail, int]:
        """Add the rows from the place `next_seq` on. Returns the tail and the low watermark of the same moment."""
        with self._lock:
            ours = self.segments.table
            table.extend(ours, bisect_left(ours.last_seq, next_seq), len(ours))
            return self.tail, self.low

    def settled(self, first_seq: int, before: Settled | None = None) -> Settled | None:
        """What is known of the chain before the parts of a claim whose first place is `first_seq`. `before`: as it was."""
        with self._lock:
            return settled_of(self.segments, self.tail, first_seq, self.low, before)

    def end_to_follow(self) -> tuple[ChainTail, bool]:
        """Where the chain ends as last seen, and whether what comes next can be added behind it."""
        with self._lock:
            return self.tail, self.tail.damaged is None and not self.reaches_past_tail

    # What others have committed, or changed

    def add_committed(self, links: Iterable[Link], *, by_owner: bool = False) -> bool:
        """Take in the segments that follow the tail, unless that is the business of a writer here. Whether there was any."""
        with self._lock:
            before = self.tail.next_seq
            for link in links:
                if link.header.seq == self.tail.next_seq and (by_owner or not self.has_local_writer):
                    self._add(link)
            return self.tail.next_seq > before

    def _add(self, link: Link) -> None:
        header = link.summary.header
        if not self.segments.holds(
            header.seq
        ):  # else it was merged before its writer knew that it had landed
            self.segments.add(header.seq, link.size, link.summary, link.key)
        self.tail = self.tail.after(header, link.said)
        self._raise_watermarks(header.end_offset)

    def _raise_watermarks(self, durable: int) -> None:
        if durable > self.durable:
            self.durable = durable
        if self.durable > self.buffered:
            self.buffered = self.durable
        if self._readers_waiting:
            self._moved.notify_all()

    def replace_view(self, view: ChainView, *, by_owner: bool = False) -> None:
        """Maintenance changed which objects hold the records, or where the log begins.

        A writer that commits while the store is asked is ahead of every view of it, so what it has added since stays.
        """
        with self._lock:
            if view.tail.next_seq < self.tail.next_seq:
                newer = view.segments.followed_by(self.segments, view.tail.next_seq)
                if newer is not None and view.segments.is_complete:
                    self.segments = newer
            elif self.has_local_writer and not by_owner:
                self.segments = view.segments.up_to(self.tail.next_seq)
            else:
                self.segments, self.tail = view.segments, view.tail
                self._raise_watermarks(view.tail.end_offset)
            self._raise_low(view.low_watermark)

    def raise_low_watermark(self, low: int) -> None:
        """The records below were deleted: perhaps ones too that a successor wrote of whom the writer here does not know."""
        with self._lock:
            self._raise_low(low)

    def _raise_low(self, low: int) -> None:
        self.low = max(self.low, min(low, self.durable))

    # Waiting

    def await_past(
        self,
        offset: int,
        visibility: Visibility,
        clock: Clock,
        timeout: float,
        is_over: Callable[[], bool],
    ) -> bool:
        """Whether there is something at `offset`, or it is over. If not, waits until something moves, up to `timeout`."""
        with self._lock:
            if self.readable_end(visibility) > offset or is_over():
                return True
            self.wait(clock, timeout)
            return False

    def wake_all(self) -> None:
        """The partition can serve no more: let every reader look again."""
        with self._lock:
            self._moved.notify_all()
        self.tell_listeners()

    # The writers here

    def own(self) -> None:
        """An exclusive writer is being opened here: from now on it alone moves the end of the chain."""
        with self._lock:
            self.has_local_writer = True

    def disown(self) -> None:
        """It could not be opened."""
        with self._lock:
            self.has_local_writer = False

    def go_on(self, owner: bytes) -> None:
        """It goes on behind another's last segment, as that one's next life: past everything that readers may have seen."""
        with self._lock:
            start = self.tail.start_offset
            self.tail = self.tail._replace(end_offset=start, reserved_until=start, owner=owner, closed=False)
            self._raise_watermarks(start)

    def retreat(self, tail: ChainTail) -> None:
        """The fence that was to come behind it is not committed: another's does, and is found from there."""
        with self._lock:
            self.tail = tail

    def complete(self, view: ChainView) -> None:
        """Until now only the end was known, from a lane; this is the whole partition."""
        with self._lock:
            self.low, self.segments.is_complete = view.low_watermark, True
            self.tail = self.tail._replace(source_upper=view.tail.source_upper, horizon=view.tail.horizon)
        self.replace_view(view)

    def show(self, buffer: WriteBuffer) -> None:
        """It is open: what it holds can be read."""
        with self._lock:
            self.buffer = buffer

    def writers_lock(self) -> tuple[threading.Lock, threading.Condition]:
        """The lock, and the condition on it that wakes readers and writers. Those below are called with it held."""
        return self._lock, self._moved

    def advance_high_watermark(self, end_offset: int) -> None:
        """Everything below `end_offset` is acked: buffered readers may see it."""
        if end_offset > self.buffered:
            self.buffered = end_offset
            if self._readers_waiting:
                self._moved.notify_all()

    def begin_window(self, window: FlushWindow) -> FlushWindow:
        """Its batches were taken from the buffer, and are read from here until they are committed."""
        self.windows.append(window)
        return window

    def commit_window(self, link: Link) -> None:
        """The oldest window's segment is committed: its records are served from there from now on."""
        assert link.header.base_offset >= self.durable, (
            "a commit must not move the durable high watermark back"
        )
        del self.windows[0]
        self._add(link)

    def leave_out(self, atomic: object) -> tuple[int, int]:
        """It will not be stored: what follows moves up, none of which was shown. Returns how many records and how many bytes
        it had."""
        assert self.buffer is not None, "a writer is open"
        for window in self.windows:
            count, charged = window.leave_out(atomic)
            if count:
                assert window is self.windows[-1], "nothing is under way behind an atomic append"
                self.buffer.move_up(count)
                return count, charged
        return self.buffer.leave_out(atomic)

    def buffered_until(self, stop: int) -> int:
        """The end of the last batch before `stop` that is to be shown before it is stored; 0 if there is none."""
        batches = [batch for window in self.windows for batch in window.batches]
        if self.buffer is not None:
            batches += self.buffer.batches_from(self.durable, stop, len(self.buffer))
        ends = (batch.end_offset for batch in batches if batch.exposure is Exposure.BUFFERED)
        return max((end for end in ends if end <= stop), default=0)

    def held_bytes(self) -> int:
        """How many bytes of the budget the writer's records hold that are not committed."""
        held = self.buffer.charged if self.buffer is not None else 0
        return held + sum(window.charged for window in self.windows)

    def abandon(self) -> int:
        """The writer has stopped and takes along what is not committed. Returns how many bytes that frees."""
        freed = self.buffer.clear() if self.buffer is not None else 0
        freed += sum(window.charged for window in self.windows)
        self.windows, self.buffer = [], None
        self.has_local_writer = False
        return freed

    def wait(self, clock: Clock, timeout: float) -> None:
        """Until something moved, or `timeout` seconds passed; it may return early. Waits without the lock."""
        self._readers_waiting += 1
        try:
            clock.wait(self._moved, timeout)
        finally:
            self._readers_waiting -= 1

    def wait_until(self, is_done: Callable[[], bool], clock: Clock, deadline: float) -> bool:
        """Whether it is done by the deadline. Waits without the lock."""
        while not is_done():
            left = deadline - clock.monotonic()
            if left <= 0:
                return False
            self.wait(clock, left)
        return True

    # Listeners are called without the lock: they may read.

    def add_listener(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def tell_listeners(self) -> None:
        """A listener that fails must not make an append look as if it had: the record is acked by now."""
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                logger.exception("a listener failed; the others are told all the same")
