"""What the exclusive writer of a partition is given: room, offsets, and who waits for which ack.

* **An append** takes room from the store's budget, an offset under the partition's lock, and is acked at its level:
  `buffered` at once, `local` when the WAL is fsynced, `durable` when the segment that holds it is committed.
* **An atomic append** over several partitions is decided when its entry in the lane is. Until then what comes behind it has
  an offset that may still become a smaller one: it is neither shown nor acked, at any level.
* **Reservation.** A writer shows readers no offset at or past the last *committed* `reserved_until`, nor past that of the
  segment it is about to commit; the next writer starts there. So an offset that anybody has seen is never given to another
  record, not even after a crash.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

from logstore.config import Ack
from logstore.engine.chain.chain import Chain
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.results import Receipt
from logstore.engine.memory.waiters import BlockingWait, OffsetWaiters, complete
from logstore.engine.memory.write_buffer import OPEN_BATCH_BYTES, WriteBuffer
from logstore.engine.runtime import Runtime
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lanes.flushed import Atomic, Released
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.lanes.lane_queue import ENTRY_BYTES, SMALL_BYTES
from logstore.engine.write.lifecycle import WriterStats
from logstore.engine.write.reservation import Reservation
from logstore.engine.write.undecided import UndecidedAppends
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import (
    BufferFull,
    LogStoreError,
    fresh,
)
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record

CREDIT_BYTES = 16 * 1024
EXPOSURES = {"durable": Exposure.DURABLE, "local": Exposure.LOCAL, "buffered": Exposure.BUFFERED}


class ExclusiveAppends(Writer):
    """All fields are guarded by the partition's lock.

    `local_sync` asks for batches that wait for a local ack to be brought to disk; None if the store has no WAL.
    """

    is_alone = True
    __slots__ = (
        "_buffer",
        "_credit",
        "_flush_bytes",
        "_group_commit",
        "_lane",
        "_local_since",
        "_may_show",
        "_reservation",
        "_stopped_at",
        "_undecided",
        "_urgent_until",
        "durable_waiters",
        "epoch",
        "local_sync",
        "local_waiters",
    )

    def __init__(self, runtime: Runtime, chain: Chain, state: PartitionState, lane: Lane | None) -> None:
        super().__init__(runtime, chain, state, WriterStats())
        self.epoch = epoch = state.tail.epoch
        self.durable_waiters: OffsetWaiters[Receipt] = OffsetWaiters()
        self.local_waiters: OffsetWaiters[Receipt] = OffsetWaiters()
        self._undecided = UndecidedAppends()
        self._stopped_at = 0
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
        self._local_since: float | None = None  # when the oldest append came that waits for a local ack
        self._lane = lane
        # A lane waits for company itself.
        self._group_commit = GroupCommitWait(runtime.clock, self._moved) if lane is None else None
        self.local_sync: Callable[[], None] | None = None
        state.show(self._buffer)

    @abstractmethod
    def _ask_for_flush(self) -> None:
        """Tell when this partition wants to be flushed next. Holds the lock."""

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
        """Give one record its offset. None if it is acked already, else a future for the ack, on which the caller waits."""
        if ack == "buffered":
            self._take_credit()
        self.make_room(charged, deadline)
        wait: BlockingWait[Receipt] = BlockingWait()
        return self._add_slowly(receipt, [record], None, charged, EXPOSURES[ack], deadline, wait)

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
        wait: Future[Receipt] | None = None,
    ) -> Future[Receipt] | None:
        """The general way. `charged` bytes are taken already, and are given back if nothing is added."""
        count = len(records) if records is not None else sum(info.count for _, info in batches or ())
        clock = self._runtime.clock
        filled: PendingBatch | None = None
        try:
            with self._lock:
                self.check_open()
                while exposure and self._buffer.next_offset + count > self._may_show:
                    self._await_reservation(count, deadline)
                now, filled = clock.monotonic(), self._buffer.open_batch
                if records is not None:
                    first = self._buffer.add_records(records, charged, exposure, now)
                else:
                    first, _ = self._buffer.add_encoded(batches or (), exposure, now)
                charged = 0
                receipt.offset, receipt.last_offset = first, first + count - 1
                future = self._acked(receipt, exposure, wait)
                if filled is self._buffer.open_batch:
                    filled = None
        finally:
            if charged:
                self._runtime.budget.give_back(charged)
        if filled is not None:
            filled.encoded()  # in bytes it takes what it was charged for; in small records, three times that
        return future

    def _acked(
        self, receipt: Receipt, exposure: Exposure, wait: Future[Receipt] | None
    ) -> Future[Receipt] | None:
        """After the offset: ack now, or note who waits for what. Holds the lock."""
        future: Future[Receipt] | None = None
        end = receipt.last_offset + 1
        if exposure is Exposure.BUFFERED and self._undecided:
            future = self._undecided.shown_waiters.add(receipt.last_offset, receipt, wait)
        elif exposure is Exposure.BUFFERED:
            self._state.advance_high_watermark(end)
        elif exposure is Exposure.LOCAL:
            assert self.local_sync is not None
            future = self.local_waiters.add(receipt.last_offset, receipt, wait)
            now = self._runtime.clock.monotonic()
            self._counted.local_records += end - receipt.offset
            self._local_since = now if self._local_since is None else self._local_since
            self.local_sync()
        else:
            future = self.durable_waiters.add(receipt.last_offset, receipt, wait)
            self._counted.durable_records += end - receipt.offset
            self._urgent_until = end
            if self._lane is not None:
                self._lane.on_append()
            if self._group_commit is not None:
                self._group_commit.on_append(len(self.durable_waiters))
        count, is_burst = end - receipt.offset, self._lane is not None and self._buffer.charged >= SMALL_BYTES
        if exposure and is_burst and end + count > self._reserved_until:
            self._reservation.ask(count)  # before the next append like this one waits for it
        self._ask_for_flush()
        return future

    @property
    def _reserved_until(self) -> int:
        """By what is committed or under way. Holds the lock."""
        windows = self._state.windows
        return windows[-1].header.reserved_until if windows else self._state.tail.reserved_until

    # Atomic appends: placed by the partition, decided by the lane

    @property
    def lock(self) -> threading.Lock:
        return self._lock

    @property
    def lane(self) -> Lane | None:
        """Through which it commits."""
        return self._lane

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
        self.check_open()

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
