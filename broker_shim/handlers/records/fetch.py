"""Fetch: the real read path. Kafka's high watermark is the log's buffered one, its last stable offset the durable one, or
the first offset of the first open transaction if that is below.

A fetch is served from memory at once if it can be. What lies in cold segments is read in worker threads. If
less than `min_bytes` is there, the fetch waits, woken by the log itself, for at most one `max_wait` for all
its partitions together. A `read_committed` consumer sees the log up to the last stable offset: nothing that a crash
could take back, and nothing that is not decided. It is told which transactions were aborted, and leaves those out.

A fetch that is kept (a session, or a request that is sent again and again) watches its partitions from its first wait on,
and looks only at those that are `_dirty`: named again by the client, woken by their log, or not known to be at their end.
So a consumer that has nothing to read costs the same with one partition and with a thousand.

Sizes: each partition up to its own limit, all together up to the response's; whole batches; at least one
batch in the first partition that has any, so that a consumer never starves behind a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from broker_shim.handlers.records.fetch_entry import Entry
from broker_shim.handlers.records.fetch_sessions import NO_SESSION, KeptFetches
from broker_shim.metrics import Counters
from broker_shim.net.connection import Connection, Parts
from broker_shim.net.deadlines import Deadlines
from broker_shim.partitions.hosted_partition import HostedPartition, Stable
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire import codes, fetch_codec
from broker_shim.wire.codes import Code
from broker_shim.wire.fetch_codec import (
    IDS_FROM,
    READ_COMMITTED,
    FetchRequest,
    PartitionData,
    PartitionFetch,
    TopicKey,
)
from logstore.config import Visibility
from logstore.engine.memory.results import ReadResult
from logstore.errors import LogStoreError, OffsetOutOfRange
from logstore.format.batches.transactions import batches_below

COLD_READS_AT_ONCE = 8
NO_END = 1 << 63
MayRead = Callable[[Connection, str], bool]
Place = tuple[TopicKey, int]


class Fetching(Protocol):
    """What all fetches share: the handler."""

    partitions: PartitionRegistry
    counters: Counters
    loop: asyncio.AbstractEventLoop
    may_read: MayRead
    max_bytes: int
    deadlines: Deadlines
    waiting: set[Fetch]
    kept: KeptFetches[Fetch]

    def stamp(self, connection: Connection) -> object: ...


@dataclass(slots=True, eq=False)
class Fetch:
    """One request on its way to its answer. It can go there again, if the client asks the same once more, or what is new."""

    _handler: Fetching
    _connection: Connection
    _request: FetchRequest
    _version: int
    session_id: int = NO_SESSION
    is_starting: bool = False
    _entries: dict[Place, Entry] = field(default_factory=dict)
    _by_partition: dict[HostedPartition, Entry] = field(default_factory=dict)
    _dirty: dict[Entry, None] = field(default_factory=dict)
    """Those that must be looked at: all others are at their end, and their logs say when that moves."""
    _touched: dict[Entry, None] = field(default_factory=dict)
    """Those that were looked at since the last answer."""
    _unowned: set[HostedPartition] = field(default_factory=set)
    """At their end as far as is known: somebody else writes them."""
    _stamp: object = None
    _is_watching: bool = False
    _visibility: Visibility = "buffered"
    _budget: int = 0
    _size: int = 0
    _failed: bool = False
    _is_late: bool = False
    _future: asyncio.Future[Parts] | None = None
    _due: float = 0.0
    _reading: asyncio.Task[None] | None = None
    _unchanged: Parts | None = None
    """The last answer, if it brought no records: as long as nothing changes it is the next one too."""

    # ── what it is about ─────────────────────────────────────────────────────────────────────────────────

    @property
    def size(self) -> int:
        return len(self._entries) + 1

    @property
    def has_ids(self) -> bool:
        """Whether its topics are known by their ids."""
        return self._version >= IDS_FROM

    @property
    def is_busy(self) -> bool:
        return self._future is not None or self._reading is not None or self.is_starting

    @property
    def is_waiting(self) -> bool:
        return self._future is not None

    def name(self, topics: Iterable[tuple[TopicKey, list[PartitionFetch]]]) -> None:
        """The client asks for these, from there. Of a partition that is named twice the last one counts, as in Kafka."""
        for topic, partitions in topics:
            for asked in partitions:
                place = (topic, asked.partition)
                entry = self._entries.get(place)
                if entry is None:
                    entry = self._entries[place] = Entry(topic, asked, PartitionData(asked.partition))
                entry.asked = asked
                self._dirty[entry] = None
        self._unchanged = None

    def update(self, request: FetchRequest, version: int) -> None:
        """The next request of a session."""
        if request.rack != self._request.rack:
            self._stamp = None
        if request.isolation != self._request.isolation:
            self._dirty.update(dict.fromkeys(self._entries.values()))
        self._request, self._version = request, version
        self.name(request.topics)
        for topic, indexes in request.forgotten:
            for index in indexes:
                entry = self._entries.pop((topic, index), None)
                if entry is not None:
                    self._place(entry, None)
                    self._dirty.pop(entry, None)

    def unresolved(self) -> list[TopicKey]:
        """The topics whose partitions are not known to be here. Looks at all of them only if something may have moved."""
        stamp = self._handler.stamp(self._connection)
        if stamp != self._stamp:
            self._stamp = stamp
            if len(self._dirty) < len(self._entries):
                self._dirty.update(dict.fromkeys(self._entries.values()))
            self._resolve(self._entries.values())
        return [entry.topic for entry in self._dirty if entry.hosted is None]

    def _resolve(self, entries: Iterable[Entry]) -> None:
        """Find the partitions, or say why they are not here for this client."""
        handler, names, rack = self._handler, dict[TopicKey, str | Code](), self._request.rack
        for entry in entries:
            topic, data = entry.topic, entry.data
            name = names.get(topic)
            if name is None:
                name = names[topic] = self._readable(topic)
            found = name if isinstance(name, Code) else handler.partitions.get(name, data.partition, rack)
            entry.prefer(None)
            if isinstance(found, HostedPartition):
                self._place(entry, found)
                entry.follows = bool(rack) and not handler.partitions.leads(found)
            else:
                self._place(entry, None)
                entry.refuse(found)

    def _readable(self, topic: TopicKey) -> str | Code:
        """The topic's name, if there is one and this client may read it."""
        name = topic if isinstance(topic, str) else self._handler.partitions.name_of(UUID(bytes=topic))
        if name is None:
            return Code.UNKNOWN_TOPIC_ID
        return name if self._handler.may_read(self._connection, name) else Code.TOPIC_AUTHORIZATION_FAILED

    def _place(self, entry: Entry, hosted: HostedPartition | None) -> None:
        if entry.hosted is hosted:
            return
        if entry.hosted is not None:
            self._by_partition.pop(entry.hosted, None)
            self._unowned.discard(entry.hosted)
            entry.hosted.unwatch(self)
        entry.hosted, entry.is_cold = hosted, False
        if hosted is not None:
            self._by_partition[hosted] = entry
            if self._is_watching:
                hosted.watch(self)

    # ── its way ──────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Parts | asyncio.Future[Parts]:
        request = self._request
        self._visibility = "durable" if request.isolation == READ_COMMITTED else "buffered"
        self._budget = min(max(request.max_bytes, 0), self._handler.max_bytes)
        self._size = 0
        self._is_late = self._failed = False
        self._touched.clear()
        for entry in tuple(self._dirty):
            if entry.hosted is None:
                self._resolve((entry,))
            if entry.hosted is not None:
                self._read_hot(entry)
            else:
                self._touched[entry] = None
                self._failed = True
        if self._is_enough() and not self._has_cold():
            return self._answer()
        self._future = self._handler.loop.create_future()
        self._future.add_done_callback(self._ended)
        self._handler.waiting.add(self)
        self._due = self._handler.deadlines.add(self, max(self._request.max_wait_ms, 0) / 1000)
        self._watch()
        if self._is_enough() and not self._has_cold():
            self.finish()
        else:
            self._read_cold_soon()
        return self._future

    def _watch(self) -> None:
        """From now on the logs say what moves. What moved just before is looked for once more."""
        if not self._is_watching:
            self._is_watching = True
            for hosted in self._by_partition:
                hosted.watch(self)
            for entry in tuple(self._dirty):
                if not entry.is_cold and not entry.data.size:
                    self._read_again(entry)
        for hosted in self._unowned:
            hosted.follow()
        for entry in self._dirty:
            if entry.hosted is not None:
                entry.hosted.follow()

    def wake(self, partition: HostedPartition) -> None:
        """The log says that there may be more. Read that partition again; answer if it is enough now."""
        entry = self._by_partition[partition]
        self._dirty[entry] = None
        if self._future is None:
            return
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
        if self not in self._handler.kept:
            self._unwatch()

    def let_go(self) -> None:
        if self._future is None:
            self._unwatch()

    def _unwatch(self) -> None:
        if not self._is_watching:
            return
        self._is_watching = False
        self._dirty.update(dict.fromkeys(self._entries.values()))
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
        return self._size < self._budget and any(entry.is_cold for entry in self._dirty)

    def _limit(self, entry: Entry) -> int:
        return min(max(entry.asked.max_bytes, 0), self._budget - self._size)

    def _read_hot(self, entry: Entry) -> None:
        """From memory alone; marks the entry as cold if that cannot be."""
        hosted, data = entry.hosted, entry.data
        assert hosted is not None
        data.parts, data.size, data.code, data.aborted = (), 0, Code.NONE, ()
        self._dirty[entry] = self._touched[entry] = None
        entry.is_cold = not hosted.is_open
        if entry.is_cold:
            return
        try:
            if not self._check_epoch(entry, hosted) or not entry.check_start(hosted):
                return
            if self._is_sent_elsewhere(entry):
                return
            stable = hosted.stable() if self._is_committed else None
            if stable is None and self._is_committed:
                entry.is_cold = True  # which transactions are open has to be looked up
                entry.note_watermarks(hosted)
                return
            if entry.asked.offset == hosted.log._internal.high_watermark(self._visibility) or (
                stable is not None and stable.end <= entry.asked.offset <= hosted.log.buffered_high_watermark
            ):
                # At the end, where idle consumers are: nothing to look up.
                entry.note_watermarks(hosted)
                self._settle(entry, hosted)
                return
            found = hosted.log._internal.read_cached(
                entry.asked.offset, self._limit(entry), visibility=self._visibility
            )
            entry.is_cold = found is None
            if found is not None:
                self._take(entry, hosted, found, stable)
            else:
                entry.note_watermarks(hosted)  # the answer may leave before it is read
        except OffsetOutOfRange:
            self._out_of_range(entry, hosted)
        except LogStoreError as error:
            self._fail(entry, codes.of_read(error))

    def _is_sent_elsewhere(self, entry: Entry) -> bool:
        rack = self._request.rack
        if not rack or not entry.is_better_elsewhere(self._handler.partitions, rack):
            return False
        self._failed = True  # no error, and not to be waited with either
        return True

    def _settle(self, entry: Entry, hosted: HostedPartition) -> None:
        """It is at its end. Nobody needs to look there again before the log says that it has moved."""
        if not self._is_watching:
            return
        del self._dirty[entry]
        if hosted.is_owned:
            self._unowned.discard(hosted)
        else:
            self._unowned.add(hosted)

    def _read_again(self, entry: Entry) -> None:
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
                cold = [entry for entry in self._dirty if entry.is_cold]
                for place in range(0, len(cold), COLD_READS_AT_ONCE):
                    few = cold[place : place + COLD_READS_AT_ONCE]
                    await asyncio.gather(*(self._read_one_cold(entry) for entry in few))
                    if self._is_late or self._size >= self._budget:
                        return
        finally:
            self._reading = None
            if self._is_late or self._is_enough():
                self.finish()

    async def _read_one_cold(self, entry: Entry) -> None:
        hosted = entry.hosted
        assert hosted is not None
        entry.is_old = False
        try:
            await hosted.open()
            if not hosted.knows_epoch(entry.asked.leader_epoch) or entry.is_ahead(hosted):
                await self._handler.partitions.run(hosted.log.refresh)
            fits = self._check_epoch(entry, hosted) and entry.check_start(hosted)
            if fits and not self._is_sent_elsewhere(entry):
                asked = (hosted, entry.asked.offset, self._limit(entry))
                found = await self._handler.partitions.run(self._read, *asked)
                stable = await hosted.learn_stable() if self._is_committed else None
                entry.check_start(hosted)  # of transactions whose records are deleted nothing is known
                self._take(entry, hosted, found, stable)
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

    def _check_epoch(self, entry: Entry, hosted: HostedPartition) -> bool:
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

    @property
    def _is_committed(self) -> bool:
        """Whether its log ends at the last stable offset, which may have to be looked up."""
        return self._visibility == "durable"

    def _take(self, entry: Entry, hosted: HostedPartition, found: ReadResult, stable: Stable | None) -> None:
        """`stable`: for a `read_committed` consumer, what was looked up for this answer, before or after the read."""
        data = entry.data
        data.high_watermark = found.buffered_high_watermark
        known = hosted.stable() if stable is None else stable
        data.last_stable = min(found.durable_high_watermark, NO_END if known is None else known.end)
        parts, size, end = found.parts, len(found), found.next_offset
        if stable is not None and end > data.last_stable:
            parts, end = batches_below(data.last_stable, parts), data.last_stable
            size = sum(map(len, parts))
        if self._size and size > self._limit(entry):
            return  # one batch that is too large for what is left: it comes first next time
        if size and stable is not None:
            aborted = stable.transactions.aborted(entry.asked.offset, end)
            data.aborted = [(each.producer_id, each.first_offset) for each in aborted]
        data.parts, data.size = parts, size
        self._size += size

    def _out_of_range(self, entry: Entry, hosted: HostedPartition) -> None:
        entry.note_watermarks(hosted)
        entry.data.log_start = hosted.low_watermark
        data, offset = entry.data, entry.asked.offset
        if data.log_start <= offset <= data.high_watermark:
            return  # acked and not yet durable: for a read_committed consumer that is the end, not an error
        if entry.is_ahead(hosted):
            if not entry.is_cold:
                entry.is_cold = True  # the writer is elsewhere: look first what it has done
                return
            if self._visibility == "buffered" and offset <= hosted.log._internal.reserved_end:
                return  # read, and lost with its writer: the next one begins past it, and this consumer waits there
            if entry.follows:
                self._fail(entry, Code.OFFSET_NOT_AVAILABLE)  # the leader has it, not yet in the store
                return
        self._fail(entry, Code.OFFSET_OUT_OF_RANGE)

    def _fail(self, entry: Entry, code: Code) -> None:
        entry.data.code = code
        self._failed = True

    def time_up(self) -> None:
        """Cold reads that run are waited for: an answer without them would only be asked for again."""
        if self._reading is None:
            self.finish()
        else:
            self._is_late = True

    def _answer(self) -> Parts:
        if self._unchanged is None and not self.session_id:
            news = list(self._touched)
        else:
            news = [entry for entry in self._touched if entry.is_news()]
            if not news and self._unchanged is not None:
                return self._unchanged
        counters = self._handler.counters
        if self._failed:
            for entry in news:
                if entry.data.code is not Code.NONE:
                    counters.errors[entry.data.code.name] += 1
        rows: dict[TopicKey, list[PartitionData]] = {}
        for entry in news if self.session_id else self._entries.values():
            rows.setdefault(entry.topic, []).append(entry.data)
        answer = fetch_codec.write(
            self._version, list(rows.items()), self._request.isolation, session_id=self.session_id
        )
        for entry in news:
            entry.tell()
        counters.bytes_out += self._size
        if self._size:
            self._rotate(news)
        self._unchanged = None if self._size or self._failed or (self.session_id and news) else answer
        return answer

    def _rotate(self, news: list[Entry]) -> None:
        """Sent once: who may be asked again must not keep them. And the others come first next time."""
        for entry in news:
            if entry.data.size:
                entry.data.parts, entry.data.size = (), 0
                del self._dirty[entry]
                self._dirty[entry] = None
