"""Segments ► window ► buffer: the three places of a partition's records, behind one lock and one look-up.

A record moves from the buffer into the window and from there into a segment; each move happens under the lock, whole, so a
look-up finds every acked record exactly once whenever it comes. Nothing slow is done under the lock: no I/O, no encoding.

The marks, all guarded by the same lock, and none of them ever moves back:

    low ≤ durable ≤ buffered ≤ next

`durable` covers what stands in committed segments and nothing else. `buffered` covers what was acked at any level; it
always falls on the end of a batch (see `PendingBatch`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from logstore.config import Visibility
from logstore.engine.chain.chain import ChainTail, ChainView, Link
from logstore.engine.chain.segment_table import LostRange, SegmentRef, Segments
from logstore.engine.host.clock import Clock
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.pending_batch import PendingBatch
from logstore.engine.memory.write_buffer import WriteBuffer
from logstore.errors import OffsetOutOfRange
from logstore.format.segment import SegmentSummary

logger = logging.getLogger(__name__)

_BATCH_BYTES_MIN = 68  # no batch is smaller: bounds how many may fit a read


@dataclass(frozen=True, slots=True)
class Lookup:
    """One consistent look: where the batches from an offset on lie, and the marks at that moment."""

    low: int
    durable: int
    buffered: int
    high: int
    refs: list[SegmentRef]
    window: list[PendingBatch]
    buffer: list[PendingBatch]


class Tiers:
    """`moved` is notified when a mark moves, or when the partition can serve no more.

    `owned`: an exclusive writer is open here or being opened, and it alone moves the end of the chain. Whoever else looks at
    the store may see a segment before its writer knows that it stands, or the fence of the writer's successor.
    """

    def __init__(self, view: ChainView) -> None:
        self.lock = threading.Lock()
        self.moved = threading.Condition(self.lock)
        self.segments: Segments = view.segments
        self.tail: ChainTail = view.tail
        self.low = view.low_watermark
        self.durable = view.tail.end_offset
        self.buffered = view.tail.end_offset
        self.window: FlushWindow | None = None
        self.buffer: WriteBuffer | None = None
        self.owned = False
        self._readers_waiting = 0
        self._listeners: tuple[Callable[[], None], ...] = ()

    def mark(self, visibility: Visibility) -> int:
        return self.durable if visibility == "durable" else self.buffered

    def readable(self, visibility: Visibility) -> int:
        """Up to where there are records to be had: below the mark once a writer has stopped and taken its tail along."""
        return self.durable if self.buffer is None else self.mark(visibility)

    def look_up(self, offset: int, visibility: Visibility, max_bytes: int, where: str) -> Lookup:
        """Where to read from `offset` on. Raises `OffsetOutOfRange` outside of the low and the high mark."""
        with self.lock:
            high = self.mark(visibility)
            if not self.low <= offset <= high:
                raise OffsetOutOfRange(self.low, high, offset, where)
            refs = self.segments.refs_from(offset, max(max_bytes, 0)) if offset < self.durable else []
            window: list[PendingBatch] = []
            buffer: list[PendingBatch] = []
            limit = max(max_bytes, 0) // _BATCH_BYTES_MIN + 1
            # What is pending follows the last segment. A read that takes only some of the segments ends before it, also if
            # these are less than `max_bytes`: not all of an object is batches.
            if visibility == "buffered" and high > self.durable and self.segments.reach_end(refs):
                if self.window is not None and self.window.header.end_offset > offset:
                    window = self.window.batches_from(offset, high, limit)
                if self.buffer is not None:
                    buffer = self.buffer.batches_from(offset, high, limit)
            return Lookup(self.low, self.durable, self.buffered, high, refs, window, buffer)

    def lost_between(self, start: int, stop: int) -> list[LostRange]:
        """The lost offsets from `start` up to `stop`. Those that retention has removed meanwhile were not lost."""
        with self.lock:
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
        with self.lock:
            return self.segments.lost_ranges(self.low, self.tail.end_offset)

    def unconfirmed(self) -> LostRange | None:
        """The offsets past the durable mark that readers may have seen; None if there are none. Holds the lock.

        Where an exclusive writer is open in this process they are exactly those that it has acked. Of another process it is
        known what it has reserved: it may have shown all of that, or nothing, and may be alive or dead.
        """
        end = self.buffered if self.owned else max(self.buffered, self.tail.start_offset)
        return LostRange(self.durable, end) if end > self.durable else None

    # What moves records and marks. The caller holds the lock for all of these.

    def committed(self, summary: SegmentSummary, size: int) -> None:
        """The window's segment stands: its records are served from there from now on."""
        header = summary.header
        assert header.base_offset >= self.durable, "a commit must not move the durable mark back"
        self.segments.add(header.seq, size, summary)
        self.tail = self.tail.after(header)
        self.window = None
        self._raise_marks(header.end_offset)

    def absorb(self, link: Link) -> None:
        """A segment of another writer: take it in."""
        self.segments.add(link.header.seq, link.size, link.summary)
        self.tail = self.tail.after(link.header)
        self._raise_marks(link.header.end_offset)

    def expose(self, end_offset: int) -> None:
        """Everything below `end_offset` is acked: buffered readers may see it."""
        if end_offset > self.buffered:
            self.buffered = end_offset
            self.wake()

    def _raise_marks(self, durable: int) -> None:
        self.durable = max(self.durable, durable)
        self.buffered = max(self.buffered, self.durable)
        self.wake()

    def replace_view(self, view: ChainView, *, by_owner: bool = False) -> None:
        """Maintenance changed which objects hold the records, or where the log begins.

        A writer that commits while the store is asked is ahead of every view of it, so what it has added since stays.
        """
        if view.tail.next_seq < self.tail.next_seq:
            newer = view.segments.followed_by(self.segments, view.tail.next_seq)
            if newer is not None and view.segments.is_complete:
                self.segments = newer
        elif self.owned and not by_owner:
            self.segments = view.segments.up_to(self.tail.next_seq)
        else:
            self.segments, self.tail = view.segments, view.tail
            self._raise_marks(view.tail.end_offset)
        self.begin_at(view.low_watermark)

    def begin_at(self, low: int) -> None:
        """The records below were deleted: perhaps ones too that a successor wrote of whom the writer here has not heard."""
        self.low = max(self.low, min(low, self.durable))

    def wake(self) -> None:
        if self._readers_waiting:
            self.moved.notify_all()

    def wait(self, clock: Clock, timeout: float) -> None:
        """Until something moved, or `timeout` seconds passed; it may return early. Holds the lock, waits without it."""
        self._readers_waiting += 1
        try:
            clock.wait(self.moved, timeout)
        finally:
            self._readers_waiting -= 1

    def wait_until(self, is_done: Callable[[], bool], clock: Clock, deadline: float) -> bool:
        """Whether it is done by the deadline. Holds the lock, waits without it."""
        while not is_done():
            left = deadline - clock.monotonic()
            if left <= 0:
                return False
            self.wait(clock, left)
        return True

    # Listeners are called without the lock: they may read.

    def add_listener(self, listener: Callable[[], None]) -> None:
        with self.lock:
            self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self.lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def tell_listeners(self) -> None:
        """A listener that fails must not make an append look as if it had: the record is acked by now."""
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                logger.exception("a listener failed; the others are told all the same")
