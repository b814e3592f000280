"""The exclusive writer of a partition: one owner, fenced, every ack level.

* **Opening** commits a fence: a segment of epoch + 1 at the next place in the chain. Once it is committed, the next
  commit of any older writer meets it and that writer stops for good. No lease, no clock.
* **A flush** (`run`, on the task pool) takes the buffer as a window, builds one segment and commits it. One is in
  flight at a time; what arrives meanwhile is the next one. A failed upload keeps its window, readable, and is tried
  again, in order. A lane does the same for many partitions at once.
* **Group commit.** The producers that a commit releases share the next segment, too: see `group_commit`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from logstore.engine.chain.bases import Settled
from logstore.engine.chain.chain import Chain, LostRace
from logstore.engine.chain.fencing import fenced_by
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.chain.view import ChainView
from logstore.engine.host.counters import UNOBSERVED, Flush
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.memory.waiters import complete
from logstore.engine.runtime import Runtime
from logstore.engine.write.exclusive_appends import ExclusiveAppends
from logstore.engine.write.lanes.flushed import Atomic, Committed, Released
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.lanes.lane_queue import SMALL_BYTES
from logstore.engine.write.writer_health import WriterHealth
from logstore.errors import (
    CorruptData,
    LogStoreError,
    OutcomeUnknown,
    UnsupportedStore,
)
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim, Extras
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, WriterMode

logger = logging.getLogger(__name__)

_EXCLUSIVE, _NO_FLAGS = WriterMode.EXCLUSIVE, SegmentFlags.NONE  # asking an enumeration takes longer
_new_tuple = tuple.__new__  # half the time of Committed(…)


class ExclusiveWriter(ExclusiveAppends):
    """Made by `takeover.take_over`, which has committed the fence."""

    __slots__ = (
        "_due",
        "_first_seq",
        "_on_commit",
        "_settled",
        "_topic",
        "claim",
        "claim_key",
        "extras",
        "hands_over",
    )

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        topic: TopicSettings,
        on_commit: Callable[[], None],
        lane: Lane | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        """`is_ahead`: of its claim, which is not committed yet."""
        super().__init__(runtime, chain, state, lane)
        self._topic = topic
        self._on_commit = on_commit
        self._due: float | None = None
        self.claim_key = ClaimKey(chain.paths.prefix, self.epoch)
        self.claim = state.tail.claim or Claim("", 0)
        self.extras = Extras(claim=self.claim)
        self._first_seq = state.tail.next_seq
        self._settled: Settled | None = None
        self.hands_over = False
        if lane is not None:
            lane.add(self, self._first_seq, is_ahead=is_ahead)

    def __str__(self) -> str:
        return str(self._chain.paths)

    # Flushing: on the task pool's threads, one at a time for each partition

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
        if self._is_urgent or self._reservation.wanted or self._closing:
            return self._runtime.clock.monotonic()
        if buffer.oldest_at is None:
            return None
        if buffer.charged >= self._flush_bytes or self._runtime.budget.pressed:
            return self._runtime.clock.monotonic()
        return buffer.oldest_at + self._runtime.config.flush_interval

    @property
    def _is_urgent(self) -> bool:
        """Whether somebody waits for records that are in no window yet. Holds the lock."""
        taken = self._state.windows[-1].header.end_offset if self._state.windows else self._state.durable
        return self._urgent_until > taken

    def run(self) -> None:
        """One step: upload the window there is, or take the next one."""
        with self._lock:
            if self._group_commit is not None:
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
                committed = self.commit(window, Link(summary, len(data)), seconds, runtime.clock.monotonic())
            if committed is not None:
                runtime.budget.give_back(committed.done.charged)
                self.committed(committed)
                self.acked(committed.released)
            if flush is not UNOBSERVED:
                flush.done(window.done(len(data), seconds, runtime.clock.monotonic()))

    @property
    def waiting_bytes(self) -> int:
        """What there is for its next windows, about."""
        return self._buffer.charged

    @property
    def is_under_way(self) -> bool:
        return bool(self._state.windows)

    def prepare(self, atomics: Collection[Atomic], most: int) -> FlushWindow | None:
        """What a lane asks: the window that its next entry takes along."""
        with self._lock:
            self._due = None
            window = self._prepare(atomics, most)
            if window is not None:
                self._ask_for_flush()  # for the rest: another entry may be sent beside this one
            return window

    def go_on_behind_another(self) -> None:
        """It was opened ahead of its claim, and another was faster. It has another claim now, behind that one's records, and
        what it was given meanwhile, none of which was shown, has later offsets."""
        with self._lock:
            tail, old = self._state.tail, self.claim_key
            self.epoch, self._first_seq, self._settled = tail.epoch, tail.next_seq, None
            self.claim_key = ClaimKey(self._chain.paths.prefix, tail.epoch)
            self.claim = tail.claim or Claim("", 0)
            self.extras = Extras(claim=self.claim)
            grown = self._buffer.rebase(tail.end_offset, tail.epoch)
            moved = {id(receipt): receipt for receipt in self.durable_waiters.rebase(grown)}
            for receipt in moved.values():
                if receipt.offset >= 0:
                    receipt.offset += grown
                    receipt.last_offset += grown
            self._urgent_until += grown
            self._may_show = tail.reserved_until
        assert self._lane is not None
        self._lane.add(self, tail.next_seq)
        self._lane.claiming.decided(self, old)
        with self._lock:
            self._ask_for_flush()  # what came once the other's records were known had an offset that seemed to be stored

    def settled(self) -> Settled | None:
        """What is known of the chain before our own segments."""
        self._settled = self._state.settled(self._first_seq, self._settled)
        return self._settled

    def replace_view(self, view: ChainView) -> None:
        """Maintenance has changed which objects hold the records."""
        self._state.replace_view(view)

    def _is_over(self) -> bool:
        return self.failed is not None or self._closing

    def _prepare(self, atomics: Collection[Atomic] = (), most: float = math.inf) -> FlushWindow | None:
        """The window that is waiting for its retry, or a new one. Holds the lock."""
        state, buffer = self._state, self._buffer
        if self.failed is not None:
            return None
        if state.windows and self._lane is None:
            return state.windows[0]
        closes_reservation = self._closing and self._reserved_until > buffer.next_offset
        base, oldest_at = buffer.base_offset, buffer.oldest_at
        batches = (
            [] if self.reserves_alone else buffer.take(min(self._topic.config.segment_bytes, most), atomics)
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
            mode=_EXCLUSIVE,
            flags=SegmentFlags.CLOSED if self._closing and not len(buffer) else _NO_FLAGS,
        )
        self._may_show = min(self._may_show, reserved)  # whether or not its answer comes
        if self._lane is None:  # which says so of all that have something in an entry
            self._runtime.watch.began(self, self._chain.paths)
        self._return_credit()
        return state.begin_window(FlushWindow(header, batches, oldest_at))

    @property
    def reserves_alone(self) -> bool:
        """Whether an append waits for a reservation, and nobody for the records before it, which would make its PUT take
        much longer: they go with another upload, beside it."""
        is_large = self._lane is not None and self._buffer.charged >= SMALL_BYTES
        return is_large and self._reservation.wanted and not (self._is_urgent or self._closing)

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

    def commit(self, window: FlushWindow, link: Link, seconds: float, now: float) -> Committed | None:
        """The window's segment is stored: its records are durable from now on. Holds the lock."""
        state = self._state
        if self.failed is not None:
            return None  # given up by close() while the upload was under way; what it held was freed then
        state.commit_window(link)
        self._may_show = state.tail.reserved_until
        for later in state.windows:
            self._may_show = min(self._may_show, later.header.reserved_until)
        released, waited = self.durable_waiters.release(state.durable), None
        if len(self.local_waiters):
            local = self.local_waiters.release(state.durable)
            waited = self._local_acked(len(local))
            released += local
        if self._undecided and self._undecided.stored_below(state.durable):
            released += self._decided()
        if self._group_commit is not None:
            self._group_commit.after_commit(len(released), len(self.durable_waiters), seconds)
        self.stats.commits += 1
        done = window.done(link.size, seconds, now)
        self._counted.flushed(done)
        self.stats.progressed(now)
        self._ask_for_flush()
        return _new_tuple(Committed, (done, released, waited, link.key))

    def committed(self, done: Committed) -> None:
        """What is done without the lock, before those who waited are told."""
        if self._lane is None:
            self._runtime.watch.ended(self)
        if done.local_wait_s is not None:
            self._tell_local_ack(done.local_wait_s)
        paths = self._chain.paths
        self._runtime.observer.stored(paths.topic, paths.partition, done.done, done.slice_key)

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

    def stop(self, error: LogStoreError) -> None:
        super().stop(error)
        if self._lane is not None:
            self._lane.remove(self)

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
