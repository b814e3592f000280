"""The same surface for asyncio: `await topic.append(…)`, `async for record in partition.tail()`.

A thin face over the same engine: what may block (an append that waits for room, a cold read, opening) runs on threads of its
own, acks and tail wake-ups come back through the event loop. A cancelled append may still be stored, like one whose
deadline passed; a cancelled read or tail leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, Unpack

from logstore import atomic
from logstore import store as blocking
from logstore.config import Ack, StoreConfig, StoreSettings, TopicOptions, Visibility, check_visibility
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.host.clock import Clock
from logstore.engine.memory.partition_state import Marks
from logstore.engine.memory.results import ReadResult, Receipt
from logstore.engine.partition import partition_log
from logstore.engine.partition.atomic_batches import late, left
from logstore.engine.partition.internal import Appendable, Partition, Submitted
from logstore.engine.partition.many_partitions import ManyPartitions, Taken
from logstore.engine.partition.readable_partition import READ_BYTES, check_offset, check_start
from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.errors import Closed, InvalidRecord, OffsetOutOfRange, UnknownTopic
from logstore.format.batches.record import Header, Record, TopicRecord
from logstore.groups.asynchronous import Group, call_in
from logstore.objects.homes.disk import Disk
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.metered import OperationStats
from logstore.topic import Topic as BlockingTopic
from logstore.topic import check_one

__all__ = ["AtomicBlock", "Group", "PartitionLog", "Store", "Topic", "open"]

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16
_FOLLOW_S = 3600.0


class _Threads:
    """Runs blocking calls of one store."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="logstore-aio")
        self._closed = False

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise Closed("the store is closed")
        return await asyncio.wrap_future(self.submit(call, *args, **kwargs))

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(call, *args, **kwargs)

    def close(self) -> None:
        """Calls that still wait for a thread get one, and `Closed` from the store."""
        self._closed = True
        self._pool.shutdown(wait=False)


class Store:
    """`logstore.Store` for asyncio. An async context manager. Get it from `logstore.aio.open`."""

    def __init__(self, store: blocking.Store, threads: _Threads) -> None:
        self.blocking = store
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        exist_ok: bool = False,
        **topic_settings: Unpack[TopicOptions],
    ) -> Topic:
        """Create it, or with `exist_ok` take the one there is. `topic_settings` are fields of `TopicConfig`."""
        made = await self._threads.run(
            partial(self.blocking.create_topic, name, partitions, exist_ok=exist_ok, **topic_settings)
        )
        return Topic(made, self._threads)

    async def topic(self, name: str) -> Topic:
        """The topic of that name; `UnknownTopic` if there is none."""
        return Topic(await self._threads.run(self.blocking.topic, name), self._threads)

    async def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        return await self._threads.run(self.blocking.topics)

    async def alter_topic(self, name: str, **topic_settings: Unpack[TopicOptions]) -> Topic:
        """As `logstore.Store.alter_topic`."""
        altered = await self._threads.run(partial(self.blocking.alter_topic, name, **topic_settings))
        return Topic(altered, self._threads)

    async def add_partitions(self, name: str, total: int) -> Topic:
        """As `logstore.Store.add_partitions`."""
        return Topic(await self._threads.run(self.blocking.add_partitions, name, total), self._threads)

    async def delete_topic(self, name: str) -> None:
        """Delete the topic with its records."""
        await self._threads.run(self.blocking.delete_topic, name)

    async def collect_garbage(self, topic: str | None = None, *, dry_run: bool = False) -> list[Garbage]:
        """As `logstore.Store.collect_garbage`."""
        return await self._threads.run(partial(self.blocking.collect_garbage, topic, dry_run=dry_run))

    async def flush(self, timeout: float | None = None) -> None:
        """Make everything durable that was appended so far."""
        await self._threads.run(self.blocking.flush, timeout)

    async def group(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        member: str | None = None,
        session_timeout: float = 30.0,
        max_poll_interval: float = 300.0,
        start: Literal["beginning", "end"] = "beginning",
        visibility: Visibility = "durable",
    ) -> Group:
        """Join a group, as `logstore.Store.group`: `async with await store.group(…) as group`."""
        joined = await self._threads.run(
            partial(
                self.blocking.group,
                name,
                topics,
                member=member,
                session_timeout=session_timeout,
                max_poll_interval=max_poll_interval,
                start=start,
                visibility=visibility,
            )
        )
        return Group(joined, self._threads)

    def atomic(self, *, timeout: float | None = None) -> AtomicBlock:
        """As `logstore.Store.atomic`: `async with store.atomic() as tx: await tx.append(topic, value)`."""
        return AtomicBlock(self.blocking.atomic(timeout=timeout), self._threads)

    def health(self) -> dict[str, Any]:
        """As `logstore.Store.health`. Asks nobody, so it needs no await."""
        return self.blocking.health()

    def metrics(self) -> dict[str, OperationStats]:
        """As `logstore.Store.metrics`."""
        return self.blocking.metrics()

    def writer_metrics(self) -> list[WriterMetrics]:
        """As `logstore.Store.writer_metrics`."""
        return self.blocking.writer_metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Make the tail durable or raise what is not. On a thread of its own: all others may be waiting for room."""
        closer = ThreadPoolExecutor(1, thread_name_prefix="logstore-aio-close")
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(closer, partial(self.blocking.close, timeout))
        finally:
            closer.shutdown(wait=False)
            self._threads.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Topic:
    """`logstore.Topic` for asyncio."""

    def __init__(self, topic: BlockingTopic, threads: _Threads) -> None:
        self.blocking = topic
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.blocking.name

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.blocking.partitions

    def partition(self, i: int) -> PartitionLog:
        """The log of partition `i`, counted from 0."""
        return PartitionLog(self.blocking.partition(i), self._threads)

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one record and return when it is acked, as `logstore.Topic.append`."""
        record = Record(value, key, headers, timestamp_ms)  # type: ignore[arg-type]  # checked like any record
        log = self.partition(self.blocking._internal.pick(key) if partition is None else partition)
        try:
            return await log.append(record, ack=ack, timeout=timeout)
        except InvalidRecord:
            check_one(value)
            raise

    async def append_many(
        self,
        records: Iterable[Record | bytes],
        *,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """One receipt for each record, in their order, as `logstore.Topic.append_many`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.blocking.partition(0)._internal.ack_timeout(timeout)
        many = await self._threads.run(
            lambda: self.blocking._internal.begin_append_many(
                records, partition=partition, ack=ack, timeout=deadline - loop.time()
            )
        )
        await _settled([asyncio.wrap_future(ack) for ack in many.acks], deadline - loop.time())
        return await self._threads.run(many.finish)

    async def tail(
        self,
        positions: Mapping[int, int | Literal["end"]] | Literal["end"] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> AsyncIterator[TopicRecord]:
        """The records of all partitions, for ever, as `logstore.Topic.tail`. `"end"`: what comes after the first step."""
        inner = self.blocking._internal
        many, starts = await self._threads.run(inner.many, positions, visibility)
        many.put(inner.cursor(i, starts.get(i)) for i in range(self.partitions))
        try:
            while True:
                try:
                    taken = await _taken(many, self._threads)
                except (Closed, UnknownTopic):
                    return
                for some in taken:
                    for record in some.records:
                        yield record
        finally:
            many.close()

    async def records(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> AsyncIterator[TopicRecord]:
        """The records that there are, partition after partition, as `logstore.Topic.records`."""
        for given in (start, stop):
            self.blocking._internal.check_partitions(given or {})
        for i in range(self.partitions):
            found = self.partition(i).records(
                (start or {}).get(i), (stop or {}).get(i), visibility=visibility
            )
            async for record in found:
                yield TopicRecord.at(self.name, i, record)


class AtomicBlock:
    """`logstore.atomic.AtomicBlock` for asyncio. Get it from `Store.atomic`."""

    def __init__(self, block: atomic.AtomicBlock, threads: _Threads) -> None:
        self.blocking = block
        self._threads = threads

    @property
    def receipts(self) -> list[Receipt]:
        """After the block, one for each record in the order of the appends."""
        return self.blocking.receipts

    async def append(
        self,
        topic: Topic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record to the block, as `logstore.atomic.AtomicBlock.append`."""
        add = partial(
            self.blocking.append,
            topic.blocking if isinstance(topic, Topic) else topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        await self._threads.run(add) if isinstance(topic, str) else add()

    async def __aenter__(self) -> AtomicBlock:
        self.blocking.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Begins on a thread, where it may wait for room, and waits for the ack without one."""
        if kind is not None:
            self.blocking._give_up()
            return
        begun = await self._threads.run(self.blocking._begin)
        if begun is None:
            return
        append, deadline = begun
        try:
            whole = await asyncio.wait_for(asyncio.wrap_future(append.future), left(append, deadline))
        except TimeoutError:
            raise late(append) from None
        self.blocking._finish(whole)


class PartitionLog:
    """`logstore.PartitionLog` for asyncio."""

    def __init__(self, log: partition_log.PartitionLog, threads: _Threads) -> None:
        self.blocking = log
        self._inner = log._internal
        self._threads = threads

    def __repr__(self) -> str:
        return f"aio.{self.blocking!r}"

    async def append(
        self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Receipt:
        """Append one record or several, all or nothing, at contiguous offsets; return when they are acked."""
        return await self._acked(
            lambda left: self._inner.begin_append(records, ack=ack, timeout=left)[0], timeout
        )

    async def _acked(self, begin: Callable[[float], Submitted], timeout: float | None) -> Receipt:
        """Begins on a thread, where it may wait for room, and waits for the ack without one. One deadline covers both."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._inner.ack_timeout(timeout)
        receipt, future = await self._threads.run(lambda: begin(deadline - loop.time()))
        if future is not None:
            await _await(self._inner, future, receipt, deadline - loop.time())
        return receipt

    async def wait_durable(self, receipt: Receipt, timeout: float | None = None) -> None:
        """`receipt.wait_durable(timeout)`, which would hold up the event loop."""
        if receipt.durability == "durable":
            return
        log = receipt._log
        if not isinstance(log, Partition):
            receipt.wait_durable(timeout)  # of another process, and says so
            return
        future = log.when_durable(receipt)
        if future is not None:
            await _await(log, future, receipt, timeout)
        receipt.durability = "durable"

    async def append_batches(
        self, raw: bytes | bytearray | memoryview, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Receipt:
        """Append Kafka v2 record batches as they are, all or nothing."""
        return await self._acked(
            lambda left: self._inner.begin_append_batches(raw, ack=ack, timeout=left)[0], timeout
        )

    async def submit(
        self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None
    ) -> asyncio.Future[Receipt]:
        """The records have their offsets when this returns; await the future for the ack. Cancelling it ends the wait and
        nothing else: the records are stored."""
        future = await self._threads.run(partial(self.blocking.submit, records, ack=ack, timeout=timeout))
        return asyncio.wrap_future(future)

    async def read(
        self,
        offset: int,
        max_bytes: int = READ_BYTES,
        *,
        visibility: Visibility = "buffered",
        wait: float = 0.0,
    ) -> ReadResult:
        """Whole batches from `offset` on, as `logstore.PartitionLog.read`; `wait` holds no thread."""
        check_visibility(visibility)
        check_offset(offset)
        cached = self._at_hand(offset, max_bytes, visibility)
        if cached:
            return cached
        if wait > 0:
            await self._moved_past(offset, visibility, wait)
        return await self._threads.run(partial(self._inner.read, offset, max_bytes, visibility=visibility))

    async def records(
        self, start: int | None = None, stop: int | None = None, *, visibility: Visibility = "buffered"
    ) -> AsyncIterator[Record]:
        """The records from `start` (the low watermark) up to, not including, `stop` (the high watermark at the first
        step)."""
        position, end = await self._threads.run(self._inner.bounds, start, stop, visibility)
        while position < end:
            result = await self.read(position, visibility=visibility)
            for record in chain.from_iterable(result.batches(end)):
                yield record
            if result.next_offset <= position:
                return
            position = result.next_offset

    def tail(
        self, start: int | Literal["end"] | None = None, *, visibility: Visibility = "buffered"
    ) -> AsyncIterator[Record]:
        """The records from `start` (the low watermark) on, for ever. Ends when the store is closed.

        `start="end"`: what comes after this call, if this process writes the partition; else after the first step, which
        asks the store where the end is.
        """
        check_visibility(visibility)
        check_start(start)
        if start == "end" and not self._inner.follows:
            start = self._inner.high_watermark(visibility)
        return self._tail(start, visibility)

    async def _tail(
        self, start: int | Literal["end"] | None, visibility: Visibility
    ) -> AsyncIterator[Record]:
        position = start if isinstance(start, int) else None
        while True:
            try:
                if position is None:
                    position = await self._threads.run(
                        lambda: (
                            self._inner.end_now(visibility) if start == "end" else self.blocking.low_watermark
                        )
                    )
                result = self._at_hand(position, READ_BYTES, visibility)
                if not result:
                    await self._moved_past(position, visibility, _FOLLOW_S)
                    if self._inner.closed:
                        return
                    result = await self._threads.run(
                        partial(self._inner.read, position, visibility=visibility)
                    )
            except (Closed, UnknownTopic):
                if self._inner.closed:
                    return
                raise
            for record in result.records():
                yield record
            position = result.next_offset

    def _at_hand(self, offset: int, max_bytes: int, visibility: Visibility) -> ReadResult | None:
        """What memory alone can answer. An offset past the high watermark is no such thing: another process may have
        moved it."""
        try:
            return self._inner.read_cached(offset, max_bytes, visibility=visibility)
        except OffsetOutOfRange:
            return None

    async def _moved_past(self, offset: int, visibility: Visibility, wait: float) -> None:
        """Wait until the high watermark passes `offset`, without a thread: the engine calls back into this loop. Not
        for an offset that lies beyond the high watermark: `read` has an error for that."""
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(moved.set)

        await self._threads.run(self._inner.add_listener, listener)
        try:
            if offset > self._inner.high_watermark(visibility):
                await self._threads.run(self.blocking.refresh)
                if offset > self._inner.high_watermark(visibility):
                    return
            deadline = loop.time() + wait
            while self._inner.readable_end(visibility) <= offset and not self._inner.closed:
                left = deadline - loop.time()
                if left <= 0:
                    return
                moved.clear()
                if self._inner.readable_end(visibility) > offset:
                    return
                await self._wait_a_while(moved, left)
        finally:
            self._inner.remove_listener(listener)

    async def _wait_a_while(self, moved: asyncio.Event, left: float) -> None:
        """Until the high watermark moves. Where another process writes, nobody calls back: ask now and then."""
        follows = self._inner.follows
        interval = self._inner.follow_interval
        try:
            await asyncio.wait_for(moved.wait(), min(left, interval) if follows else left)
        except TimeoutError:
            if follows:
                await self._threads.run(self.blocking.refresh)

    async def reopen(self, timeout: float | None = None) -> PartitionLog:
        """As `logstore.PartitionLog.reopen`."""
        return PartitionLog(await self._threads.run(self.blocking.reopen, timeout), self._threads)

    async def flush(self, timeout: float | None = None) -> int:
        """Make everything durable that was appended so far, and return the durable high watermark."""
        return await self._threads.run(self.blocking.flush, timeout)

    async def offset_for_timestamp(self, ms: int) -> int | None:
        """The offset of the first record with this timestamp or a later one; None if there is none."""
        return await self._threads.run(self.blocking.offset_for_timestamp, ms)

    async def delete_before(self, offset: int) -> int:
        """As `logstore.PartitionLog.delete_before`."""
        return await self._threads.run(self.blocking.delete_before, offset)

    async def lost_ranges(self) -> list[LostRange]:
        """Offsets that were acked below `durable` and went down with a crash."""
        return await self._threads.run(self.blocking.lost_ranges)

    async def unconfirmed(self) -> LostRange | None:
        """As `logstore.PartitionLog.unconfirmed`."""
        return await self._threads.run(self.blocking.unconfirmed)

    async def refresh(self) -> None:
        """As `logstore.PartitionLog.refresh`."""
        await self._threads.run(self.blocking.refresh)

    async def open_writer(self, *, timeout: float | None = None, ack: Ack | None = None) -> None:
        """As `logstore.PartitionLog.open_writer`."""
        await self._threads.run(partial(self.blocking.open_writer, timeout=timeout, ack=ack))

    def marks(self) -> Marks:
        """As `logstore.PartitionLog.marks`: from memory, so it needs no await. As for each watermark, the first look at a
        partition that nothing has used before asks the store, and holds up the event loop: `refresh()` first, then."""
        return self.blocking.marks()

    @property
    def low_watermark(self) -> int:
        """The first offset there is. The first look at the watermarks of a partition asks the store, if nothing has used the
        partition before, and holds up the event loop."""
        return self.blocking.low_watermark

    @property
    def durable_high_watermark(self) -> int:
        """One past the last offset in the object store, as last seen."""
        return self.blocking.durable_high_watermark

    @property
    def buffered_high_watermark(self) -> int:
        """One past the last acked offset, as last seen."""
        return self.blocking.buffered_high_watermark


async def _taken(many: ManyPartitions, threads: _Threads) -> list[Taken]:
    """What `many` has next. Taking may ask the store and runs on a thread; waiting holds none."""
    loop, moved = asyncio.get_running_loop(), asyncio.Event()
    many.on_wake = lambda: call_in(loop, moved.set)
    try:
        while True:
            taken = await threads.run(many.take, 1)
            if taken:
                return taken
            with suppress(TimeoutError):
                await asyncio.wait_for(moved.wait(), many.delay())
            moved.clear()
    finally:
        many.on_wake = lambda: None


async def _await(log: Partition, future: Future[Receipt], receipt: Receipt, timeout: float | None) -> None:
    try:
        await asyncio.wait_for(asyncio.wrap_future(future), timeout)
    except TimeoutError:
        raise log.late(receipt) from None
    finally:
        if not future.done() or future.cancelled():
            log.give_up(future)


async def _settled(acks: list[asyncio.Future[Receipt]], timeout: float) -> None:
    """Wait until each has come, failed or is late; which of these, whoever has begun them tells."""
    if not acks:
        return
    try:
        done, _ = await asyncio.wait(acks, timeout=timeout)
    except BaseException:
        for ack in acks:
            ack.cancel()
        raise
    for ack in done:
        if not ack.cancelled():
            ack.exception()  # seen, as far as asyncio is concerned


def _let_go(opening: Future[blocking.Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class _Opening:
    """A store that is about to be open: await it, or enter it with `async with`."""

    def __init__(self, open_store: Callable[[], blocking.Store]) -> None:
        self._open_store = open_store
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def _open(self) -> Store:
        threads = _Threads()
        opening = threads.submit(self._open_store)
        try:
            return Store(await asyncio.wrap_future(opening), threads)
        except BaseException:
            opening.add_done_callback(_let_go)  # cancelled: it may be open in a moment, and nobody has it
            threads.close()
            raise

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None, "entered before"
        await self._store.close()


def open(
    where: str | os.PathLike[str] | ObjectStore,
    *,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    disk: Disk | None = None,
    **settings: Unpack[StoreSettings],
) -> _Opening:
    """`logstore.open` for asyncio: `async with logstore.aio.open(…) as store`, or `store = await logstore.aio.open(…)`."""
    return _Opening(partial(blocking.open, where, config=config, clock=clock, rng=rng, disk=disk, **settings))


def __dir__() -> list[str]:
    return sorted(__all__)
