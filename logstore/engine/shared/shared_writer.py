"""The shared writer: independent producers in many processes append to one partition. Durable acks only.

* **Nothing is fenced at open.** Shared writers live side by side and join each other's epoch (see `ChainCursor`). An
  exclusive writer's fence stops them, with `Fenced`.
* **Offsets are known at the commit.** Appends are gathered without offsets (`SharedBuffer`); the receipt gets its final
  offsets with the ack, and nobody sees a record before that.
* **Group commit** as for the exclusive writer: one attempt in flight; what arrives meanwhile is the next one.
* **The loser of a race rebases**: it takes in the winner's segment, gives its own batches new base offsets (those lie
  outside the batches' checksums: sixteen bytes are rewritten, the bodies stay) and tries again. Writers take turns when
  there are several (`Turns`), so nobody starves and few uploads are wasted. One that loses all the same asks (`Wishes`).
* **Exactly once.** An attempt keeps its place and its id until something is in that place, so a lost answer is told
  from a lost race by whose id is there, however long it takes and whatever peers do. For retries that outlive the
  writer (a crash, a timeout) an append may carry producer id and sequence: before each attempt it is checked against what
  the chain holds (`StoredAppends`), and one that is stored already is acked with the offset where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from logstore.config import Ack
from logstore.engine.chain.chain import Chain, LostRace, StalePlace
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import Receipt
from logstore.engine.memory.topic_settings import TopicLimits
from logstore.engine.memory.waiters import complete, fail
from logstore.engine.memory.write_buffer import OPEN_BATCH_BYTES
from logstore.engine.runtime import Runtime
from logstore.engine.shared.chain_cursor import ID_BYTES, ChainCursor
from logstore.engine.shared.deduplicator import StoredAppends, recent_appends
from logstore.engine.shared.producer_table import sequences_of
from logstore.engine.shared.shared_buffer import SharedBuffer, SharedWindow
from logstore.engine.shared.turns import Turns
from logstore.engine.shared.wishes import Wishes
from logstore.engine.write.admission import admit_records
from logstore.engine.write.commit_loop import CommitLoop
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lifecycle import WriterStats
from logstore.engine.write.writer_health import WriterHealth
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import (
    LogStoreError,
    OutcomeUnknown,
    fresh,
)
from logstore.format.batch import BatchInfo, encode_batch
from logstore.format.codecs import CODEC_IDS
from logstore.format.record import Record
from logstore.format.segment import WriterMode
from logstore.format.sequences import advance

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SharedStats(WriterStats):
    races_lost: int = 0
    duplicates: int = 0


class SharedWriter(Writer):
    """the partition's lock guards what appends touch: buffer, window's entries, flags, stats. Cursor, turns, wishes and
    `_stored` are touched by `run` alone, which the task pool never runs twice at once."""

    is_alone = False
    stats: SharedStats

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        topic: TopicLimits,
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__(runtime, chain, state, SharedStats())
        self._topic = topic
        self._on_commit = on_commit
        self._cursor = ChainCursor(runtime, chain, state, WriterMode.SHARED)
        self._turns = Turns(self._cursor.writer_id, runtime.rng)
        self._wishes = Wishes(chain)
        self._stored = StoredAppends(chain, runtime.reader)
        batch_bytes = min(OPEN_BATCH_BYTES, runtime.config.max_batch_bytes)
        self._buffer = SharedBuffer(CODEC_IDS[runtime.config.compression], batch_bytes)
        self._window: SharedWindow | None = None
        self._group_commit = GroupCommitWait(runtime.clock, self._moved)
        self._commit_loop = CommitLoop(runtime, self, f"{chain.paths}: the shared writer")

    @property
    def next_offset(self) -> int:
        return self._state.durable + self._pending()

    def _pending(self) -> int:
        return self._buffer.count + (self._window.count if self._window is not None else 0)

    # Appending

    def add_at_once(self, receipt: Receipt, record: Record, charged: int) -> bool:
        return False  # it knows durable acks alone

    def add_one(
        self, receipt: Receipt, record: Record, charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt]:
        return self.add_run(receipt, [record], charged, ack, deadline)

    def add_run(
        self, receipt: Receipt, records: list[Record], charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt]:
        """The records of a small append, in one batch, with those of others."""
        return self._add(charged, ack, deadline, lambda: self._buffer.add_records(receipt, records, charged))

    def add_encoded(
        self, receipt: Receipt, batches: list[tuple[memoryview, BatchInfo]], ack: Ack, deadline: float
    ) -> Future[Receipt]:
        """Encoded batches, stored together. Those of an idempotent producer are stored once."""
        sequences = sequences_of(batches)
        charged = sum(info.size for _, info in batches)
        return self._add(
            charged, ack, deadline, lambda: self._buffer.add_encoded(receipt, batches, sequences)
        )

    def _add(
        self, charged: int, ack: Ack, deadline: float, put: Callable[[], Future[Receipt]]
    ) -> Future[Receipt]:
        runtime = self._runtime
        if ack != "durable":
            raise ValueError(
                f"ack={ack!r}: a shared writer knows durable acks only, because offsets are not known before the commit; "
                'use ack="durable", or open the store with writer="exclusive"'
            )
        if not runtime.budget.try_take(charged):
            runtime.task_pool.all_now()
            runtime.budget.take(charged, max(0.0, deadline - runtime.clock.monotonic()))
        try:
            with self._lock:
                self._check_open()
                if not self._pending():  # until now nothing was held up
                    self.stats.last_progress_at = runtime.clock.monotonic()
                future = put()
                charged = 0
                self._ask()
                return future
        finally:
            if charged:
                runtime.budget.give_back(charged)

    def _ask(self) -> None:
        """Somebody waits for every append here, so each wants to be committed at once. Holds the lock."""
        self._group_commit.on_append(self._buffer.appends)
        if self._window is None:
            self._commit_loop.ask()

    def numbered(self, records: object, producer_id: int, epoch: int, sequence: int) -> bytes:
        """The records as batches that carry their producer's numbers, ready for `add_encoded`."""
        config, now_ms, encoded = self._runtime.config, self._runtime.clock.now_ms(), []
        for run in admit_records(records, config.max_batch_bytes):
            raw, info = encode_batch(
                run.records,
                now_ms=now_ms,
                codec_id=CODEC_IDS[config.compression],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            encoded.append(raw)
            sequence = advance(sequence, info.count)
        return b"".join(encoded)

    def next_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and next number of a producer; None if nothing of it is known: asks the store."""
        return recent_appends(self._chain, self._runtime.reader).next_sequence(producer_id)

    # Waiting

    def when_durable(self, receipt: Receipt) -> Future[Receipt] | None:
        return None  # there is no receipt before its records are durable

    def give_up(self, waiting: Future[Receipt]) -> None:
        """Its owner's deadline has passed; the records stay queued."""
        waiting.cancel()

    def flush_now(self, receipt: Receipt) -> Future[Receipt] | None:
        with self._lock:
            last = self._buffer.last() or (self._window.entries[-1] if self._window is not None else None)
            if last is None:
                return None
            if self.failed is not None:
                raise fresh(self.failed)
            return last.join(receipt, 0)

    # Committing: on the task pool's threads, one at a time

    def run(self) -> None:
        """One step: try to commit the window there is, or the next one."""
        with self._lock:
            self._group_commit.wait(lambda: self._buffer.appends, self._need_not_linger)
            window = self._prepare()
        if window is not None and not self._commit_loop.take(lambda: self._attempt(window)):
            self._after_window()

    def _after_window(self) -> None:
        """Everybody who waited for it is told, and the others are next: the time for what concerns them."""
        self._turns.need_no_more()
        self._wishes.take_back()
        if self.failed is None:
            self._hear()

    def _hear(self) -> None:
        """Ask who else wants a turn, if it is time to."""
        clock = self._runtime.clock
        if self._turns.should_hear(clock.monotonic()):
            self._turns.heard(self._wishes.standing(), clock.monotonic())

    def _need_not_linger(self) -> bool:
        return self._window is not None or self._closing

    def _prepare(self) -> SharedWindow | None:
        if self.failed is None and self._window is None:
            entries = self._buffer.take(self._topic.segment_bytes, at_least_one=True)
            self._window = SharedWindow(entries) if entries else None
        return self._window

    def _attempt(self, window: SharedWindow) -> float | None:
        """Try once. None if the window is done with, else how long to wait before the next step."""
        clock = self._runtime.clock
        if window.header is None:
            self._settle_stored(window)
            if not window.entries:
                return None
            self._hear()
            if not self._turns.is_ours(now := clock.monotonic()):
                return self._look(window, now)
            self._top_up(window)
            self._settle_stored(window)
            if not window.entries:
                return None
        began = clock.monotonic()
        try:
            if window.header is None:
                if self._cursor.needs_opener:
                    self._cursor.open_epoch()
                window.stand_at(self._cursor.header(window.count))
            header, data, summary = window.build()
            still_stands = self._cursor.commit(header, data, summary)
        except LostRace:
            self._turns.took(clock.monotonic() - began)
            self._lost_race(window)
            return 0.0
        except StalePlace:
            self._rejoin()
            return 0.0
        seconds = clock.monotonic() - began
        self._turns.took(seconds)
        self._turns.saw(self._cursor.writer_id, header.seq, clock.monotonic())
        self._stored.committed(window)
        self._committed(window, seconds)
        if not still_stands:
            self._rejoin()
        return None

    def _rejoin(self) -> None:
        """After a long sleep: where the chain ends now is known then, but not who wrote, and what."""
        self._cursor.rejoin()
        self._turns = Turns(self._cursor.writer_id, self._runtime.rng)
        self._stored = StoredAppends(self._chain, self._runtime.reader)

    def _look(self, window: SharedWindow, now: float) -> float:
        """It is another's turn: has it committed? Returns how long to wait before the next step."""
        window.encode()  # now is the time: once it is our turn, the others wait for us
        if not self._turns.wait(now):
            if self._advance():
                return 0.0
            self._turns.found_nothing(now, self._runtime.clock.monotonic())
        return self._turns.wait(self._runtime.clock.monotonic())

    def _lost_race(self, window: SharedWindow) -> None:
        """Take in the winner. The next attempt has another place; if this was not the first loss, we may be far behind and
        it is cheaper to read up to the end than to lose once for each segment."""
        with self._lock:
            self.stats.races_lost += 1
            window.lost()
        self._turns.lost(self._runtime.clock.monotonic())
        while self._advance() and window.losses > 1:
            self._wish()  # they may commit faster than we can read
        self._wish()
        if window.losses > 1:
            self._turns.caught_up(self._runtime.clock.monotonic())

    def _wish(self) -> None:
        """Ask the others for a turn, if we have waited long enough for one."""
        if self._turns.should_wish:
            seq, clock = self._cursor.tail.next_seq, self._runtime.clock
            self._wishes.leave(self._turns.wish(seq, clock.monotonic(), clock.now_ms()))

    def _top_up(self, window: SharedWindow) -> None:
        """What has come while the window lost a race, or waited for its turn, goes with it."""
        with self._lock:
            more = self._buffer.take(self._topic.segment_bytes - window.charged, at_least_one=False)
            if more:
                window.carry(window.entries + more)

    def _advance(self) -> bool:
        """Take in the next segment of the chain if there is one."""
        try:
            link = self._cursor.advance()
        except StalePlace:
            self._rejoin()
            return True
        if link is None:
            return False
        header = link.header
        self._turns.saw(header.writer_id[:ID_BYTES], header.seq, self._runtime.clock.monotonic())
        self._stored.saw(link)
        return True

    def _settle_stored(self, window: SharedWindow) -> None:
        """Ack what the chain holds already, refuse what cannot follow it, and leave the rest in the window."""
        if all(entry.sequences is None for entry in window.entries):
            return
        self._stored.cover(self._cursor.tail.next_seq)
        while self._stored.misses_some(window.entries) and self._advance():
            self._stored.cover(
                self._cursor.tail.next_seq
            )  # the producer may have been at another writer meanwhile
        with self._lock:
            if self.failed is not None:  # stopped while the chain was read: everybody was told
                window.carry([])
                return
            deduplicated = self._stored.deduplicate(window.entries)
            self.stats.duplicates += deduplicated.duplicates
            window.carry(deduplicated.kept)
            if not deduplicated.kept:
                self._window_done()
        self._runtime.budget.give_back(deduplicated.charged)
        complete(deduplicated.acked)
        for future, why in deduplicated.refused:
            fail([future], why)

    def _committed(self, window: SharedWindow, seconds: float) -> None:
        with self._lock:
            if self.failed is not None:
                return  # given up by close() while the upload was under way
            placed = window.place()
            self._window_done()
            self._group_commit.after_commit(len(placed), self._buffer.appends, seconds)
            self.stats.commits += 1
            self.stats.progressed(self._runtime.clock.monotonic())
        self._runtime.budget.give_back(window.charged)
        complete(placed)
        self._on_commit()

    def _window_done(self) -> None:
        """Holds the lock."""
        self._window = None
        self._moved.notify_all()
        if len(self._buffer):
            self._commit_loop.ask()

    # The end

    def _let_go(self) -> tuple[int, list[Future[Any]]]:
        entries = (self._window.entries if self._window is not None else []) + self._buffer.clear()
        self._window = None
        waiting: list[Future[Any]] = [joined.future for entry in entries for joined in entry.joined]
        return sum(entry.charged for entry in entries), waiting

    def _ask_to_drain(self) -> None:
        self._ask()

    def _is_drained(self) -> bool:
        return not self._pending()

    def _left_behind(self, drained: bool) -> LogStoreError | None:
        if drained:
            return None
        start, count = self._state.durable, self._pending()
        self.unstored = LostRange(start, start + count)
        why = self.stats.last_error or "the store did not answer in time"
        return OutcomeUnknown(f"{self._chain.paths}: closed before {count} records had been stored: {why}")

    def health_report(self) -> WriterHealth:
        durable, frontier = self._state.durable, self._cursor.tail.end_offset
        held = self.failed is None and self._pending() > 0
        stalled = held and self._idle_seconds() > self._runtime.config.stall_after
        return replace(
            self._told("shared", self._cursor.epoch, frontier, stalled),
            lag=max(0, durable - frontier),
            races_lost=self.stats.races_lost,
            duplicates=self.stats.duplicates,
            next_offset=self.next_offset,
            unflushed_records=self.next_offset - durable if held else 0,
            held_at_offset=durable if stalled else None,
        )
