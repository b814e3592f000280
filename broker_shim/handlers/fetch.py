"""Fetch: the real read path. Kafka's high watermark is the log's buffered one, its last stable offset the durable one, or
the first offset of the first open transaction if that is below.

A fetch is served from memory at once if it can be. What lies in cold segments is read in worker threads. If
less than `min_bytes` is there, the fetch waits, woken by the log itself, for at most one `max_wait` for all
its partitions together. A `read_committed` consumer sees the log up to the last stable offset: nothing that a crash
could take back, and nothing that is not decided. It is told which transactions were aborted, and leaves those out.

Sizes: each partition up to its own limit, all together up to the response's; whole batches; at least one
batch in the first partition that has any, so that a consumer never starves behind a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from broker_shim.metrics import Counters
from broker_shim.net.connection import Connection, Parts
from broker_shim.net.deadlines import Deadlines
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire import codes, fetch_codec
from broker_shim.wire.codes import Code
from broker_shim.wire.fetch_codec import READ_COMMITTED, FetchRequest, PartitionData, PartitionFetch
from broker_shim.wire.primitives import RequestHeader
from logstore.config import Visibility
from logstore.engine.memory.results import ReadResult
from logstore.errors import LogStoreError, OffsetOutOfRange
from logstore.format.batches.batch import split

COLD_READS_AT_ONCE = 8
NO_END = 1 << 63
REPEATS_UP_TO_BYTES = 4096
"""A request up to this size is remembered: a consumer with nothing to read asks the same thing again and again."""
MayRead = Callable[[Connection, str], bool]


class FetchHandler:
    def __init__(
        self,
        partitions: PartitionRegistry,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
        may_read: MayRead,
        *,
        max_bytes: int,
    ) -> None:
        self.partitions = partitions
        self.counters = counters
        self.loop = loop
        self.may_read = may_read
        self._max_bytes = max_bytes
        self.deadlines = Deadlines(loop)
        self.waiting: set[_Fetch] = set()

    def handle(
        self, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts | asyncio.Future[Parts]:
        body = frame[header.body :]
        version, known, repeated = connection.last_fetch
        if version == header.version and known == body and repeated.may_repeat(connection):
            return cast(_Fetch, repeated).run()
        request = fetch_codec.read(frame, header.body, header.version)
        if request.session_id != 0:
            return fetch_codec.write(header.version, [], request.isolation, Code.FETCH_SESSION_ID_NOT_FOUND)
        unknown = self.partitions.missing(topic for topic, _ in request.topics)
        if unknown:
            return self.loop.create_task(self._look_up_first(connection, header, request, unknown))
        fetch = self._new(connection, header, request)
        if len(body) <= REPEATS_UP_TO_BYTES:
            connection.last_fetch = (header.version, bytes(body), fetch)
        return fetch.run()

    async def _look_up_first(
        self, connection: Connection, header: RequestHeader, request: FetchRequest, unknown: list[str]
    ) -> Parts:
        await self.partitions.look_up(unknown)
        answer = self._new(connection, header, request).run()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _new(self, connection: Connection, header: RequestHeader, request: FetchRequest) -> _Fetch:
        budget = min(max(request.max_bytes, 0), self._max_bytes)
        visibility: Visibility = "durable" if request.isolation == READ_COMMITTED else "buffered"
        fetch = _Fetch(self, request, header.version, budget, visibility)
        # As in Kafka, of a partition that is named twice the last one counts: each costs a read whenever a record comes.
        asked: dict[str, dict[int, PartitionFetch]] = {}
        for topic, partitions in request.topics:
            asked.setdefault(topic, {}).update((each.partition, each) for each in partitions)
        for topic, distinct in asked.items():
            allowed = self.may_read(connection, topic)
            fetch.add(topic, distinct.values(), Code.NONE if allowed else Code.TOPIC_AUTHORIZATION_FAILED)
        return fetch

    def end_all(self) -> None:
        """The broker stops: whoever waits gets what there is."""
        for fetch in tuple(self.waiting):
            fetch.finish()


@dataclass(slots=True, eq=False)
class _Entry:
    """One partition of a fetch. `is_cold`: the answer needs I/O, or the partition is not open yet. `is_old`: there may be
    more than the worker that is reading it has seen.
    """

    asked: PartitionFetch
    data: PartitionData
    hosted: HostedPartition | None
    is_cold: bool = False
    is_old: bool = False


@dataclass(slots=True, eq=False)
class _Fetch:
    """One request on its way to its answer. It can go there again, if the client asks the same once more."""

    _handler: FetchHandler
    _request: FetchRequest
    _version: int
    _budget: int
    _visibility: Visibility
    _answers: list[tuple[str, list[PartitionData]]] = field(default_factory=list)
    _entries: list[_Entry] = field(default_factory=list)
    _by_partition: dict[HostedPartition, list[_Entry]] = field(default_factory=dict)
    _size: int = 0
    _failed: bool = False
    _is_late: bool = False
    _future: asyncio.Future[Parts] | None = None
    _due: float = 0.0
    _reading: asyncio.Task[None] | None = None

    def add(self, topic: str, partitions: Iterable[PartitionFetch], refusal: Code) -> None:
        answers: list[PartitionData] = []
        self._answers.append((topic, answers))
        for asked in partitions:
            data = PartitionData(asked.partition, refusal)
            answers.append(data)
            hosted: HostedPartition | None = None
            if refusal is Code.NONE:
                found = self._handler.partitions.get(topic, asked.partition)
                if isinstance(found, HostedPartition):
                    hosted = found
                else:
                    data.code = found
            self._failed |= data.code is not Code.NONE
            entry = _Entry(asked, data, hosted)
            self._entries.append(entry)
            if hosted is not None:
                self._by_partition.setdefault(hosted, []).append(entry)

    def may_repeat(self, connection: Connection) -> bool:
        """Is the same request still about the same partitions, all of them led here and open to this client?"""
        handler = self._handler
        return (
            self._future is None
            and self._reading is None
            and not self._failed
            and all(handler.may_read(connection, topic) for topic, _ in self._answers)
            and all(handler.partitions.get(each.topic, each.index) is each for each in self._by_partition)
        )

    def run(self) -> Parts | asyncio.Future[Parts]:
        self._size = 0
        self._is_late = False
        for entry in self._entries:
            if entry.hosted is not None:
                self._read_hot(entry)
        if self._is_enough() and not self._has_cold():
            return self._answer()
        self._future = self._handler.loop.create_future()
        self._future.add_done_callback(self._ended)
        self._handler.waiting.add(self)
        self._due = self._handler.deadlines.add(self, max(self._request.max_wait_ms, 0) / 1000)
        for hosted in self._by_partition:
            hosted.watch(self)
        self._read_cold_soon()
        return self._future

    def wake(self, partition: HostedPartition) -> None:
        """The log says that there may be more. Read that partition again; answer if it is enough now."""
        for entry in self._by_partition[partition]:
            if entry.is_cold:
                entry.is_old = True  # a worker is reading it right now
            else:
                self._read_again(entry)
        if self._is_enough() and self._reading is None and not self._has_cold():
            self.finish()
        else:
            self._read_cold_soon()

    def finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(self._answer())

    def _ended(self, _: asyncio.Future[Parts]) -> None:
        """Answered, or cancelled because the client has gone. What refers back to us is released: no cycles."""
        self._handler.deadlines.remove(self, self._due)
        self._future = None
        self._handler.waiting.discard(self)
        for hosted in self._by_partition:
            hosted.unwatch(self)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _is_enough(self) -> bool:
        request = self._request
        return (
            self._failed or self._size >= request.min_bytes or request.max_wait_ms <= 0 or not self._entries
        )

    def _has_cold(self) -> bool:
        """Is there a cold partition that would still fit? With a full answer the others wait for the next
        fetch.
        """
        return self._size < self._budget and any(entry.is_cold for entry in self._entries)

    def _limit(self, entry: _Entry) -> int:
        return min(max(entry.asked.max_bytes, 0), self._budget - self._size)

    def _read_hot(self, entry: _Entry) -> None:
        """From memory alone; marks the entry as cold if that cannot be."""
        hosted, data = entry.hosted, entry.data
        assert hosted is not None
        data.parts, data.size, data.code, data.aborted = (), 0, Code.NONE, ()
        entry.is_cold = not hosted.is_open
        if entry.is_cold:
            return
        try:
            if not self._check_epoch(entry, hosted) or not self._check_start(entry, hosted):
                return
            stable = self._stable_end(hosted)
            if stable is None:
                entry.is_cold = True  # which transactions are open has to be looked up
                self._note_watermarks(entry, hosted)
                return
            if entry.asked.offset == hosted.log._internal.high_watermark(self._visibility) or (
                stable <= entry.asked.offset <= hosted.log.buffered_high_watermark
            ):
                # At the end, where idle consumers are: nothing to look up.
                self._note_watermarks(entry, hosted)
                return
            found = hosted.log._internal.read_cached(
                entry.asked.offset, self._limit(entry), visibility=self._visibility
            )
            entry.is_cold = found is None
            if found is not None:
                self._take(entry, hosted, found)
            else:
                self._note_watermarks(entry, hosted)  # the answer may leave before it is read
        except OffsetOutOfRange:
            self._out_of_range(entry, hosted)
        except LogStoreError as error:
            self._fail(entry, codes.of_read(error))

    def _read_again(self, entry: _Entry) -> None:
        self._size -= entry.data.size
        self._read_hot(entry)

    def _read_cold_soon(self) -> None:
        if self._reading is None and self._has_cold():
            self._reading = self._handler.loop.create_task(self._read_cold())

    async def _read_cold(self) -> None:
        """A few at a time, in the order of the request, until the answer is full or its time is up.

        What was not reached then is left for the next fetch, which finds what we have opened in memory.
        """
        try:
            while self._has_cold():
                cold = [entry for entry in self._entries if entry.is_cold]
                for place in range(0, len(cold), COLD_READS_AT_ONCE):
                    few = cold[place : place + COLD_READS_AT_ONCE]
                    await asyncio.gather(*(self._read_one_cold(entry) for entry in few))
                    if self._is_late or self._size >= self._budget:
                        return
        finally:
            self._reading = None
            if self._is_late or self._is_enough():
                self.finish()

    async def _read_one_cold(self, entry: _Entry) -> None:
        hosted = entry.hosted
        assert hosted is not None
        entry.is_old = False
        try:
            await hosted.open()
            if not hosted.knows_epoch(entry.asked.leader_epoch) or self._is_ahead(entry, hosted):
                await self._handler.partitions.run(hosted.log.refresh)
            if self._check_epoch(entry, hosted) and self._check_start(entry, hosted):
                found = await self._handler.partitions.run(
                    self._read, hosted, entry.asked.offset, self._limit(entry)
                )
                while self._stable_end(hosted) is None:
                    await hosted.learn_transactions()
                self._take(entry, hosted, found)
        except OffsetOutOfRange:
            self._out_of_range(entry, hosted)
        except (LogStoreError, OSError) as error:
            self._fail(entry, codes.of_read(error))
        finally:
            entry.is_cold = False
        if entry.is_old and not self._is_enough():
            self._read_again(entry)

    def _read(self, hosted: HostedPartition, offset: int, max_bytes: int) -> ReadResult:
        return hosted.log.read(offset, max_bytes, visibility=self._visibility)

    def _is_ahead(self, entry: _Entry, hosted: HostedPartition) -> bool:
        return not hosted.is_owned and entry.asked.offset > hosted.log.buffered_high_watermark

    def _check_epoch(self, entry: _Entry, hosted: HostedPartition) -> bool:
        """A consumer that knows of a later epoch than we have knows a newer leader: it must not be served from here.

        One with an older epoch is served: nothing in our logs is ever truncated, so it cannot have gone astray. And
        a broker knows the epochs of its own partitions only; a client that asked another one may know none.
        """
        if hosted.knows_epoch(entry.asked.leader_epoch):
            return True
        if not entry.is_cold and not hosted.is_owned:
            entry.is_cold = True  # the writer is elsewhere: look first what it has done
            return False
        if not hosted.is_recreated:
            self._fail(entry, Code.UNKNOWN_LEADER_EPOCH)
        return hosted.is_recreated

    def _check_start(self, entry: _Entry, hosted: HostedPartition) -> bool:
        low = entry.data.log_start = hosted.low_watermark
        if entry.asked.offset >= low:
            return True
        log = hosted.log
        raise OffsetOutOfRange(low, log.buffered_high_watermark, entry.asked.offset, str(hosted))

    def _stable_end(self, hosted: HostedPartition) -> int | None:
        """Where a `read_committed` consumer's log ends; None if that has to be looked up. For others no such end."""
        return hosted.last_stable() if self._visibility == "durable" else NO_END

    def _take(self, entry: _Entry, hosted: HostedPartition, found: ReadResult) -> None:
        data = entry.data
        data.high_watermark = found.buffered_high_watermark
        stable = hosted.last_stable()
        data.last_stable = min(found.durable_high_watermark, NO_END if stable is None else stable)
        parts, size, end = found.parts, len(found), found.next_offset
        if self._visibility == "durable" and end > data.last_stable:
            parts, end = _below(data.last_stable, parts), data.last_stable
            size = sum(map(len, parts))
        if self._size and size > self._limit(entry):
            return  # one batch that is too large for what is left: it comes first next time
        if size and self._visibility == "durable" and hosted.transactions is not None:
            aborted = hosted.transactions.aborted(entry.asked.offset, end)
            data.aborted = [(each.producer_id, each.first_offset) for each in aborted]
        data.parts, data.size = parts, size
        self._size += size

    def _out_of_range(self, entry: _Entry, hosted: HostedPartition) -> None:
        self._note_watermarks(entry, hosted)
        entry.data.log_start = hosted.low_watermark
        data, offset = entry.data, entry.asked.offset
        if data.log_start <= offset <= data.high_watermark:
            return  # acked and not yet durable: for a read_committed consumer that is the end, not an error
        if self._is_ahead(entry, hosted):
            if not entry.is_cold:
                entry.is_cold = True  # the writer is elsewhere: look first what it has done
                return
            if self._visibility == "buffered" and offset <= hosted.log._internal.reserved_end:
                return  # read, and lost with its writer: the next one begins past it, and this consumer waits there
        self._fail(entry, Code.OFFSET_OUT_OF_RANGE)

    @staticmethod
    def _note_watermarks(entry: _Entry, hosted: HostedPartition) -> None:
        """The durable high watermark is read first: both only grow, so the answer never has it above the other."""
        stable = hosted.last_stable()
        entry.data.last_stable = hosted.log.durable_high_watermark if stable is None else stable
        entry.data.high_watermark = hosted.log.buffered_high_watermark

    def _fail(self, entry: _Entry, code: Code) -> None:
        entry.data.code = code
        self._failed = True

    def time_up(self) -> None:
        """Cold reads that run are waited for: an answer without them would only be asked for again."""
        if self._reading is None:
            self.finish()
        else:
            self._is_late = True

    def _answer(self) -> Parts:
        counters = self._handler.counters
        if self._failed:
            for entry in self._entries:
                if entry.data.code is not Code.NONE:
                    counters.errors[entry.data.code.name] += 1
        answer = fetch_codec.write(self._version, self._answers, self._request.isolation)
        if self._size:
            counters.bytes_out += self._size
            for entry in self._entries:
                entry.data.parts = ()  # sent once: who may be asked again must not keep them
        return answer


def _below(stop: int, parts: Sequence[bytes | memoryview]) -> tuple[bytes | memoryview, ...]:
    """The batches that begin before the offset `stop`. Each transaction begins with a batch: none lies across."""
    kept: list[bytes | memoryview] = []
    for part in parts:
        for batch in split(part):
            if batch.base_offset >= stop:
                if batch.position:
                    kept.append(memoryview(part)[: batch.position])
                return tuple(kept)
        kept.append(part)
    return tuple(kept)
