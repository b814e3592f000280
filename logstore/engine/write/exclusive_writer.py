"""The exclusive writer of a partition: one owner, fenced, every ack level.

* **Opening** commits a fence: a segment of epoch + 1 at the next place in the chain. Once it is committed, the next
  commit of any older writer meets it and that writer stops for good. No lease, no clock.
* **An append** takes room from the store's budget, an offset under the partition's lock, and is acked at its level:
  `buffered` at once, `local` when the WAL is fsynced, `durable` when the segment that holds it is committed.
* **A flush** (`run`, on the task pool) takes the buffer as a window, builds one segment and commits it. One is in
  flight at a time; what arrives meanwhile is the next one. A failed upload keeps its window, readable, and is tried
  again, in order.
* **Group commit.** The producers that a commit releases share the next segment, too: see `linger`.
* **An atomic append** over several partitions is decided when its entry in the lane is. Until then what comes behind it has
  an offset that may still become a smaller one: it is neither shown nor acked, at any level.
* **Reservation.** A writer shows readers no offset at or past the last *committed* `reserved_until`, nor past that of the
  segment it is about to commit; the next writer starts there. So an offset that anybody has seen is never given to another
  record, not even after a crash.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from logstore.config import Ack
from logstore.engine.chain.bases import Settled
from logstore.engine.chain.chain import Chain, LostRace
from logstore.engine.chain.fencing import fenced_by
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.chain.view import ChainView
from logstore.engine.host.counters import UNOBSERVED, Flush
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.results import Receipt
from logstore.engine.memory.topic_settings import TopicLimits
from logstore.engine.memory.waiters import OffsetWaiters, complete
from logstore.engine.memory.write_buffer import OPEN_BATCH_BYTES, WriteBuffer
from logstore.engine.runtime import Runtime
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lanes.flushed import Atomic, Committed, Released
from logstore.engine.write.lanes.lane import ENTRY_BYTES, Lane
from logstore.engine.write.lifecycle import WriterStats
from logstore.engine.write.reservation import Reservation
from logstore.engine.write.undecided import UndecidedAppends
from logstore.engine.write.writer_health import WriterHealth
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import (
    BufferFull,
    CorruptData,
    LogStoreError,
    OutcomeUnknown,
    UnsupportedStore,
    fresh,
)
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, WriterMode

logger = logging.getLogger(__name__)

CREDIT_BYTES = 16 * 1024
EXPOSURES = {"durable": Exposure.DURABLE, "local": Exposure.LOCAL, "buffered": Exposure.BUFFERED}


class ExclusiveWriter(Writer):
    """Made by `takeover.take_over`, which has committed the fence. All fields are guarded by the partition's lock.

    `local_sync` asks for batches that wait for a local ack to be brought to disk; None if the store has no WAL.
    """

    is_alone = True

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        topic: TopicLimits,
        on_commit: Callable[[], None],
        lane: Lane | None = None,
    ) -> None:
        super().__init__(runtime, chain, state, WriterStats())
        self.epoch = epoch = state.tail.epoch
        self.durable_waiters: OffsetWaiters[Receipt] = OffsetWaiters()
        self.local_waiters: OffsetWaiters[Receipt] = OffsetWaiters()
        self._undecided = UndecidedAppends()
        self._stopped_at = 0
        self._topic = topic
        self._on_commit = on_commit
        codec = CODEC_IDS[runtime.config.compression]
        batch_bytes = min(OPEN_BATCH_BYTES, runtime.config.max_batch_bytes)
        self._buffer = WriteBuffer(state.tail.end_offset, epoch, codec, batch_bytes)
        self._reservation = Reservation(
            runtime.config.flush_interval,
            begun=state.tail.reserved_until > state.tail.end_offset,
            next_offset=state.tail.end_offset,
            now=runtime.clock.monotonic(),
        )
        self._may_show = state.tail.reserved_until  # no offset from here on
        # What fills an entry need not wait for more: several of them are in flight.
        self._flush_bytes = min(runtime.config.flush_bytes, math.inf if lane is None else ENTRY_BYTES)
        self._credit = 0  # bytes taken from the budget that no record has used yet
        self._urgent_until = 0
        self._due: float | None = None
        self._local_since: float | None = None  # when the oldest append came that waits for a local ack
        self._group_commit = GroupCommitWait(runtime.clock, self._moved)
        self._lane = lane
        self.claim_key = ClaimKey(chain.paths.prefix, epoch)
        self.claim = state.tail.claim or Claim("", 0)
        self._first_seq = state.tail.next_seq
        self.hands_over = False
        self.local_sync: Callable[[], None] | None = None
        state.show(self._buffer)
        if lane is not None:
            lane.add(self.claim_key, self)

    @property
    def next_offset(self) -> int:
        return self._buffer.next_offset

    # Appending

    def add_at_once(self, receipt: Receipt, record: Record, charged: int) -> bool:
        """Ack one record, buffered, if everything it needs is there: the path of a service that appends one by one."""
        state, buffer = self._state, self._buffer
        with self._lock:
            offset, batch = buffer.next_offset, buffer.open_batch
            if (
                batch is None
                or charged > self._credit
                or charged > buffer.batch_bytes - batch.charged
                or offset >= self._may_show
                or self._undecided
            ):
                return False
            self._credit -= charged
            buffer.add_to_open(batch, record, charged)
            receipt.offset = receipt.last_offset = offset
            state.advance_high_watermark(offset + 1)
            if buffer.charged >= self._flush_bytes:
                self._ask_for_flush()
            return True

    def add_one(
        self, receipt: Receipt, record: Record, charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None:
        """Give one record its offset. None if it is acked already, else a future for the ack."""
        if ack == "buffered":
            self._take_credit()
        self.make_room(charged, deadline)
        return self._add_slowly(receipt, [record], None, charged, EXPOSURES[ack], deadline)

    def _take_credit(self) -> None:
        """Room for the next few records in one go. Only where there is data: a flush gives the rest of it back."""
        if self._runtime.budget.try_take(CREDIT_BYTES):
            with self._lock:
                if self._buffer.open_batch is not None and self.failed is None:
                    self._credit += CREDIT_BYTES
                    return
            self._runtime.budget.give_back(CREDIT_BYTES)

    def add_run(
        self, receipt: Receipt, records: list[Record], charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None:
        """Give the records of a small append contiguous offsets in one batch."""
        self.make_room(charged, deadline)
        return self._add_slowly(receipt, records, None, charged, EXPOSURES[ack], deadline)

    def add_encoded(
        self, receipt: Receipt, batches: list[tuple[memoryview, BatchInfo]], ack: Ack, deadline: float
    ) -> Future[Receipt] | None:
        """Give encoded batches contiguous offsets; they become durable together."""
        charged = sum(info.size for _, info in batches)
        self.make_room(charged, deadline)
        return self._add_slowly(receipt, None, batches, charged, EXPOSURES[ack], deadline)

    def _add_slowly(
        self,
        receipt: Receipt,
        records: list[Record] | None,
        batches: list[tuple[memoryview, BatchInfo]] | None,
        charged: int,
        exposure: Exposure,
        deadline: float,
    ) -> Future[Receipt] | None:
        """The general way. `charged` bytes are taken already, and are given back if nothing is added."""
        count = len(records) if records is not None else sum(info.count for _, info in batches or ())
        clock = self._runtime.clock
        filled: PendingBatch | None = None
        try:
            with self._lock:
                self._check_open()
                while exposure and self._buffer.next_offset + count > self._may_show:
                    self._await_reservation(count, deadline)
                now, filled = clock.monotonic(), self._buffer.open_batch
                if records is not None:
                    first = self._buffer.add_records(records, charged, exposure, now)
                else:
                    first, _ = self._buffer.add_encoded(batches or (), exposure, now)
                charged = 0
                receipt.offset, receipt.last_offset = first, first + count - 1
                future = self._acked(receipt, exposure)
                if filled is self._buffer.open_batch:
                    filled = None
        finally:
            if charged:
                self._runtime.budget.give_back(charged)
        if filled is not None:
            filled.encoded()  # in bytes it takes what it was charged for; in small records, three times that
        return future

    def _acked(self, receipt: Receipt, exposure: Exposure) -> Future[Receipt] | None:
        """After the offset: ack now, or note who waits for what. Holds the lock."""
        future: Future[Receipt] | None = None
        end = receipt.last_offset + 1
        if exposure is Exposure.BUFFERED and self._undecided:
            future = self._undecided.shown_waiters.add(receipt.last_offset, receipt)
        elif exposure is Exposure.BUFFERED:
            self._state.advance_high_watermark(end)
        elif exposure is Exposure.LOCAL:
            assert self.local_sync is not None
            future = self.local_waiters.add(receipt.last_offset, receipt)
            now = self._runtime.clock.monotonic()
            self._counted.local_records += end - receipt.offset
            self._local_since = now if self._local_since is None else self._local_since
            self.local_sync()
        else:
            future = self.durable_waiters.add(receipt.last_offset, receipt)
            self._counted.durable_records += end - receipt.offset
            self._urgent_until = end
            if self._lane is not None:
                self._lane.on_append()
            else:
                self._group_commit.on_append(len(self.durable_waiters))
        self._ask_for_flush()
        return future

    # Atomic appends: placed by the partition, decided by the lane

    @property
    def lock(self) -> threading.Lock:
        return self._lock

    @property
    def lane(self) -> Lane | None:
        """Through which it commits."""
        return self._lane

    def check_open(self) -> None:
        """Raises what an append would. Holds the lock."""
        self._check_open()

    def place(self, atomic: Atomic, receipt: Receipt, batches: list[tuple[memoryview, BatchInfo]]) -> None:
        """Give these batches of an atomic append their offsets, as far as those are known now. Holds the lock."""
        now = self._runtime.clock.monotonic()
        first, _ = self._buffer.add_encoded(batches, Exposure.DURABLE, now, atomic)
        end = self._urgent_until = self._buffer.next_offset
        receipt.offset, receipt.last_offset = first, end - 1
        self._undecided.add(atomic, receipt)
        self._counted.durable_records += end - first
        self._ask_for_flush()

    def waiting_until(self, atomic: Atomic) -> int:
        with self._lock:
            return self._buffer.charged_until(atomic)

    def withdraw(self, atomic: Atomic) -> list[Released]:
        """It is not stored, and never will be. What follows moves up, none of which was shown or acked."""
        with self._lock:
            if self.failed is not None:
                return []
            base, moved = self._undecided.remove(atomic)
            count, charged = self._state.leave_out(atomic)
            for waiters in (self.durable_waiters, self.local_waiters, self._undecided.shown_waiters):
                moved += waiters.move_up(base, count)
            for receipt in {id(receipt): receipt for receipt in moved}.values():
                receipt.offset -= count
                receipt.last_offset -= count
            if self._urgent_until > base:
                self._urgent_until = max(base, self._urgent_until - count)
            self._counted.dropped_records += count
            self._counted.dropped_charged += charged
            released = [*self.durable_waiters.release(self._state.durable), *self._decided()]
            self._ask_for_flush()
        self._runtime.budget.give_back(charged)
        return released

    def go_on_behind_another(self) -> None:
        """It was opened ahead of its claim, and another was faster. It has another claim now, behind that one's records, and
        what it was given meanwhile, none of which was shown, has later offsets."""
        with self._lock:
            tail, old = self._state.tail, self.claim_key
            self.epoch, self._first_seq = tail.epoch, tail.next_seq
            self.claim_key = ClaimKey(self._chain.paths.prefix, tail.epoch)
            self.claim = tail.claim or Claim("", 0)
            grown = self._buffer.rebase(tail.end_offset, tail.epoch)
            moved = {id(receipt): receipt for receipt in self.durable_waiters.rebase(grown)}
            for receipt in moved.values():
                if receipt.offset >= 0:
                    receipt.offset += grown
                    receipt.last_offset += grown
            self._urgent_until += grown
            self._may_show = tail.reserved_until
        assert self._lane is not None
        self._lane.claiming.replace(old, self)

    def _decided(self) -> list[Released]:
        """An atomic append was: what waited behind it is shown, up to the next one. Returns who is acked. Holds the lock."""
        stop = self._undecided.begin_at(self._buffer.next_offset)
        self._state.advance_high_watermark(self._state.buffered_until(stop))
        if len(self.local_waiters) and self.local_sync is not None:
            self.local_sync()
        return self._undecided.shown_waiters.release(stop)

    def stop(self, error: LogStoreError) -> None:
        super().stop(error)
        with self._lock:
            undecided = self._undecided.take_all()
        if self._closing:  # nobody may wait on; else the lane says what becomes of them
            for atomic in undecided:
                atomic.fail(error)

    def _ask_for_flush(self) -> None:
        """Tell the task pool when this partition wants to be flushed next. Holds the lock."""
        if self._state.windows and self._lane is None:
            return  # being uploaded or waiting for a retry; what comes after is asked for then
        due = self._flush_due()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            if self._lane is not None:
                self._lane.at(self, due)
            else:
                self._runtime.task_pool.at(self, due)

    def _flush_due(self) -> float | None:
        buffer = self._buffer
        taken = self._state.windows[-1].header.end_offset if self._state.windows else self._state.durable
        if self._urgent_until > taken or self._reservation.wanted or self._closing:
            return self._runtime.clock.monotonic()
        if buffer.oldest_at is None:
            return None
        if buffer.charged >= self._flush_bytes or self._runtime.budget.pressed:
            return self._runtime.clock.monotonic()
        return buffer.oldest_at + self._runtime.config.flush_interval

    def make_room(self, charged: int, deadline: float) -> None:
        """Take as much from the budget, waiting for it up to the deadline. Without the lock."""
        runtime = self._runtime
        if runtime.budget.try_take(charged):
            return
        with runtime.budget.pressing():  # memory pressure: nobody's flush waits for its interval
            runtime.task_pool.all_now()
            runtime.budget.take(charged, max(0.0, deadline - runtime.clock.monotonic()))

    def return_room(self, charged: int) -> None:
        """What `make_room` took was not needed."""
        if charged:
            self._runtime.budget.give_back(charged)

    def _await_reservation(self, count: int, deadline: float) -> None:
        """Wait for a committed reservation that covers `count` more offsets. Holds the lock, waits without it."""
        clock, state = self._runtime.clock, self._state
        self._reservation.ask(count)
        self._ask_for_flush()
        left = deadline - clock.monotonic()
        if left <= 0:
            why = self.stats.last_error or "the store has not answered yet"
            raise BufferFull(
                f"{self._chain.paths}: no reservation past offset {self._may_show} could be committed in time ({why}); what "
                "was reserved is used up, and an offset must not be shown without one: nothing was appended; try again"
            )
        state.wait(clock, left)
        self._check_open()

    def synced(self, shown_until: int, end_offset: int) -> None:
        """The WAL has everything before `end_offset`: show what may be seen of that, and give the `local` acks."""
        with self._lock:
            self.stats.wal_error = None
            if self.failed is not None:
                return  # its waiters have been told
            self._state.advance_high_watermark(shown_until)
            acked = self.local_waiters.release(end_offset)
            waited = self._local_acked(len(acked))
        self._tell_local_ack(waited)
        complete(acked)
        self._state.tell_listeners()

    def _local_acked(self, count: int) -> float | None:
        """So many got their local ack, by the WAL or by a flush: how long the oldest waited. Holds the lock."""
        if not count or self._local_since is None:
            return None
        now = self._runtime.clock.monotonic()
        waited = now - self._local_since
        self._counted.local_ack.observe(waited)
        self._local_since = now if len(self.local_waiters) else None
        return waited

    def _tell_local_ack(self, waited: float | None) -> None:
        if waited is not None:
            paths = self._chain.paths
            self._runtime.observer.local_ack(paths.topic, paths.partition, waited)

    def not_synced(self, why: str) -> None:
        """The WAL could not be written."""
        with self._lock:
            self.stats.wal_error = why

    # Waiting

    def when_durable(self, receipt: Receipt) -> Future[Receipt] | None:
        """A future for the moment when the receipt's records are durable; None if they are. Forces no flush."""
        with self._lock:
            if receipt.last_offset < self.stored_until():
                return None
            if self.failed is not None:
                raise fresh(self.failed)
            return self.durable_waiters.add(receipt.last_offset, receipt)

    def stored_until(self) -> int:
        """Up to where *our* records are durable: once we have stopped, the high watermark may cover another's. Two numbers,
        of which the one that counts only grows: no lock is needed, unless something follows from it at once."""
        return self._state.durable if self.failed is None else self._stopped_at

    def give_up(self, waiting: Future[Receipt]) -> None:
        """Its owner's deadline has passed: do not keep it for as long as an outage lasts."""
        with self._lock:
            self.durable_waiters.discard(waiting)
            self.local_waiters.discard(waiting)
            self._undecided.shown_waiters.discard(waiting)

    def flush_now(self, receipt: Receipt) -> Future[Receipt] | None:
        """Ask for everything appended so far to be flushed; None if it is durable already."""
        with self._lock:
            end = self._buffer.next_offset
            receipt.offset = receipt.last_offset = end - 1
            if end <= self.stored_until():
                return None
            if self.failed is not None:
                raise fresh(self.failed)
            self._urgent_until = end
            future = self.durable_waiters.add(end - 1, receipt)
            self._ask_for_flush()
            return future

    # Flushing: on the task pool's threads, one at a time for each partition

    def run(self) -> None:
        """One step: upload the window there is, or take the next one."""
        with self._lock:
            self._group_commit.wait(self.durable_waiters.__len__, self._is_over)
            self._due = None  # not before: who comes while it lingers need not ask for another run
            window = self._prepare()
        if window is None:
            return
        runtime = self._runtime
        wait = runtime.breaker.delay()
        if wait:
            runtime.task_pool.at(self, runtime.clock.monotonic() + wait)
            return
        paths = self._chain.paths
        with runtime.observer.flush(paths.topic, paths.partition) as flush:
            self._upload(window, flush)

    def _upload(self, window: FlushWindow, flush: Flush) -> None:
        runtime = self._runtime
        began = runtime.clock.monotonic()
        try:
            data, summary = window.build()
            self._chain.commit(window.header, data)
            runtime.reader.keep(self._chain.paths.segment(window.header.seq), data, summary)
        except LostRace as lost:
            runtime.breaker.success()
            fenced = fenced_by(self._chain, self.epoch, lost.winner)
            flush.failed(fenced)
            self.stop(fenced)
        except (CorruptData, OutcomeUnknown, UnsupportedStore) as error:
            runtime.breaker.success()
            flush.failed(error)
            self.stop(error)
        except Exception as error:
            flush.failed(error)
            self._retry_later(error)
        else:
            runtime.breaker.success()
            seconds = runtime.clock.monotonic() - began
            with self._lock:
                committed = self.commit(window, Link(summary, len(data)), seconds)
            if committed is not None:
                runtime.budget.give_back(committed.done.charged)
                self.committed(committed)
                self.acked(committed.released)
            if flush is not UNOBSERVED:
                flush.done(window.done(len(data), seconds, runtime.clock.monotonic()))

    @property
    def waiting_bytes(self) -> int:
        """What the next window would hold, about."""
        return self._buffer.charged

    def prepare(self, atomics: Collection[Atomic]) -> FlushWindow | None:
        """What a lane asks: the window that its next entry takes along."""
        with self._lock:
            self._due = None
            return self._prepare(atomics)

    def settled(self) -> Settled | None:
        """What is known of the chain before our own segments."""
        return self._state.settled(self._first_seq)

    def replace_view(self, view: ChainView) -> None:
        """Maintenance has changed which objects hold the records."""
        self._state.replace_view(view)

    def _is_over(self) -> bool:
        return self.failed is not None or self._closing

    def _prepare(self, atomics: Collection[Atomic] = ()) -> FlushWindow | None:
        """The window that is waiting for its retry, or a new one. Holds the lock."""
        state, buffer = self._state, self._buffer
        if self.failed is not None:
            return None
        if state.windows and self._lane is None:
            return state.windows[0]
        before = state.windows[-1].header if state.windows else None
        reserved = state.tail.reserved_until if before is None else before.reserved_until
        closes_reservation = self._closing and reserved > buffer.next_offset
        base, oldest_at = buffer.base_offset, buffer.oldest_at
        batches = buffer.take(
            self._topic.segment_bytes if self._lane is None else min(self._topic.segment_bytes, ENTRY_BYTES),
            atomics,
        )
        if not (batches or self._reservation.wanted or closes_reservation or self._owes_farewell()):
            return None
        end = batches[-1].end_offset if batches else base
        reserved = self._reservation.until(buffer.next_offset, self._runtime.clock.monotonic())
        if self._closing:  # nothing more can be shown: the last segment gives the rest back
            reserved = buffer.next_offset
        header = SegmentHeader(
            seq=state.tail.next_seq + len(state.windows),
            epoch=self.epoch,
            base_offset=base,
            end_offset=end,
            writer_id=self._runtime.new_id(),
            created_at_ms=self._runtime.clock.now_ms(),
            reserved_until=reserved,
            mode=WriterMode.EXCLUSIVE,
            flags=SegmentFlags.CLOSED if self._closing and not len(buffer) else SegmentFlags.NONE,
        )
        self._may_show = min(self._may_show, reserved)  # whether or not its answer comes
        self._runtime.watch.began(self, self._chain.paths)
        self._return_credit()
        return state.begin_window(FlushWindow(header, batches, oldest_at))

    def _owes_farewell(self) -> bool:
        """Whether there must be a last segment that says that we have closed, also if it has nothing else to say. One that
        asked the writer before it for that does the same for the next. Otherwise it would be one PUT more for each close."""
        is_asked = self._runtime.config.take_over == "if_gone" or self.hands_over
        says_it = any(SegmentFlags.CLOSED in window.header.flags for window in self._state.windows)
        return self._closing and is_asked and not says_it and not self._state.tail.closed

    def hand_over(self) -> None:
        """Before it is closed: whoever writes the partition next need not ask for it. In a lane the last entry says so."""
        with self._lock:
            self.hands_over = self._lane is not None and not self._closing

    def _return_credit(self) -> None:
        if self._credit:
            self._runtime.budget.give_back(self._credit)
            self._credit = 0

    def commit(self, window: FlushWindow, link: Link, seconds: float) -> Committed | None:
        """The window's segment is stored: its records are durable from now on. Holds the lock."""
        state, clock = self._state, self._runtime.clock
        if self.failed is not None:
            return None  # given up by close() while the upload was under way; what it held was freed then
        state.commit_window(link)
        self._may_show = min(
            (window.header.reserved_until for window in state.windows), default=state.tail.reserved_until
        )
        self._may_show = min(self._may_show, state.tail.reserved_until)
        released = self.durable_waiters.release(state.durable)
        local = self.local_waiters.release(state.durable)
        waited = self._local_acked(len(local))
        released += local
        if self._undecided.stored_below(state.durable):
            released += self._decided()
        self._group_commit.after_commit(len(released), len(self.durable_waiters), seconds)
        self.stats.commits += 1
        now = clock.monotonic()
        done = window.done(link.size, seconds, now)
        self._counted.flushed(done)
        self.stats.progressed(now)
        self._ask_for_flush()
        return Committed(done, released, waited, bool(state.windows))

    def committed(self, done: Committed) -> None:
        """What is done without the lock, before those who waited are told."""
        self._runtime.watch.ended(self)
        self._tell_local_ack(done.local_wait_s)
        paths = self._chain.paths
        self._runtime.observer.stored(paths.topic, paths.partition, done.done, in_lane=self._lane is not None)
        if done.waits_on:
            self._runtime.watch.began(self, self._chain.paths)

    def acked(self, released: list[Released]) -> None:
        """Tell those who waited."""
        complete(released)
        self._state.tell_listeners()
        self._on_commit()

    def _retry_later(self, error: Exception) -> None:
        runtime = self._runtime
        runtime.breaker.failure()
        failures = self.attempt_failed(error)
        logger.warning(
            "%s: upload %d of this segment failed, trying again: %s", self._chain.paths, failures, error
        )
        runtime.task_pool.at(self, runtime.clock.monotonic() + runtime.backoff(failures))

    # The end

    def _let_go(self) -> tuple[int, list[Future[Any]]]:
        state = self._state
        self._stopped_at = state.durable
        if self.unstored is None and state.buffered > state.durable:
            self.unstored = LostRange(state.durable, state.buffered)
        self._counted.dropped_records += self._buffer.next_offset - state.durable
        self._counted.dropped_charged += state.held_bytes()
        freed, self._credit = state.abandon() + self._credit, 0
        waiting = (self.durable_waiters, self.local_waiters, self._undecided.shown_waiters)
        return freed, [future for waiters in waiting for future in waiters.take_all()]

    def _log_stop(self, error: LogStoreError) -> None:
        if self.unstored is not None:
            start, end = self.unstored
            logger.error("%s: offsets %d to %d are not stored: %s", self._chain.paths, start, end - 1, error)

    def after_fork_in_child(self, error: LogStoreError) -> None:
        """No credit either, so that `add_at_once` takes nothing."""
        if self.failed is None:
            self._stopped_at, self._credit = self._state.durable, 0
        super().after_fork_in_child(error)

    def _ask_to_drain(self) -> None:
        self._buffer.close_batch()
        self._ask_for_flush()

    def _is_drained(self) -> bool:
        """Everything is durable, and the reservation given back."""
        end, state = self._buffer.next_offset, self._state
        is_stored = not state.windows and not len(self._buffer) and state.tail.reserved_until <= end
        return is_stored and not self._owes_farewell()

    def _left_behind(self, drained: bool) -> LogStoreError | None:
        if drained:
            return None
        durable, end = self._state.durable, self._buffer.next_offset
        if end > durable:
            self.unstored = LostRange(durable, end)
        why = self.stats.last_error or "the store did not answer in time"
        return OutcomeUnknown(
            f"{self._chain.paths}: closed before offsets {durable} to {end - 1} were stored: {why}"
        )

    def health_report(self) -> WriterHealth:
        durable = self._state.durable
        held = self.failed is None and self.next_offset > durable
        waits_late = (
            self._lane is not None and self._lane.is_late
        )  # for another's upload, in which it had no part
        stalled = held and (waits_late or self._runtime.watch.is_late(self))
        return replace(
            self._told("exclusive", self.epoch, durable, stalled),
            next_offset=self.next_offset,
            unflushed_records=self.next_offset - durable if held else 0,
            unflushed_bytes=self._state.held_bytes(),
            unflushed_seconds=self._held_seconds() if held else 0.0,
            wal_error=self.stats.wal_error,
            held_at_offset=durable if stalled else None,
        )

    def _held_seconds(self) -> float:
        """For how long the oldest record that is not durable has waited. Holds the lock."""
        windows = self._state.windows
        since = windows[0].oldest_at if windows else self._buffer.oldest_at
        return 0.0 if since is None else round(self._runtime.clock.monotonic() - since, 3)
