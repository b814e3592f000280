"""The internal interface of a partition: `log._internal`, what our own packages share and users do not see.

`PartitionLog` is for users: its names are fixed. What `topic`, `store`, `aio`, `producer`, `ingest`, `cli` and `broker_shim`
need beyond them is here: an append in parts, so that one thread begins many and none waits on an event loop; a look at
memory alone; listeners; the life of a partition, which its store leads. It may change with them, in one commit. A test
lists both surfaces, name by name.

Reading (`ReadablePartition`) never fences and never needs a writer. The first append opens the writer, which fences an older
one off. A writer that has stopped stays stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from logstore.config import Ack, StoreConfig, TakeOver
from logstore.engine.chain.chain import Chain
from logstore.engine.host.clock import waitable
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import Receipt, acked
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.memory.write_buffer import OPEN_BATCH_BYTES
from logstore.engine.partition.health import PartitionHealth
from logstore.engine.partition.readable_partition import ReadablePartition, check_offset
from logstore.engine.partition.writer_opening import WriterOpening
from logstore.engine.partition.writer_slot import PartitionWriters
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.runtime import Runtime
from logstore.engine.write.admission import (
    Run,
    admit_batches,
    admit_one,
    admit_records,
    check_batch_keys,
    check_keys,
    encode_runs,
)
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.wal.local_sync import LocalSync
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import (
    AppendTimeout,
    Closed,
    LogStoreError,
    OffsetOutOfRange,
    RecordTooLarge,
    StoreUnavailable,
)
from logstore.format import kernels
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Header, Record
from logstore.layout.paths import PartitionPaths

_ACKS = ("buffered", "local", "durable")
Appendable = Record | bytes | Iterable[Record | bytes]
Submitted = tuple[Receipt, Future[Receipt] | None]
Begun = tuple[Submitted, float]
"""What was submitted, and until when its caller waits."""


class Partition(ReadablePartition):
    """Safe for threads. `replaced`: it was reopened, and the store hands out another one since."""

    def __init__(
        self,
        runtime: Runtime,
        paths: PartitionPaths,
        settings: TopicSettings,
        lane: Lane | None = None,
        local_sync: LocalSync | None = None,
    ) -> None:
        super().__init__(runtime, paths, settings)
        self.replaced = False
        self._close_later = False
        self._writers = PartitionWriters(runtime, self._chain, settings, lane, local_sync)
        self._writer_opening = WriterOpening(runtime, self)
        runtime.observer.opened(self)

    # Appending

    def check_records(self, records: Appendable) -> list[Run]:
        """`append` in three parts, so that one thread can append to many partitions side by side, and to none if a record is
        refused. The first takes nothing: it raises what is wrong with the records, and makes them ready for `begin_checked`.
        """
        runs = admit_records(records, self._config.max_batch_bytes)
        if self._settings.config.compact:
            check_keys(runs)
        return runs

    def begin_checked(
        self, checked: list[Run], *, ack: Ack | None = None, timeout: float | None = None
    ) -> Begun:
        """Give the records of `check_records` their offsets."""
        level, deadline = self._check_ack(ack), self.deadline(timeout)
        now_ms = self._runtime.clock.now_ms()
        if len(checked) > 1 or checked[0].charged > OPEN_BATCH_BYTES // 4:
            encoded = encode_runs(checked, now_ms, CODEC_IDS[self._config.compression])
            return self._add_encoded(encoded, level, deadline), deadline
        records, newest = kernels.active.stamp(checked[0].records, now_ms)
        writer = self._writer or self._open_by(deadline, level)
        receipt = Receipt(self, -1, -1, newest, level)
        future = writer.add_run(receipt, records, checked[0].charged, level, deadline)
        if future is None:
            self._tell_listeners()
        return (receipt, future), deadline

    def begin_append(
        self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Begun:
        """Check the records and give them their offsets; `finish_append` waits for the ack."""
        return self.begin_checked(self.check_records(records), ack=ack, timeout=timeout)

    def finish_append(self, begun: Begun) -> Receipt:
        """Wait for the ack of what was begun."""
        (receipt, future), deadline = begun
        if future is not None:
            self._await(future, receipt, deadline)
        return receipt

    def begin_append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        ack: Ack | None = None,
        timeout: float | None = None,
        control: bool = False,
    ) -> Begun:
        """Check the batches and give them their offsets; `finish_append` waits for the ack. `control`: a broker's own
        batches, which say how a transaction ended, are taken too."""
        level, deadline = self._check_ack(ack), self.deadline(timeout)
        batches = admit_batches(raw, self._config.max_batch_bytes, control=control)
        if self._settings.config.compact:
            check_batch_keys(batches)
        return self._add_encoded(batches, level, deadline), deadline

    def submit_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        ack: Ack | None = None,
        timeout: float | None = None,
        control: bool = False,
    ) -> Future[Receipt]:
        """`begin_append_batches`, with a future for the ack."""
        (receipt, future), _ = self.begin_append_batches(raw, ack=ack, timeout=timeout, control=control)
        return future or acked(receipt)

    def append_one(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp_ms: int | None,
        ack: Ack | None,
        timeout: float | None,
    ) -> Receipt:
        """One record in parts: the shortest way in."""
        now_ms = self._runtime.clock.now_ms()
        record, size = admit_one(value, key, headers, timestamp_ms, now_ms, self._config.max_batch_bytes)
        if key is None and self._settings.config.compact:
            check_keys([Run([record], size)])
        level = self._config.ack if ack is None else ack
        if level != "buffered":
            self._check_ack(level)
        receipt = Receipt(self, -1, -1, now_ms if timestamp_ms is None else timestamp_ms, level)
        writer = self._writer
        if level == "buffered" and writer is not None and writer.add_at_once(receipt, record, size):
            self._tell_listeners()
            return receipt
        deadline = self.deadline(timeout)
        writer = self._writer or self._open_by(deadline, level)
        future = writer.add_one(receipt, record, size, level, deadline)
        if future is None:
            self._tell_listeners()
            return receipt
        del record  # who waits for an ack need not hold what is in the log by then
        return self.finish_append(((receipt, future), deadline))

    def _add_encoded(
        self, batches: list[tuple[memoryview, BatchInfo]], level: Ack, deadline: float
    ) -> Submitted:
        size = sum(info.size for _, info in batches)
        if size > self._config.max_buffered_bytes:
            raise RecordTooLarge(
                f"one append of {size} bytes can never fit max_buffered_bytes={self._config.max_buffered_bytes}: "
                "nothing was appended; split it"
            )
        writer = self._writer or self._open_by(deadline, level)
        newest = max(info.max_timestamp_ms for _, info in batches)
        receipt = Receipt(self, -1, -1, newest, level)
        future = writer.add_encoded(receipt, batches, level, deadline)
        if future is None:
            self._tell_listeners()
        return receipt, future

    def _await(self, future: Future[Receipt], receipt: Receipt, deadline: float | None) -> None:
        try:
            future.result(None if deadline is None else waitable(deadline - self._runtime.clock.monotonic()))
        except FutureTimeout:
            self.give_up(future)
            if future.done() and not future.cancelled():
                future.result()  # it came just now
                return
            raise self.late(receipt) from None
        except CancelledError:
            raise Closed(f"{self.paths}: the store was closed while an append waited for its ack") from None

    def late(self, receipt: Receipt) -> AppendTimeout:
        """The error for an ack that did not come in time."""
        writer = self._writer
        stats = writer.stats if writer is not None else None
        wal_error = stats.wal_error if stats is not None and receipt.durability == "local" else None
        waits = writer is not None and writer.claim_committed is not None
        claim_error = self.lane.claiming.last_error if waits and self.lane is not None else None
        why = wal_error or claim_error or (stats and stats.last_error) or "the store has not answered yet"
        what = f"offsets {receipt.offset} to {receipt.last_offset}" if receipt.offset >= 0 else "the records"
        return AppendTimeout(
            f"{self.paths}: {what} were not acked in time; they are still queued and may "
            f"become durable ({why}): read back before you append them again"
        )

    def _check_ack(self, ack: Ack | None) -> Ack:
        level = self._config.ack if ack is None else ack
        if level not in _ACKS:
            raise ValueError(f"ack={level!r}: it is one of {', '.join(_ACKS)}")
        if level == "local" and self._config.wal_dir is None:
            raise ValueError('ack="local" needs a store that was opened with wal_dir')
        return level

    def ack_timeout(self, timeout: float | None) -> float:
        """How long an append may take whose caller said `timeout`."""
        return self._config.append_timeout if timeout is None else timeout

    def deadline(self, timeout: float | None) -> float:
        """Until when, by the store's clock."""
        return self._runtime.clock.monotonic() + self.ack_timeout(timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._runtime.clock.monotonic())

    # The writer

    @property
    def config(self) -> StoreConfig:
        """Of the store."""
        return self._config

    def check_writable(self) -> None:
        """`ReadOnly` or `Closed` if nothing can be appended here."""
        self._writers.check_writable()
        self._check_open()

    @property
    def lane(self) -> Lane | None:
        """The one that its exclusive writer commits through; None if it commits to the partition's own chain."""
        return self._writers.lane

    def writer(self, deadline: float) -> Writer:
        """The one that `append` uses, opened if it is not: that may wait for the store, up to the deadline."""
        writer = self._writer or self._open_by(deadline, "durable")
        self._await_claim(writer, deadline)
        return writer

    def _open_by(self, deadline: float, ack: Ack) -> Writer:
        self._check_open()
        ahead = self._open_ahead() if ack == "durable" else None
        return ahead or self._writer_opening.writer(deadline, ack)

    def _open_ahead(self) -> Writer | None:
        """The writer, made of what a lane told a moment ago, if that is enough. Waits for nobody."""
        if not self._opening.acquire(blocking=False):
            return None
        try:
            if self._writer is None and self._loaded is None and not self._ended():
                recalled = self._writers.recalled()
                if recalled is not None:
                    self._become(recalled.view)
                    state, on_commit = self._for_writing()
                    self._writer = self._writers.open_ahead(state, on_commit, has_ended=recalled.has_ended)
            return self._writer
        finally:
            self._opening.release()

    def _await_claim(self, writer: Writer, deadline: float) -> None:
        """One that was opened ahead of its claim has it then."""
        claimed = writer.claim_committed
        if claimed is None or claimed.done():
            return
        try:
            claimed.result(waitable(deadline - self._runtime.clock.monotonic()))
        except FutureTimeout:
            raise StoreUnavailable(
                f"{self.paths}: the writer could not be opened in time, nothing was appended: the store has not answered "
                "yet; try again"
            ) from None

    def open_writer(
        self,
        *,
        timeout: float | None = None,
        ack: Ack | None = None,
        take_over: bool = False,
        alone: bool = False,
    ) -> Writer:
        """As `PartitionLog.open_writer`; gives the writer. `take_over`: also from one that lives. `alone`: `PartitionInUse`
        rather than joining shared writers."""
        with self._opening:
            if self._writer is None:
                self._open_end(take_over or self._config.take_over)
                if self._loaded is None and (recalled := self._writers.recalled()) is not None:
                    self._become(recalled.view)
                state, on_commit = self._for_writing()
                self._writers.tell(state.tail)
                level, wait = ack or self._config.ack, self.ack_timeout(timeout)
                self._writer = self._writers.open(
                    state,
                    on_commit,
                    level,
                    wait,
                    take_over=take_over or self._config.take_over,
                    alone=alone,
                )
                if self._closed:  # meanwhile, by somebody who did not wait for us
                    self._writers.stop(self._closed_error())
                    self.release()
                    raise self._closed_error()
            writer = self._writer
        self._await_claim(writer, self.deadline(timeout))
        return writer

    def replicated(self, writer_id: str, *, standby: bool = False) -> ReplicatedWriter:
        """As `PartitionLog.replicated`."""
        with self._opening:
            return self._writers.replicated(*self._for_writing(), writer_id, passive=standby)

    @property
    def stopped(self) -> LogStoreError | None:
        """Why the writer that `append` uses has stopped for good; None while it has not, or if there is none."""
        writer = self._writer
        return writer.failed if writer is not None else None

    def end(self, deadline: float) -> str | None:
        """The first half of `PartitionLog.reopen`: close it. Returns what is not stored, in words, or None."""
        if self.stopped is None and not self._closed:
            try:
                self.finish_flush(self.begin_flush(), deadline)
            except LogStoreError:
                if self.stopped is None:
                    raise  # else it holds nothing any more, and whoever waited was told
        self._writers.hand_over()
        self.begin_close()
        problem = self.finish_close(deadline)
        self._writers.stop(self._reopened_error())
        self.release()
        return problem

    def _reopened_error(self) -> Closed:
        return Closed(f"{self.paths}: it was reopened; `Topic.partition` gives the log there is now")

    def _closed_error(self) -> LogStoreError:
        return self._reopened_error() if self.replaced else super()._closed_error()

    def _open_end(self, take_over: TakeOver) -> None:
        """If the life before of this process wrote it, through a lane with a name: the lane says where to go on."""
        if self._loaded is None and (tail := self._writers.carried_on(take_over)) is not None:
            self._load_end(tail)

    def _for_writing(self) -> tuple[PartitionState, Callable[[], None]]:
        self._check_open()
        state = self.end_state
        assert self._checkpointer is not None, "set by _load"
        return state, self._checkpointer.after_commit

    @property
    def epoch(self) -> int:
        """The epoch of the last writer seen; ours, while we are the writer."""
        return self.end_state.tail.epoch

    def fetch_epoch(self) -> int:
        """The epoch of the newest writer, asked of the store: above ours, if somebody has taken the partition from us and we
        have not met the fence yet, because we have written nothing since. A few requests."""
        runtime = self._runtime
        return Chain(runtime.store, self.paths, runtime.rng, runtime.lanes).load().tail.epoch

    @property
    def reserved_end(self) -> int:
        """Before this offset a reader may have been anywhere: the high watermark, or, while another process writes or
        after it has died, what it reserved past that. The next writer begins here or later.
        """
        return self.state.reserved_end()

    def begin_flush(self) -> Submitted:
        """Ask for the flush; `finish_flush` waits for it. So many partitions flush side by side."""
        receipt = Receipt(self, -1, -1, 0, "durable")
        writer = self._writer
        return receipt, writer.flush_now(receipt) if writer is not None else None

    def finish_flush(self, begun: Submitted, deadline: float) -> None:
        """Wait until what `begin_flush` gave is stored."""
        self.finish_append((begun, deadline))

    def wait_durable(self, receipt: Receipt, timeout: float | None) -> None:
        """What `Receipt.wait_durable` calls."""
        future = self.when_durable(receipt)
        if future is not None:
            self._await(future, receipt, None if timeout is None else self.deadline(timeout))

    def when_durable(self, receipt: Receipt) -> Future[Receipt] | None:
        """A future for the moment when the receipt's records are durable; None if they are. Forces no flush."""
        writer = self._writer
        assert writer is not None, "a receipt comes from a writer"
        return writer.when_durable(receipt)

    def give_up(self, waiting: Future[Receipt]) -> None:
        """Its owner waits no longer: it is not kept for as long as an outage lasts. The records stay queued."""
        writer = self._writer
        assert writer is not None, "only a writer gives futures"
        writer.give_up(waiting)

    def delete_before(self, offset: int) -> int:
        """As `PartitionLog.delete_before`."""
        check_offset(offset)
        self._writers.check_writable()
        self._check_open()
        state, _, follower = self._load()
        follower.refresh()
        high = state.readable_end("buffered")
        if not 0 <= offset <= high:
            raise OffsetOutOfRange(state.low, high, offset, str(self.paths))
        if offset > state.durable:
            self.finish_flush(self.begin_flush(), self.deadline(None))
        low = self.maintenance.delete_before(offset, self._runtime.clock.now_ms())
        state.raise_low_watermark(low)
        state.tell_listeners()
        return low

    # Life

    def health(self) -> dict[str, Any]:
        """What an operator wants to see, from memory alone."""
        return self.health_report().as_dict()

    def health_report(self) -> PartitionHealth:
        """The same, typed."""
        if self._loaded is None:
            return PartitionHealth(self.topic, self.partition)
        overview, (writer, replicated) = self._loaded[0].overview(self._writers.health_reports)
        return PartitionHealth(self.topic, self.partition, overview, writer, tuple(replicated))

    def topic_deleted(self) -> None:
        """Stop at once: what is not stored yet has no place to go any more, and whoever waits for it is told."""
        with self._opening:
            self._deleted = self._closed = True
            self._writers.stop(self._closed_error())
            self.release()

    def after_fork_in_child(self, error: LogStoreError) -> None:
        """After a fork, in the child: the parent owns all of this. Takes no lock."""
        self._closed = True
        self._writers.after_fork_in_child(error)

    def begin_close(self) -> None:
        """Take no more appends and start the last flush; `finish_close` waits for it."""
        self._closed = True
        if self._opening.acquire(blocking=False):
            self._begin_close()
        else:
            self._close_later = True  # a writer is being opened, by a store that may not answer

    def _begin_close(self) -> None:
        """Holds `_opening`, and releases it."""
        try:
            self._writers.begin_close()
        finally:
            self._opening.release()

    def finish_close(self, deadline: float) -> str | None:
        """Wait for the last flush. Returns what is not durable, in words, or None."""
        if self._close_later and self._opening.acquire(timeout=waitable(self._left(deadline))):
            self._begin_close()
        loaded, problem = self._loaded, self._writers.finish_close(deadline)
        if loaded is not None:
            loaded[0].wake_all()
        return problem

    def release(self) -> None:
        """After the writer has stopped, or the task pool: let go of what the WAL has of it."""
        self._writers.release(is_deleted=self._gone)
