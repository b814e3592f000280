"""One partition for asyncio: appends, reads and tails that hold no thread while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Literal

from logstore.aio.threads import Threads
from logstore.config import Ack, Visibility, check_visibility
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.memory.partition_state import Marks
from logstore.engine.memory.results import ReadResult, Receipt
from logstore.engine.partition import partition_log
from logstore.engine.partition.internal import Appendable, Partition, Submitted
from logstore.engine.partition.readable_partition import READ_BYTES, check_offset, check_start
from logstore.errors import Closed, OffsetOutOfRange, UnknownTopic
from logstore.format.batches.record import Record

_FOLLOW_S = 3600.0


class PartitionLog:
    """`logstore.PartitionLog` for asyncio."""

    def __init__(self, log: partition_log.PartitionLog, threads: Threads) -> None:
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
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            left = deadline - asyncio.get_running_loop().time()
            if left > 0:
                await self._moved_past(offset, visibility, left)
            found = await self._threads.run(
                partial(self._inner.read, offset, max_bytes, visibility=visibility)
            )
            # What came may be of a transaction that has not ended: then there is nothing yet.
            if visibility != "committed" or found or left <= 0 or found.next_offset > offset:
                return found

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
        if start == "end" and not self._inner.follows and visibility != "committed":
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


async def _await(log: Partition, future: Future[Receipt], receipt: Receipt, timeout: float | None) -> None:
    try:
        await asyncio.wait_for(asyncio.wrap_future(future), timeout)
    except TimeoutError:
        raise log.late(receipt) from None
    finally:
        if not future.done() or future.cancelled():
            log.give_up(future)
