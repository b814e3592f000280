"""The shared writer: independent producers in many processes append to one partition. Durable acks only.

* **Nothing is fenced at open.** Shared writers live side by side and join each other's epoch (see `ChainCursor`). An
  exclusive writer's fence stops them, with `Fenced`.
* **Offsets are known at the commit.** Appends are gathered without offsets (`SharedBuffer`); the receipt gets its final
  offsets with the ack, and nobody sees a record before that.
* **Group commit** as for the exclusive writer: one attempt in flight; what arrives meanwhile is the next one.
* **The loser of a race rebases**: it takes in the winner's segment, gives its own batches new base offsets (those lie
  outside the batches' checksums: sixteen bytes are rewritten, the bodies stay) and tries again.
* **The winner commits for all.** One that loses again puts its appends aside (`pending`) and follows: whoever creates the
  next segment takes along what is pending, and who finds its own id in the chain is acked with the offsets it has there.
  `Pace` says who tries and who follows. A writer that is alone commits with one PUT and lists now and then, while its next
  upload is under way, whether others have put something aside.
* **Exactly once.** An attempt keeps its place until something is in it and its id for ever, so a lost answer is told
  from a lost race by whose id is there, however long it takes and whatever peers do. For retries that outlive the
  writer (a crash, a timeout) an append may carry producer id and sequence: before each attempt it is checked against what
  the chain holds (`StoredAppends`), and one that is stored already is acked with the offset where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from logstore.config import Ack
from logstore.engine.chain.chain import Chain, LostRace, StalePlace
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.host.counters import FlushDone
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import Receipt
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.memory.waiters import complete, fail
from logstore.engine.memory.write_buffer import OPEN_BATCH_BYTES
from logstore.engine.runtime import Runtime
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.engine.shared.pace import Pace
from logstore.engine.shared.pending import KnownPlaces, Pending, Scout, appends_in
from logstore.engine.shared.producer_table import StoredAppends, recent_appends, sequences_of
from logstore.engine.shared.shared_buffer import SharedBuffer, SharedWindow
from logstore.engine.write.admission import admit_records, encode_runs
from logstore.engine.write.commit_loop import CommitLoop
from logstore.engine.write.group_commit import GroupCommitWait
from logstore.engine.write.lifecycle import WriterStats
from logstore.engine.write.ownership import shared_in_the_way
from logstore.engine.write.writer_health import WriterHealth
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import LogStoreError, OutcomeUnknown, fresh
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record
from logstore.format.stored.segment import SegmentFlags, WriterMode


@dataclass(slots=True)
class SharedStats(WriterStats):
    races_lost: int = 0
    duplicates: int = 0


class SharedWriter(Writer):
    """the partition's lock guards what appends touch: buffer, window's entries, flags, stats. Cursor, pace and `_stored` are
    touched by `run` alone, which the task pool never runs twice at once."""

    is_alone = False
    stats: SharedStats

    def __init__(
        self,
        runtime: Runtime,
        chain: Chain,
        state: PartitionState,
        topic: TopicSettings,
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__(runtime, chain, state, SharedStats())
        self._topic = topic
        self._on_commit = on_commit
        self._cursor = ChainCursor(runtime, chain, state, WriterMode.SHARED)
        self._pace = Pace(runtime.rng, runtime.clock.monotonic())
        self._scout = Scout(chain, topic, self._cursor, self._pace)
        self._stored = StoredAppends(chain, runtime.reader)
        batch_bytes = min(OPEN_BATCH_BYTES, runtime.config.max_batch_bytes)
        self._buffer = SharedBuffer(CODEC_IDS[runtime.config.compression], batch_bytes)
        self._window: SharedWindow | None = None
        self._oldest_at = 0.0  # when the oldest append of the buffer came, at the latest
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
        sequences = sequences_of(info for _, info in batches)
        charged = sum(info.size for _, info in batches)
        return self._add(
            charged, ack, deadline, lambda: self._buffer.add_encoded(receipt, batches, sequences)
        )

    def _add(
        self, charged: int, ack: Ack, deadline: float, put: Callable[[], Future[Receipt]]
    ) -> Future[Receipt]:
        runtime = self._runtime
        if ack != "durable":
            if runtime.config.writer != "shared":  # it has joined those that it found
                raise shared_in_the_way(
                    self._chain, f'They know durable acks only, and ack="{ack}" was asked for'
                )
            raise ValueError(
                f"ack={ack!r}: a shared writer knows durable acks only, because offsets are not known before the commit; "
                'use ack="durable", or open the store with writer="exclusive"'
            )
        self.make_room(charged, deadline)
        try:
            with self._lock:
                self.check_open()
                if not self._pending():  # until now nothing was held up
                    self.stats.last_progress_at = runtime.clock.monotonic()
                if not len(self._buffer):
                    self._oldest_at = runtime.clock.monotonic()
                before = self._buffer.count
                future = put()
                self._counted.durable_records += self._buffer.count - before
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
        config, now_ms = self._runtime.config, self._runtime.clock.now_ms()
        runs, numbers = admit_records(records, config.max_batch_bytes), (producer_id, epoch, sequence)
        return b"".join(raw for raw, _ in encode_runs(runs, now_ms, CODEC_IDS[config.compression], numbers))

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
            self._group_commit.wait(
                lambda: self._buffer.appends, lambda: self._window is not None or self._closing
            )
            if self.failed is None and self._window is None and len(self._buffer):
                self._window = SharedWindow(self._cursor.new_id(), self._oldest_at)
                self._top_up(self._window)
                self._oldest_at = self._runtime.clock.monotonic()
            window = self._window
        if window is not None and not self._commit_loop.take(lambda: self._attempt(window)):
            self._after_window()

    def _after_window(self) -> None:
        """Everybody who waited for it is told: the time for what concerns the others, which nobody waits for."""
        if self.failed is not None or self._closing or not (self._scout.should_look or self._scout.unneeded):
            return
        if self._pace.upload.is_cheap:
            self._scout.run()  # to hand it over would take longer
        else:
            self._runtime.task_pool.at(self._scout, self._runtime.clock.monotonic())

    def _attempt(self, window: SharedWindow) -> float | None:
        """One step. None if the window is done with, else how long to wait before the next one."""
        if window.attempt is None:
            follows = self._should_follow(window)
            if not follows and not window.is_ours and self._pace.should_read_first():
                self._read(window)
            with self._lock:
                if window.aside is None and not self._is_done(window):
                    self._top_up(window)
            self._settle_stored(window)
            if self._is_done(window):
                return None
            if follows:
                return self._follow(window)
        return self._commit(window)

    def _commit(self, window: SharedWindow) -> float | None:
        """Create the next segment, with what others have put aside."""
        clock = self._runtime.clock
        began = clock.monotonic()
        try:
            if window.attempt is None:
                if self._cursor.needs_opener:
                    self._cursor.open_epoch()
                window.attempt = window.at(self._cursor.header(window.count), self._others(window))
            header, data, summary, appends = window.attempt
            paths = self._chain.paths
            with self._runtime.observer.flush(paths.topic, paths.partition) as flush:
                is_whole = self._cursor.commit(header, data, summary)
                now = clock.monotonic()
                done = window.flushed(header.base_offset, now - began, len(data), now)
                flush.done(done)
        except LostRace:
            self._pace.upload.took(clock.monotonic() - began)
            self._lost_race(window)
            return 0.0 if not self._is_done(window) else None
        except StalePlace:
            self._rejoin()
            return 0.0
        self._pace.upload.took(now - began)
        self._pace.won(now)
        self._scout.should_look = self._pace.should_look()
        self._scout.known.add(header.seq, (append.id for append in appends))
        self._stored.committed(window.attempt.batches)
        self._committed(window, done)
        self._on_commit()  # whoever commits also sees to the manifest, for all
        if not is_whole:
            self._rejoin()
        return None

    def _is_done(self, window: SharedWindow) -> bool:
        """Acked, settled or given up meanwhile."""
        return self._window is not window

    def _others(self, window: SharedWindow) -> list[Pending]:
        """What others have put aside, as far as we know of it and it may go into the next place."""
        others = self._scout.take(window.id)
        if any(other.numbered for other in others):
            self._stored.cover(self._cursor.tail.next_seq)
            others = self._stored.admitted(window.entries, others)
        return others

    def _rejoin(self) -> None:
        """After a long sleep: where the chain ends now is known then, but not what was written meanwhile."""
        self._cursor.rejoin()
        self._scout.known = KnownPlaces(self._cursor.tail.next_seq)
        self._stored = StoredAppends(self._chain, self._runtime.reader)

    def _lost_race(self, window: SharedWindow) -> None:
        """Take in the winner: the next attempt has another place."""
        with self._lock:
            self.stats.races_lost += 1
            self._counted.races_lost += 1
            window.lost()
        self._pace.lost()
        self._read(window)

    # Following: others commit what is ours

    def _should_follow(self, window: SharedWindow) -> bool:
        if window.is_ours or window.aside is not None:
            return not window.is_ours
        return self._pace.follows(self._runtime.clock.monotonic()) and not self._cursor.needs_opener

    def _follow(self, window: SharedWindow) -> float | None:
        """See to it that it is put aside, and look for it in the chain. Returns what a step returns."""
        if window.is_aside:
            self._read(window)
        else:
            self._put_aside(window)
        if self._is_done(window):
            return None
        if window.is_overlooked(self._cursor.tail.next_seq):
            window.is_aside = False
            return 0.0
        return self._wait_for_others(window)

    def _wait_for_others(self, window: SharedWindow) -> float:
        """Nothing new is committed. If that lasts, whoever has waited longest commits for all."""
        clock = self._runtime.clock
        wait = self._pace.wait(clock.monotonic())
        if wait is not None:
            return wait
        waiting = self._scout.put_aside()
        rank = next((place for place, (name, _) in enumerate(waiting) if name.id == window.id), 0)
        if self._pace.is_ours(rank, clock.monotonic()):
            self._scout.fetch([one for one in waiting if one[0].id != window.id])
            window.is_ours = True
        return 0.0

    def _put_aside(self, window: SharedWindow) -> None:
        """One PUT that nobody contends for, and beside it a look at what has come since the last one. May be repeated: it is
        the same append."""
        clock = self._runtime.clock
        self._scout.needs_no_more(window.aside)
        data = window.put_aside(self._cursor.header(window.count))
        assert window.aside is not None
        key, began = self._chain.paths.pending(window.aside), clock.monotonic()

        def put() -> float:
            self._chain.store.put(key, data)
            return clock.monotonic() - began

        if self._pace.upload.is_cheap:
            seconds = put()
            self._read(window)
        else:
            putting = self._runtime.side_pool.submit(put)
            try:
                self._read(window)
            finally:
                seconds = putting.result()
        window.is_aside = True
        self._pace.upload.took(seconds)

    def _read(self, window: SharedWindow) -> None:
        """Take in what has come, to the end of the chain or until ours is there."""
        try:
            places = self._cursor.read(
                self._pace.ahead,
                lambda link: self._take_in(link, window),
                collected=window.aside is not None,
                pool=None if self._pace.upload.is_cheap else self._runtime.side_pool,
                patience_s=self._pace.patience_s,
            )
        except StalePlace as stale:
            if window.aside is not None:
                raise OutcomeUnknown(
                    f"{self._chain.paths}: {stale}, and what was there cannot be read any more: whether appends that "
                    "were put aside were among it is unknown. Open the partition again"
                ) from None
            self._rejoin()
        else:
            self._pace.read(places, self._runtime.clock.monotonic())

    def _take_in(self, link: Link, window: SharedWindow) -> bool:
        """The next segment of the chain. If ours is among what it holds, another writer has committed it. Returns whether it
        was."""
        header = link.header
        appends = appends_in(link, self._chain.paths.segment(header.seq))
        self._scout.known.add(header.seq, (append.id for append in appends))
        if SegmentFlags.COLLECTED in header.flags:
            self._stored = StoredAppends(self._chain, self._runtime.reader)
        else:
            self._stored.saw(link)
        for append in appends:
            if append.id == window.id and not self._is_done(window):
                seconds, now = self._pace.upload.usual_s, self._runtime.clock.monotonic()
                self._committed(window, window.flushed(append.base_offset, seconds, 0, now))
                return True
        return False

    def _top_up(self, window: SharedWindow) -> None:
        """What has come goes with it, as much as fits. Holds the lock."""
        room = self._topic.config.segment_bytes - window.charged
        window.carry(window.entries + self._buffer.take(room, at_least_one=not window.entries))

    def _settle_stored(self, window: SharedWindow) -> None:
        """Ack what the chain holds already, refuse what cannot follow it, and leave the rest in the window."""
        if all(entry.sequences is None for entry in window.entries):
            return
        self._stored.cover(self._cursor.tail.next_seq)
        if self._stored.misses_some(window.entries):  # its producer may have been at another writer meanwhile
            self._read(window)
            self._stored.cover(self._cursor.tail.next_seq)
        with self._lock:
            if self._is_done(window):
                return
            kept, settled = self._stored.deduplicate(window.entries)
            self.stats.duplicates += sum(
                isinstance(found, int) and entry.count > 0 for entry, found in settled
            )
            if settled:
                if window.aside is not None:  # nobody takes it along any more, as we would not
                    self._scout.needs_no_more(window.aside)
                    window.id, window.aside, window.is_aside = self._cursor.new_id(), None, False
                window.carry(kept)
            if not kept:
                self._window_done()
        self._runtime.budget.give_back(sum(entry.charged for entry, _ in settled))
        for entry, found in settled:
            if isinstance(found, int):
                complete(entry.place(found))
            elif found is not None:
                fail([joined.future for joined in entry.joined], found)

    def _committed(self, window: SharedWindow, done: FlushDone) -> None:
        """It is committed there, by our segment or by another's."""
        self._scout.needs_no_more(window.aside)
        with self._lock:
            if self.failed is not None:
                return  # given up by close() while the upload was under way
            placed = window.place(done.base_offset)
            self._window_done()
            self._group_commit.after_commit(len(placed), self._buffer.appends, done.seconds or 0.0)
            self.stats.commits += 1
            self._counted.flushed(done)
            self.stats.progressed(self._runtime.clock.monotonic())
        paths = self._chain.paths
        self._runtime.observer.stored(paths.topic, paths.partition, done)
        self._runtime.budget.give_back(window.charged)
        complete(placed)

    def _window_done(self) -> None:
        """Holds the lock."""
        self._window = None
        self._moved.notify_all()
        if len(self._buffer):
            self._commit_loop.ask()

    # The end

    def _let_go(self) -> tuple[int, list[Future[Any]]]:
        entries = (self._window.entries if self._window is not None else []) + self._buffer.take_all()
        self._window = None
        self._counted.dropped_records += sum(entry.count for entry in entries)
        self._counted.dropped_charged += sum(entry.charged for entry in entries)
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
        oldest = self._oldest_at if self._window is None else self._window.since
        return replace(
            self._told("shared", self._cursor.epoch, frontier, stalled),
            lag=max(0, durable - frontier),
            races_lost=self.stats.races_lost,
            duplicates=self.stats.duplicates,
            next_offset=self.next_offset,
            unflushed_records=self._pending() if held else 0,
            unflushed_bytes=self._buffer.charged + (self._window.charged if self._window is not None else 0),
            unflushed_seconds=round(self._runtime.clock.monotonic() - oldest, 3) if held else 0.0,
            held_at_offset=durable if stalled else None,
        )
