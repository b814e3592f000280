"""A coordinator's state: the newest value of each key, in one partition of an internal topic.

The log is the truth: a change counts when its record is durable. `latest` mirrors the log, compacted, in the order of
submission: the newest value of each key. When the log has grown to several times that, the mirror is appended as one
batch and everything before it is deleted, so a restart reads little however long the broker ran. Because the log is a
prefix-ordered whole, a mirror that is durable proves that everything before it was.

Runs on the event loop; `load` runs in a worker thread, before anybody else sees the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.wire.codes import Code
from logstore.engine.memory.results import Receipt
from logstore.errors import BufferFull, InvalidRecord, LogStoreError
from logstore.format.batches.record import Record

log = logging.getLogger(__name__)
COMPACT_FROM_RECORDS = 2_000
COMPACT_AT_RATIO = 4
SETTLE_PATIENCE_S = 5.0
WRITE_PATIENCE_S = 5.0
ROOM_RETRY_S = 0.02
Change = tuple[bytes, bytes | None]
"""A key and its value from now on; None: it is gone."""
Done = Callable[[Code], None]


class StateLog:
    """`nothing`: the key of a record that says nothing, for a log that is compacted to no key at all."""

    def __init__(self, hosted: HostedPartition, loop: asyncio.AbstractEventLoop, nothing: bytes) -> None:
        self.hosted = hosted
        self.latest: dict[bytes, bytes] = {}
        self._loop = loop
        self._nothing = nothing
        self._records_in_log = 0
        self._last_write: Future[Receipt] | None = None
        self._backlog: deque[tuple[float, list[Record], Done]] = deque()

    @property
    def epoch(self) -> int:
        """Which writer of the log we are: one that comes later has a higher one."""
        return self.hosted.log._internal.epoch

    def load(self) -> None:
        """Read the log into memory."""
        for record in self.hosted.log.records(visibility="durable"):
            self._records_in_log += 1
            if record.key is not None:
                self._mirror(record.key, record.value)

    def _mirror(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.latest.pop(key, None)
        else:
            self.latest[key] = value

    def write(self, changes: Iterable[Change], done: Done) -> None:
        """Append changes, durably, then call `done`. What waits for `done` is not seen by others before it."""
        records = [Record(value, key) for key, value in changes]
        if self._backlog or not self._submit(records, done):
            self._backlog.append((self._loop.time() + WRITE_PATIENCE_S, records, done))
            if len(self._backlog) == 1:
                self._loop.call_later(ROOM_RETRY_S, self._catch_up)

    def _catch_up(self) -> None:
        """Producers have filled the write buffer: what waited for room goes on, in order, while there is any."""
        now = self._loop.time()
        while self._backlog:
            until, records, done = self._backlog.popleft()
            if until <= now:
                done(Code.COORDINATOR_NOT_AVAILABLE)
            elif not self._submit(records, done):
                self._backlog.appendleft((until, records, done))
                self._loop.call_later(ROOM_RETRY_S, self._catch_up)
                return

    def _submit(self, records: list[Record], done: Done) -> bool:
        """Hand records to the log. False if there is no room now."""
        try:
            future = self.hosted.log.submit(records, ack="durable")
        except BufferFull:
            return False
        except InvalidRecord as error:
            # Larger than any batch may be: it is refused, and the log is as good for the others as it was.
            log.warning("%s: %s", self.hosted, error)
            done(Code.UNKNOWN_SERVER_ERROR)
            return True
        except LogStoreError as error:
            self._lost(error)
            done(Code.NOT_COORDINATOR)
            return True
        for record in records:
            assert record.key is not None
            self._mirror(record.key, record.value)
        self._records_in_log += len(records)
        self._last_write = future
        future.add_done_callback(lambda each: self._call(self._written, each, done))
        return True

    async def settled(self) -> None:
        """Wait until everything written so far is durable, or will not be."""
        if self._last_write is not None and not self._last_write.done():
            await asyncio.wait(
                [asyncio.wrap_future(self._last_write, loop=self._loop)], timeout=SETTLE_PATIENCE_S
            )

    def _written(self, future: Future[Receipt], done: Done) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._lost(error or ConnectionError("the log was closed"))
            done(Code.NOT_COORDINATOR)
            return
        done(Code.NONE)
        self._compact_if_long()

    def _compact_if_long(self) -> None:
        if self._records_in_log < max(COMPACT_FROM_RECORDS, COMPACT_AT_RATIO * len(self.latest)):
            return
        records = [Record(value, key) for key, value in self.latest.items()]
        self._records_in_log = len(records)
        try:
            future = self.hosted.log.submit(records or [Record(None, self._nothing)], ack="durable")
        except LogStoreError as error:
            log.warning("%s: not compacted this time: %s", self.hosted, error)
            return
        future.add_done_callback(lambda each: self._call(self._compacted, each))

    def _compacted(self, future: Future[Receipt]) -> None:
        if future.cancelled() or future.exception() is not None:
            return  # the next write meets the same error and deals with it
        self.hosted.trim(future.result().offset)

    def _lost(self, error: BaseException) -> None:
        log.warning("%s: the coordinator has lost its log: %s", self.hosted, error)
        self.hosted.lose(error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, error: Code) -> None:
        """Somebody else has it from now on, or the broker stops: nobody is left waiting for room."""
        backlog, self._backlog = self._backlog, deque()
        for _, _, done in backlog:
            done(error)
