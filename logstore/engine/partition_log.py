"""One partition: append, read back at once, follow.

Reading never fences and never needs a writer. The first append opens the writer, which fences an older one off. While the
writer is open here, nobody else can append, so marks and tail reads cost the store nothing. Without one, the partition is
followed: a read that has come to the end asks the store for news, at most every `follow_interval` while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from logstore.config import Ack, Visibility, check_visibility
from logstore.engine.chain import Chain
from logstore.engine.checkpoint import Checkpointer
from logstore.engine.follower import Follower
from logstore.engine.health import partition_health
from logstore.engine.intake import encode_runs, stamped, take_batches, take_one, take_records
from logstore.engine.maintenance import Maintenance
from logstore.engine.partition_reader import PartitionReader
from logstore.engine.replicated_writer import ReplicatedWriter
from logstore.engine.results import ReadResult, Receipt, acked
from logstore.engine.runtime import Runtime
from logstore.engine.segments import LostRange, SegmentRef
from logstore.engine.tiers import Tiers
from logstore.engine.topic_settings import TopicSettings
from logstore.engine.write_buffer import OPEN_BATCH_BYTES
from logstore.engine.writer_protocol import Writer
from logstore.engine.writers import PartitionWriters
from logstore.errors import (
    AppendTimeout,
    Closed,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownTopic,
)
from logstore.format.batch import BatchInfo
from logstore.format.codecs import CODEC_IDS
from logstore.format.record import Headers, Record
from logstore.paths import PartitionPaths

READ_BYTES = 1 << 20
_ACKS = ("buffered", "local", "durable")
Appendable = Record | bytes | Iterable[Record | bytes]
Loaded = tuple[Tiers, PartitionReader, Follower]
Submitted = tuple[Receipt, Future[Receipt] | None]


class PartitionLog:
    """Safe for threads. Get it from `Topic.partition(i)`; a store hands out one for each partition."""

    def __init__(self, runtime: Runtime, paths: PartitionPaths, settings: TopicSettings) -> None:
        self.paths = paths
        self._runtime = runtime
        self._config = runtime.config
        self._settings = settings
        self._chain = Chain(runtime.store, paths)
        self._opening = (
            threading.RLock()
        )  # held during I/O, so only by those who must wait for it: load and open_writer
        self._loaded: Loaded | None = None
        self._checkpointer: Checkpointer | None = None
        self._writer: Writer | None = None
        self._writers = PartitionWriters(runtime, self._chain, settings)
        self._closed = False

    @property
    def topic(self) -> str:
        return self.paths.topic

    @property
    def partition(self) -> int:
        return self.paths.partition

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic!r}, {self.partition})"

    # Appending

    def append(self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None) -> Receipt:
        """Append one record or several, all or nothing, at contiguous offsets; return when they are acked.

        Raises `InvalidRecord` or `RecordTooLarge` (nothing was taken), `BufferFull` (nothing was taken, try again),
        `AppendTimeout` (taken; the outcome is not known yet), `Fenced`, `Closed`, `ReadOnly`, `StoreUnavailable`.
        """
        deadline = self._deadline(timeout)
        return self._acked(self._submit(records, ack, deadline), deadline)

    def submit(self, records: Appendable, *, ack: Ack | None = None) -> Future[Receipt]:
        """The same, without waiting for the ack: the records have their offsets when this returns.

        It waits only for room in the buffer, and, for the first append, for the writer to be opened.
        """
        receipt, future = self._submit(records, ack, self._deadline(None))
        return future or acked(receipt)

    def begin_append(
        self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None
    ) -> tuple[Submitted, float]:
        """`append` in two halves, so that one thread can append to many partitions side by side."""
        deadline = self._deadline(timeout)
        return self._submit(records, ack, deadline), deadline

    def finish_append(self, begun: tuple[Submitted, float]) -> Receipt:
        """Wait for the ack of what `begin_append` gave."""
        return self._acked(*begun)

    def append_batches(
        self, raw: bytes | bytearray | memoryview, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Receipt:
        """Append Kafka v2 record batches as they are, all or nothing. Only their offsets and leader epochs are set."""
        deadline = self._deadline(timeout)
        return self._acked(self._submit_batches(raw, ack, deadline), deadline)

    def submit_batches(
        self, raw: bytes | bytearray | memoryview, *, ack: Ack | None = None
    ) -> Future[Receipt]:
        """`append_batches` without waiting for the ack."""
        receipt, future = self._submit_batches(raw, ack, self._deadline(None))
        return future or acked(receipt)

    def append_one(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        ack: Ack | None,
        timeout: float | None,
    ) -> Receipt:
        """One record in parts: what `Topic.append` calls, and the shortest way in."""
        now_ms = self._runtime.clock.now_ms()
        record, size = take_one(value, key, headers, timestamp_ms, now_ms, self._config.max_batch_bytes)
        level = self._config.ack if ack is None else ack
        if level != "buffered":
            self._check_ack(level)
        receipt = Receipt(self, -1, -1, now_ms if timestamp_ms is None else timestamp_ms, level)
        writer = self._writer
        if level == "buffered" and writer is not None and writer.add_at_once(receipt, record, size):
            self._tell_listeners()
            return receipt
        deadline = self._deadline(timeout)
        writer = self._writer or self.open_writer(timeout=self._left(deadline), ack=level)
        future = writer.add_one(receipt, record, size, level, deadline)
        if future is None:
            self._tell_listeners()
            return receipt
        return self._acked((receipt, future), deadline)

    def _submit(self, given: object, ack: Ack | None, deadline: float) -> Submitted:
        level = self._check_ack(ack)
        runs = take_records(given, self._config.max_batch_bytes)
        now_ms = self._runtime.clock.now_ms()
        if len(runs) > 1 or runs[0].charged > OPEN_BATCH_BYTES // 4:
            encoded = encode_runs(runs, now_ms, CODEC_IDS[self._config.compression])
            return self._add_encoded(encoded, level, deadline)
        records = stamped(runs[0].records, now_ms)
        writer = self._writer or self.open_writer(timeout=self._left(deadline), ack=level)
        newest = max(record.timestamp_ms or 0 for record in records)
        receipt = Receipt(self, -1, -1, newest, level)
        future = writer.add_run(receipt, records, runs[0].charged, level, deadline)
        if future is None:
            self._tell_listeners()
        return receipt, future

    def _submit_batches(self, raw: object, ack: Ack | None, deadline: float) -> Submitted:
        level = self._check_ack(ack)
        return self._add_encoded(take_batches(raw, self._config.max_batch_bytes), level, deadline)

    def _add_encoded(
        self, batches: list[tuple[memoryview, BatchInfo]], level: Ack, deadline: float
    ) -> Submitted:
        size = sum(info.size for _, info in batches)
        if size > self._config.max_buffered_bytes:
            raise RecordTooLarge(
                f"one append of {size} bytes can never fit max_buffered_bytes={self._config.max_buffered_bytes}: "
                "nothing was appended; split it"
            )
        writer = self._writer or self.open_writer(timeout=self._left(deadline), ack=level)
        newest = max(info.max_timestamp_ms for _, info in batches)
        receipt = Receipt(self, -1, -1, newest, level)
        future = writer.add_encoded(receipt, batches, level, deadline)
        if future is None:
            self._tell_listeners()
        return receipt, future

    def _acked(self, submitted: Submitted, deadline: float) -> Receipt:
        receipt, future = submitted
        if future is not None:
            self._await(future, receipt, deadline)
        return receipt

    def _await(self, future: Future[Receipt], receipt: Receipt, deadline: float | None) -> None:
        try:
            future.result(None if deadline is None else max(0.0, deadline - self._runtime.clock.monotonic()))
        except FutureTimeout:
            writer = self._writer
            assert writer is not None, "only a writer gives futures"
            writer.give_up(future)
            if future.done() and not future.cancelled():
                future.result()  # it came just now
                return
            raise self.late(receipt) from None
        except CancelledError:
            raise Closed(f"{self.paths}: the store was closed while an append waited for its ack") from None

    def late(self, receipt: Receipt) -> AppendTimeout:
        """The error for an ack that did not come in time."""
        writer = self._writer
        why = (writer and writer.stats.last_error) or "the store has not answered yet"
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

    def _deadline(self, timeout: float | None) -> float:
        return self._runtime.clock.monotonic() + self.ack_timeout(timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._runtime.clock.monotonic())

    # The writer

    def open_writer(self, *, timeout: float | None = None, ack: Ack | None = None) -> Writer:
        """Open the writer now instead of at the first append. An exclusive one takes the partition over and fences any other
        writer off; a shared one joins those there are."""
        with self._opening:
            if self._writer is None:
                tiers, on_commit = self._for_writing()
                level, wait = ack or self._config.ack, self.ack_timeout(timeout)
                self._writer = self._writers.open(tiers, on_commit, level, wait)
            return self._writer

    def replicated(self, writer_id: str, *, standby: bool = False) -> ReplicatedWriter:
        """A writer for deterministic input that several processes feed: see `ReplicatedWriter`.

        It writes nothing by being opened. `standby`: it holds what it is fed and stores nothing until `promote()`.
        """
        with self._opening:
            return self._writers.replicated(*self._for_writing(), writer_id, passive=standby)

    def _for_writing(self) -> tuple[Tiers, Callable[[], None]]:
        if self._closed:
            raise Closed(f"{self.paths}: the store is closed")
        tiers = self._tiers
        assert self._checkpointer is not None, "set by _load"
        return tiers, self._checkpointer.after_commit

    @property
    def epoch(self) -> int:
        """The epoch of the last writer seen; ours, while we are the writer."""
        return self._tiers.tail.epoch

    def flush(self, timeout: float | None = None) -> int:
        """Make everything appended so far durable. Returns the durable mark."""
        deadline = self._deadline(timeout)
        self.finish_flush(self.begin_flush(), deadline)
        return self.durable_high_watermark

    def begin_flush(self) -> Submitted:
        """Ask for the flush; `finish_flush` waits for it. So many partitions flush side by side."""
        receipt = Receipt(self, -1, -1, 0, "durable")
        writer = self._writer
        return receipt, writer.flush_now(receipt) if writer is not None else None

    def finish_flush(self, begun: Submitted, deadline: float) -> None:
        receipt, future = begun
        if future is not None:
            self._await(future, receipt, deadline)

    def wait_durable(self, receipt: Receipt, timeout: float | None) -> None:
        """What `Receipt.wait_durable` calls."""
        writer = self._writer
        assert writer is not None, "a receipt comes from a writer"
        future = writer.when_durable(receipt)
        if future is not None:
            self._await(future, receipt, None if timeout is None else self._deadline(timeout))

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int = READ_BYTES,
        *,
        visibility: Visibility = "buffered",
        wait: float = 0.0,
    ) -> ReadResult:
        """Whole batches from `offset` on: at least one, up to `max_bytes`; empty at the high mark.

        `wait`: at the mark, wait up to so many seconds for something to come. Raises `OffsetOutOfRange` below the low or
        above the high mark, `CorruptData` with the object's name if stored bytes are damaged.
        """
        check_visibility(visibility)
        _check_offset(offset)
        tiers, reader, follower = self._load()
        if offset >= tiers.readable(visibility):
            if wait <= 0 or offset > tiers.mark(visibility):
                follower.refresh()
            if wait > 0 and offset <= tiers.mark(visibility):
                follower.wait_for(offset, visibility, wait)
        return reader.read(offset, max_bytes, visibility)

    def read_cached(
        self, offset: int, max_bytes: int = READ_BYTES, *, visibility: Visibility = "buffered"
    ) -> ReadResult | None:
        """`read` from memory alone, so it never blocks; None if it would need the object store."""
        if self._loaded is None:
            return None
        return self._loaded[1].read_cached(offset, max_bytes, visibility)

    def records(
        self, start: int | None = None, stop: int | None = None, *, visibility: Visibility = "buffered"
    ) -> Iterator[Record]:
        """The records from `start` (the low mark) up to, not including, `stop` (the mark at the time of the call)."""
        check_visibility(visibility)
        tiers, _, follower = self._load()
        follower.refresh()
        mark = tiers.mark(visibility)
        return self._records(
            tiers.low if start is None else start, mark if stop is None else min(stop, mark), visibility
        )

    def _records(self, position: int, stop: int, visibility: Visibility) -> Iterator[Record]:
        while position < stop:
            result = self.read(position, visibility=visibility)
            for record in result.records():
                if record.offset is not None and record.offset >= stop:
                    return
                yield record
            if result.next_offset <= position:
                return
            position = result.next_offset

    def tail(self, start: int | None = None, *, visibility: Visibility = "buffered") -> Iterator[Record]:
        """The records from `start` (the low mark) on, for ever: at the end it waits, woken by the next append.

        Ends when the store is closed.
        """
        check_visibility(visibility)
        position = self._tiers.low if start is None else start
        while not self._closed:
            result = self.read(position, visibility=visibility, wait=3600.0)
            yield from result.records()
            position = result.next_offset

    @property
    def follows(self) -> bool:
        """Whether somebody else may be appending, so that the end is known only by asking the store."""
        writer = self._writer
        return writer is None or writer.failed is not None or not writer.is_alone

    def refresh(self) -> None:
        """Ask the store what others have committed: one request if there is nothing new, none if we are the writer."""
        self._load()[2].refresh()

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """The offset of the first record with this timestamp or a later one; None if there is none."""
        if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
            raise TypeError(f"a timestamp is an int, in milliseconds, not {type(timestamp_ms).__name__}")
        _, reader, follower = self._load()
        follower.refresh()
        return reader.first_at(timestamp_ms)

    def lost_ranges(self) -> list[LostRange]:
        """Offsets that were acked below `durable`, went down with a crash, and will never be given to other records."""
        return self._tiers.lost_ranges()

    def delete_before(self, offset: int) -> int:
        """Delete the records before `offset`, as Kafka's DeleteRecords does. Returns the new low mark: `offset`, or a later
        one that stood before.

        It fences nobody and needs no writer. What of them is only buffered here is flushed first. When it returns, nobody
        here sees them any more and no crash brings them back; a process that has the partition open elsewhere hears of it
        with its next checkpoint, or when it opens it anew. The objects go after the grace period. Raises
        `OffsetOutOfRange` below 0 or above the high mark, `ReadOnly`, `CorruptData` if an object is missing or damaged.
        """
        _check_offset(offset)
        self._writers.check_writable()
        tiers, _, follower = self._load()
        follower.refresh()
        high = tiers.readable("buffered")
        if not 0 <= offset <= high:
            raise OffsetOutOfRange(tiers.low, high, offset, str(self.paths))
        if offset > tiers.durable:
            self.flush()
        low = self.maintenance.delete_before(offset, self._runtime.clock.now_ms())
        with tiers.lock:
            tiers.begin_at(low)
        tiers.tell_listeners()
        return low

    # The marks

    @property
    def low_watermark(self) -> int:
        """The first offset there is."""
        return self._tiers.low

    @property
    def durable_high_watermark(self) -> int:
        """One past the last offset in the object store, as last seen."""
        return self._tiers.durable

    @property
    def buffered_high_watermark(self) -> int:
        """One past the last acked offset, as last seen."""
        return self._tiers.buffered

    def mark(self, visibility: Visibility) -> int:
        """The high mark for readers of that visibility, as last seen."""
        return self._tiers.mark(visibility)

    def readable(self, visibility: Visibility) -> int:
        """Up to where there are records to be had, as last seen: the mark, unless a writer here has stopped below it."""
        return self._tiers.readable(visibility)

    @property
    def now_ms(self) -> int:
        """The store's clock: what a record without a timestamp gets."""
        return self._runtime.clock.now_ms()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def follow_interval(self) -> float:
        """How often to ask the store while `follows`."""
        return self._config.follow_interval

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener()`, from any thread and with no lock held, after a visible mark moved. It must be quick."""
        self._tiers.add_listener(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._tiers.remove_listener(listener)

    def _tell_listeners(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            loaded[0].tell_listeners()

    def segments(self) -> list[SegmentRef]:
        """The committed objects that hold the records, as last seen."""
        tiers = self._tiers
        with tiers.lock:
            return tiers.segments.all()

    @property
    def maintenance(self) -> Maintenance:
        """Merge, expire and collect by hand; a writer does it by itself now and then."""
        config = self._config
        return Maintenance(self._chain, self._runtime.reader, self._settings, config.delete_grace)

    # Life

    @property
    def _tiers(self) -> Tiers:
        return self._load()[0]

    def _load(self) -> Loaded:
        loaded = self._loaded
        if loaded is not None:
            return loaded
        with self._opening:
            if self._loaded is None:
                if self._closed:
                    raise Closed(f"{self.paths}: the store is closed")
                view = self._chain.load()
                tiers = Tiers(view)
                self._checkpointer = Checkpointer(
                    self._runtime,
                    self._chain,
                    tiers,
                    view.manifest_next_seq,
                    self.maintenance,
                    self._settings.refresh,
                )
                reader = PartitionReader(tiers, self._chain, self._runtime.reader)
                self._loaded = tiers, reader, Follower(self._runtime, self._chain, tiers, self)
            return self._loaded

    def health(self) -> dict[str, Any]:
        """What an operator wants to see, from memory alone."""
        tiers = self._loaded[0] if self._loaded is not None else None
        health = partition_health(self.paths, tiers, self._writer, self._runtime)
        replicated = self._writers.health()
        return health | {"replicated": replicated} if replicated else health

    def topic_deleted(self) -> None:
        """Stop at once: what is not stored yet has no place to go any more, and whoever waits for it is told."""
        with self._opening:
            self._closed = True
            self._writers.stop(UnknownTopic(f"{self.paths}: the topic was deleted"))
            self.release()

    def begin_close(self) -> None:
        """Take no more appends and start the last flush; `finish_close` waits for it."""
        self._closed = True
        with self._opening:
            self._writers.begin_close()

    def finish_close(self, deadline: float) -> str | None:
        """Wait for the last flush. Returns what is not durable, in words, or None."""
        loaded, problem = self._loaded, self._writers.finish_close(deadline)
        if loaded is not None:
            with loaded[0].lock:
                loaded[0].moved.notify_all()
            loaded[0].tell_listeners()
        return problem

    def release(self) -> None:
        """After the flusher has stopped: let go of the WAL's files."""
        if self._loaded is not None:
            self._writers.release(self._loaded[0].durable)


def _check_offset(offset: object) -> None:
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"an offset is an int, not {type(offset).__name__}")
