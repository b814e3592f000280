"""The replicated writer: several writers feed the same, deterministic input to one partition; it is stored once.

The source has offsets, and each source offset gives the same records in every writer. A commit says which source range it
covers and extends the partition's *upper* by exactly that: uppers form an unbroken chain. Writers race; the loser takes in
what the winner stored and goes on from there by the three-way rule (`source_ranges`). So

* any number of writers, with any lag, move the partition as long as one of them runs;
* a peer's commit is progress like our own: `frontier`, lag and every waiting future move with it;
* `frontier` is never below an upper that this writer has seen;
* writers that do not hold the same records for the same range raise `DivergentWriters` and stop (`audit`);
* after an error or a timeout the same range can be sent again, by anybody, without a second copy: what is stored is below.

An exclusive writer's fence, or the promotion of a standby, stops it with `Fenced`. A `passive` one, a standby, holds its
input and stores nothing until it is promoted (`standby`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import Any

from logstore.engine.chain.chain import Chain, LostRace, StalePlace
from logstore.engine.host.clock import waitable
from logstore.engine.host.counters import FlushDone
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.replicated.divergence import DivergenceCheck
from logstore.engine.replicated.promotion import fence
from logstore.engine.replicated.replicated_attempt import Attempt, build_attempt
from logstore.engine.replicated.source_ranges import (
    Applied,
    HeldRanges,
    Place,
    SourceRange,
    classify,
    take_exact_range,
    take_range,
)
from logstore.engine.runtime import Runtime
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.engine.write.admission import check_keys
from logstore.engine.write.commit_loop import FINAL, CommitLoop
from logstore.engine.write.lifecycle import WriterLifecycle, WriterStats
from logstore.engine.write.writer_health import WriterHealth
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    CorruptData,
    GapError,
    LogStoreError,
    StraddlingTransaction,
)
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record
from logstore.format.stored.segment import WriterMode

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplicatedStats(WriterStats):
    peer_commits: int = 0
    dropped: int = 0
    races_lost: int = 0


class ReplicatedWriter(WriterLifecycle):
    """Get it from `PartitionLog.replicated(writer_id)`. Safe for threads.

    The partition's lock guards what is held, the stats and the flags. `_moving` is held by whoever moves the cursor, during
    I/O too: one commit in flight.
    """

    stats: ReplicatedStats

    def __init__(
        self,
        writer_id: str,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        topic: TopicSettings,
        on_commit: Callable[[], None],
        *,
        passive: bool = False,
    ) -> None:
        super().__init__(runtime, chain, state, ReplicatedStats())
        self.writer_id = writer_id
        self._topic = topic
        self._on_commit = on_commit
        self._moving = threading.Lock()
        self._cursor = ChainCursor(runtime, chain, state, WriterMode.REPLICATED, passive=passive)
        self._divergence = DivergenceCheck(str(chain.paths), self._cursor.tail.next_seq, self.frontier)
        self._held = HeldRanges()
        self._attempt: Attempt | None = None
        self._fed_upper = 0
        self._stuck: str | None = None  # once it is closed: what is not stored, in words
        self._commit_loop = CommitLoop(runtime, self, f"{chain.paths}: replicated writer {writer_id!r}")

    # Asking

    @property
    def frontier(self) -> int:
        """Up to where the partition has the source, as last seen here. Never moves back."""
        return max(0, self._cursor.tail.source_upper)

    @property
    def progress(self) -> tuple[int, int]:
        """`frontier`, and one past the last record that was stored for the source offsets below it: one consistent look."""
        tail = self._cursor.tail
        return max(0, tail.source_upper), tail.end_offset

    @property
    def is_passive(self) -> bool:
        return self._cursor.passive

    @property
    def max_range_bytes(self) -> int:
        """The most that the records of one range may take."""
        return self._runtime.config.max_buffered_bytes

    @property
    def dropped(self) -> int:
        """How many of our records were below the frontier: stored by a peer already."""
        return self.stats.dropped

    def upper(self) -> int:
        """Up to where the partition has the source: asks the store. 0 if nothing was stored yet."""
        with self._moving:
            self.check_open()
            try:
                while self._advance():
                    pass
                self._settle()
            except FINAL as error:
                self.stop(error)
                raise
            return self.frontier

    # Feeding

    def compare_and_append(
        self, records: Iterable[Record | bytes], lower: int, upper: int, *, timeout: float | None = None
    ) -> Applied:
        """Store the records of source range `lower` to `upper` (not included) unless a peer has; return when they are there.

        A record's source offset is its `offset`. If none of them has one and there are exactly `upper - lower`, there is one
        for each source offset. If neither, the range can only be taken whole. `records` may be empty: then only the upper
        moves.

        Raises `GapError` if the partition's upper is below `lower` (nothing was written), `DivergentWriters` if
        other records are stored for this range, `StraddlingTransaction` if only a part is missing and it cannot be told
        which, `AppendTimeout` if it is not known in time: then the same call may be made again.
        """
        held = self._range(records, lower, upper)
        if lower > self.frontier and lower > (seen := self.upper()):
            raise GapError(
                f"{self._chain.paths}: source offsets {seen} to {lower} are missing before this range ({lower} to {upper}); "
                f"nothing was written: feed from {seen} on"
            )
        self._hold(held, self._runtime.config.append_timeout if timeout is None else timeout)
        return self.wait_for(held.future, timeout)

    def submit_exactly(
        self, keys: Sequence[bytes], values: Sequence[bytes], lower: int, upper: int
    ) -> Future[Applied]:
        """For records (`keys` and `values`, one by one) that were computed from the partition's contents at `lower`: store
        all of them, or, if a peer moves the upper past `lower` first, none. Then `Applied.by` is "peer", and `upper` says
        from where to recompute.

        What a peer stored is not compared with them: the caller reads it back from the partition.
        """
        config = self._runtime.config
        held = take_exact_range(keys, values, lower, upper, config.max_batch_bytes, config.max_buffered_bytes)
        self._hold(held, config.append_timeout)
        return held.future

    def submit(self, records: Iterable[Record | bytes], lower: int, upper: int) -> Future[Applied]:
        """`compare_and_append` without waiting. A range above the upper is kept until what is missing has come, from here or
        from a peer. It waits only for room in the store's buffer, of which ranges above may take half: else what is missing
        would find none."""
        held = self._range(records, lower, upper)
        with self._lock:
            ahead = self._held.charged + held.charged
        if lower > self.frontier and 2 * ahead > self._runtime.budget.limit:
            raise BufferFull(
                f"{self._chain.paths}: {ahead} bytes would wait above source offset {self.frontier}: nothing was taken; "
                "feed what is missing there, or raise max_buffered_bytes"
            )
        self._hold(held, self._runtime.config.append_timeout)
        return held.future

    def wait_for(self, submitted: Future[Applied], timeout: float | None = None) -> Applied:
        """The outcome of a submitted range, or `AppendTimeout`: then it is still queued, and may be waited for again."""
        try:
            return submitted.result(
                waitable(self._runtime.config.append_timeout if timeout is None else timeout)
            )
        except FutureTimeout:
            if submitted.done():
                return submitted.result()
            why = self.stats.last_error or "the store has not answered yet"
            raise AppendTimeout(
                f"{self._chain.paths}: a source range was not stored in time ({why}); the partition has the source up to "
                f"{self.frontier}. It is still queued; sending it again is safe"
            ) from None

    def _range(self, given: Iterable[Record | bytes], lower: int, upper: int) -> SourceRange:
        config = self._runtime.config
        taken = take_range(given, lower, upper, config.max_batch_bytes, config.max_buffered_bytes)
        if self._topic.config.compact:
            check_keys(taken.runs)
        return taken

    def _hold(self, held: SourceRange, timeout: float) -> None:
        runtime = self._runtime
        self.check_open()
        if held.charged:
            runtime.budget.take(held.charged, timeout)
        try:
            with self._lock:
                self.check_open()
                if not len(self._held) and self._attempt is None:
                    self.stats.last_progress_at = runtime.clock.monotonic()
                self._held.add(held)
                self._fed_upper = max(self._fed_upper, held.upper)
        except BaseException:
            runtime.budget.give_back(held.charged)
            raise
        self._commit_loop.ask()

    # Working: on the task pool's threads, one at a time

    def run(self) -> None:
        """One step: settle what the frontier has passed, commit what is at it, poll for the rest."""
        if self.failed is None:
            self._commit_loop.take(self._step)

    def _step(self) -> float | None:
        """How long until the next one; None if there is nothing to do until more is fed."""
        with self._moving:
            return self._move()

    def _move(self) -> float | None:
        """Holds `_moving`."""
        if self._attempt is None:
            self._settle()
            with self._lock:
                must_open = self._cursor.needs_opener and self._can_move()
            if must_open:
                self._open_epoch()
                return 0.0
            self._begin(self._next_attempt())
        attempt = self._attempt
        if attempt is not None:
            try:
                began = self._runtime.clock.monotonic()
                with self._runtime.observer.flush(
                    self._chain.paths.topic, self._chain.paths.partition
                ) as flush:
                    is_whole = self._cursor.commit(attempt.header, attempt.data, attempt.summary)
                    flushed = attempt.flushed(self._runtime.clock.monotonic() - began)
                    flush.done(flushed)
            except LostRace:
                with self._lock:
                    self.stats.races_lost += 1
                    self._counted.races_lost += 1
                self._advance()
            else:
                self._committed(attempt, flushed)
                if not is_whole:
                    self._rejoin()
            return 0.0
        with self._lock:
            waits = len(self._held) > 0
            self._moved.notify_all()
        if not waits:
            return None
        return 0.0 if self._advance() else self._runtime.config.follow_interval

    def _next_attempt(self) -> Attempt | None:
        if self._cursor.passive:
            return None
        with self._lock:
            ranges = self._held.ready(self.frontier, self._topic.config.segment_bytes)
        if not ranges:
            return None
        config = self._runtime.config
        return build_attempt(
            self._cursor, ranges, self._runtime.clock.now_ms(), CODEC_IDS[config.compression]
        )

    def _begin(self, attempt: Attempt | None) -> None:
        with self._lock:
            if self.failed is None:
                self._attempt, attempt = attempt, None
        if attempt is not None:
            self._hold_again(attempt.ranges)

    def _hold_again(self, ranges: Sequence[SourceRange]) -> None:
        """Put back what was taken out of the held ones. If `stop` came meanwhile, it has not seen them: they are told."""
        with self._lock:
            stopped = self.failed
            if stopped is None:
                for held in ranges:
                    self._held.add(held)
                return
        for held in ranges:
            self._resolve(held, stopped, dropped=0)

    def _open_epoch(self) -> None:
        """Behind an exclusive writer: begin an epoch. Holds `_moving`."""
        try:
            self._cursor.open_epoch()
        except LostRace:
            self._advance()
        except StalePlace:
            self._rejoin()

    def _rejoin(self) -> None:
        """After a long sleep: go to where the chain ends now. Holds `_moving`."""
        before = self.frontier
        self._cursor.rejoin()
        self._divergence = DivergenceCheck(str(self._chain.paths), self._cursor.tail.next_seq, self.frontier)
        self._peers_moved(before)

    def _peers_moved(self, before: int) -> None:
        """Whether they did: what the frontier was before is told by the caller."""
        with self._lock:
            if self.frontier > before:
                self.stats.peer_commits += 1
                self.stats.progressed(self._runtime.clock.monotonic())

    def _advance(self) -> bool:
        """Take in the next segment of the chain if there is one. Holds `_moving`."""
        before, attempt = self.frontier, self._attempt
        try:
            link = self._cursor.advance()
        except StalePlace as stale:
            if attempt is not None and stale.found and stale.found.writer_id == attempt.header.writer_id:
                self._committed(attempt)  # its answer was lost, and its records were collected since
            else:
                self._take_back_attempt()
            self._rejoin()
            return True
        if link is None:
            return False
        header = link.header
        if header.source_lower != before and header.mode is WriterMode.REPLICATED:
            raise CorruptData(
                self._chain.paths.segment(header.seq),
                header.base_offset,
                f"its source range begins at {header.source_lower}, but the partition has the source up to {before}",
            )
        if attempt is not None and header.writer_id == attempt.header.writer_id:
            self._committed(attempt)  # its answer was lost, and somebody looked before we asked again
            return True
        self._divergence.stored(header)
        self._peers_moved(before)
        if attempt is not None and header.seq == attempt.header.seq:
            self._take_back_attempt()
        return True

    def _take_back_attempt(self) -> None:
        """Another's segment, or our own fence, is in its place: its ranges are held again."""
        with self._lock:
            attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._hold_again(attempt.ranges)

    def _settle(self) -> None:
        """Drop what is below the frontier, and the part of a straddling range that is."""
        frontier = self.frontier
        with self._lock:
            touched = self._held.touching(frontier)
        for number, held in enumerate(touched):
            try:
                if not held.exact:
                    self._divergence.look_back(held.lower, self._chain.header_at)
                    self._divergence.ours(held, frontier)
            except BaseException:
                self._hold_again(touched[number:])  # `stop` tells them, or they are tried again
                raise
            if classify(held.lower, held.upper, frontier) is Place.BELOW or held.exact:
                self._resolve(held, Applied("peer", frontier), dropped=held.count)
                continue
            try:
                dropped = held.trim(frontier)
            except StraddlingTransaction as error:
                self._resolve(held, error, dropped=0)
                continue
            with self._lock:
                self.stats.dropped += dropped
            self._hold_again([held])

    def _committed(self, attempt: Attempt, flushed: FlushDone | None = None) -> None:
        flushed = flushed or attempt.flushed()
        self._divergence.stored(attempt.header)
        with self._lock:
            told = self._attempt is not attempt  # by `stop`, which came while it was under way
            self._attempt = None
            self.stats.commits += 1
            self._counted.durable_records += flushed.end_offset - flushed.base_offset
            self._counted.flushed(flushed)
            self.stats.progressed(self._runtime.clock.monotonic())
        self._runtime.observer.stored(self._chain.paths.topic, self._chain.paths.partition, flushed)
        for held in attempt.ranges if not told else ():
            self._resolve(held, Applied("us", held.upper), dropped=0)
        self._on_commit()

    def _resolve(self, held: SourceRange, outcome: Applied | LogStoreError, *, dropped: int) -> None:
        with self._lock:
            self.stats.dropped += dropped
        self._runtime.budget.give_back(held.uncharge())
        held.tell(outcome)

    # Taking over

    def promote(self, timeout: float | None = None) -> int:
        """Become the only writer: commit a fence, which stops every other one, and go on from the upper that it finds.

        Returns that upper. What a standby holds above it is stored from now on. Raises `StoreUnavailable` if the fence could
        not be committed in time: nothing has changed then, and it can be called again.
        """
        runtime = self._runtime
        with self._moving:
            self.check_open()
            fence(runtime, self._chain, self._cursor, self._advance, self._rejoin, timeout)
            self._cursor.passive = False
            self._take_back_attempt()
            upper = self.frontier
        self._commit_loop.ask()
        return upper

    # The end

    def _let_go(self) -> tuple[int, list[Future[Any]]]:
        held = (self._attempt.ranges if self._attempt is not None else []) + self._held.clear()
        self._attempt = None
        return sum(one.uncharge() for one in held), [one.future for one in held]

    def _log_stop(self, error: LogStoreError) -> None:
        if not isinstance(error, Closed):
            logger.error("%s: replicated writer %s: %s", self._chain.paths, self.writer_id, error)

    def _closed_error(self) -> Closed:
        return Closed(f"{self._chain.paths}: the replicated writer {self.writer_id!r} is closed")

    def _ask_to_drain(self) -> None:
        self._commit_loop.ask()

    def _is_drained(self) -> bool:
        return not self._can_move()

    def _can_move(self) -> bool:
        first = self._held.first()
        at = first is not None and first.lower <= self.frontier and not self._cursor.passive
        return self._attempt is not None or at

    def _left_behind(self, drained: bool) -> LogStoreError:
        first = self._first_held()
        if first is not None and not self._cursor.passive:
            silent = "the store did not answer in time" if self._attempt is not None else None
            why = self.stats.last_error or silent or "something before it is missing"
            what = f"source offsets from {first.lower} on are not stored by {self.writer_id!r}"
            self._stuck = f"{self._chain.paths}: {what} ({why})"
        return self._closed_error()

    def _not_stored(self) -> str | None:
        return self._stuck

    def _first_held(self) -> SourceRange | None:
        return self._attempt.ranges[0] if self._attempt is not None else self._held.first()

    def health(self) -> dict[str, Any]:
        """What `PartitionLog.health()` shows of it, from memory alone."""
        with self._lock:
            return self.health_report().as_dict()

    def health_report(self) -> WriterHealth:
        held = self.failed is None and self._first_held() is not None
        stalled = held and self._idle_seconds() > self._runtime.config.stall_after
        is_open = "standby" if self._cursor.passive else "writing"
        return replace(
            self._told("replicated", self._cursor.epoch, self.frontier, stalled, is_open),
            writer_id=self.writer_id,
            lag=max(0, self.frontier - self._fed_upper),
            races_lost=self.stats.races_lost,
            dropped_below_upper=self.stats.dropped,
            commits=self.stats.commits,
            peer_commits=self.stats.peer_commits,
            held_at_source_offset=self.frontier if stalled else None,
        )
