"""A coordinator's state: the newest value of each key, in one partition of an internal topic.

The log is the truth: a change counts when its record is durable. `latest` mirrors the log, compacted, in the order of
submission: the newest value of each key. When the log has grown to several times that, the mirror is appended and
everything before it is deleted, so a restart reads little however long the broker ran. Because the log is a
prefix-ordered whole, a mirror that is durable proves that everything before it was.

Whatever concerns many keys goes in slices, with turns for others in between: a key is mirrored with the value that is the
newest when its slice is handed to the log.

A change may also be stored together with what other partitions are to hold (`part`): all or none. No mirror is appended
while such a one is undecided, nor is one begun while a mirror is: it would make a half of it durable.

Runs on the event loop; `load` runs in a worker thread, before anybody else sees the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.together import NotStored, Part
from broker_shim.wire.codes import Code
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import checked
from logstore.errors import BufferFull, InvalidRecord, LogStoreError, RecordTooLarge
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record

log = logging.getLogger(__name__)
COMPACT_FROM_RECORDS = 2_000
COMPACT_AT_RATIO = 4
SLICE_RECORDS = 500
"""How many records are handled in one turn of the loop: a few milliseconds."""
SETTLE_PATIENCE_S = 5.0
WRITE_PATIENCE_S = 5.0
ROOM_RETRY_S = 0.02
Change = tuple[bytes, bytes | None]
"""A key and its value from now on; None: it is gone."""
Done = Callable[[Code], None]
Replaced = Callable[[bytes, bytes, bytes | None], None]
"""Is told of a key whose value is another from now on, or gone: the key, the value of before, the new one."""


def nobody_waits(code: Code) -> None:
    """Nobody waits for it."""


async def outcome(start: Callable[[Done], object], patience_s: float | None = None) -> Code:
    """What `start` tells its callback, for a task that waits for it: COORDINATOR_NOT_AVAILABLE if that takes too long."""
    told: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    start(lambda code: None if told.done() else told.set_result(code))
    try:
        return await asyncio.wait_for(told, patience_s)
    except TimeoutError:
        return Code.COORDINATOR_NOT_AVAILABLE


class StateLog:
    """`nothing`: the key of a record that says nothing, for a log that is compacted to no key at all."""

    def __init__(
        self,
        hosted: HostedPartition,
        loop: asyncio.AbstractEventLoop,
        nothing: bytes,
        replaced: Replaced = lambda key, before, value: None,
    ) -> None:
        self.hosted = hosted
        self.latest: dict[bytes, bytes] = {}
        self._loop = loop
        self._nothing = nothing
        self._replaced = replaced
        self._running: set[asyncio.Task[None]] = set()
        self.compacting: asyncio.Task[None] | None = None
        self._is_closed = False
        self._records_in_log = 0
        self._last_write: Future[Receipt] | None = None
        self.proved_at = 0.0
        """When the log was ours for certain: by the loop's clock, when what is durable was handed to it."""
        self._together = 0
        self._decided = asyncio.Event()
        """Set while nothing that is stored together with others is on its way."""
        self._decided.set()
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
            self._refuse_large(records)
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
        self._submitted(records, done, future)
        return True

    def _submitted(self, records: list[Record], done: Done, future: Future[Receipt]) -> None:
        for record in records:
            assert record.key is not None
            before = self.latest.get(record.key)
            self._mirror(record.key, record.value)
            if before is not None:
                self._replaced(record.key, before, record.value)
        self._records_in_log += len(records)
        self._last_write = future
        now = self._loop.time()
        future.add_done_callback(lambda each: self._call(self._written, each, done, now))

    def part(
        self, changes: Iterable[Change], done: Done, first: Callable[[], None] = lambda: None
    ) -> Part | None:
        """The changes as a part of what is stored together; `done` as for `write`, and `first` is called when they are on
        their way. OPERATION_NOT_ATTEMPTED: nothing of it is stored, and this log is still ours. None if they have to wait
        for others."""
        if self._backlog or self.compacting is not None or self._is_closed:
            return None
        stopped = self.hosted.log._internal.stopped
        if stopped is not None:
            self._lost(stopped)
            return None
        records = [Record(value, key) for key, value in changes]
        raw, _ = encode_batch(records, now_ms=self.hosted.log._internal.now_ms, codec_id=0)

        before: dict[bytes, bytes | None] = {}

        def decided(code: Code) -> None:
            if code is Code.OPERATION_NOT_ATTEMPTED:
                for record in records:
                    if record.key is not None and self.latest.get(record.key) is record.value:
                        self._mirror(record.key, before[record.key])
            self._together -= 1
            if not self._together:
                self._decided.set()
            done(code)

        def submitted(future: Future[Receipt]) -> None:
            first()
            before.update((record.key, self.latest.get(record.key)) for record in records if record.key)
            self._together += 1
            self._decided.clear()
            self._submitted(records, decided, future)

        return Part(self.hosted.log, checked(self.hosted.log, raw), submitted)

    def _refuse_large(self, records: list[Record]) -> None:
        """What no client could send is not written either: it would have to be read back whole."""
        limit = self.hosted.rules.max_bytes
        for record in records:
            if len(record.value or b"") > limit:
                raise RecordTooLarge(
                    f"a state of {len(record.value or b'')} bytes is larger than a batch may be: {limit}"
                )

    async def settled(self) -> None:
        """Wait until everything written so far is durable, or will not be."""
        if self._last_write is not None and not self._last_write.done():
            await asyncio.wait(
                [asyncio.wrap_future(self._last_write, loop=self._loop)], timeout=SETTLE_PATIENCE_S
            )

    async def is_still_ours(self) -> bool:
        """Asks the store. False, too, if it does not answer."""
        now = self._loop.time()
        try:
            is_ours = await self.hosted.is_still_ours()
        except (LogStoreError, OSError) as error:
            log.info("%s: nobody knows whether it is still ours: %s", self.hosted, error)
            return False
        if is_ours:
            self.proved_at = max(self.proved_at, now)
        return is_ours

    def _written(self, future: Future[Receipt], done: Done, submitted_at: float) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, NotStored):
            done(Code.OPERATION_NOT_ATTEMPTED)
            return
        if error is not None or future.cancelled():
            self._lost(error or ConnectionError("the log was closed"))
            done(Code.NOT_COORDINATOR)
            return
        self.proved_at = max(self.proved_at, submitted_at)
        done(Code.NONE)
        self._compact_if_long()

    def _compact_if_long(self) -> None:
        if self._records_in_log < max(COMPACT_FROM_RECORDS, COMPACT_AT_RATIO * len(self.latest)):
            return
        if self.compacting is None and not self._is_closed:
            self.compacting = self.start(self._compact())

    async def _compact(self) -> None:
        """Append the mirror, then delete what was before it. What is written meanwhile lies behind its first record."""
        first: Future[Receipt] | None = None
        try:
            await self._decided.wait()
            keys = list(self.latest)
            self._records_in_log = len(keys)
            for start in range(0, max(len(keys), 1), SLICE_RECORDS):
                newest = ((key, self.latest.get(key)) for key in keys[start : start + SLICE_RECORDS])
                records = [Record(value, key) for key, value in newest if value is not None]
                last = self.hosted.log.submit(records or [Record(None, self._nothing)], ack="durable")
                first = first or last
                await asyncio.sleep(0)
            await asyncio.wrap_future(last, loop=self._loop)
            assert first is not None
            self.hosted.trim(first.result().offset)
        except LogStoreError as error:
            # If the log is lost, the next write meets the same error and deals with it.
            log.warning("%s: not compacted this time: %s", self.hosted, error)
        finally:
            self.compacting = None

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work on the log that takes several turns of the loop. It ends with the log."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def written(self, changes: Iterable[Change]) -> Code:
        """`write`, for a task."""
        return await outcome(partial(self.write, changes))

    def _lost(self, error: BaseException) -> None:
        log.warning("%s: the coordinator has lost its log: %s", self.hosted, error)
        self.hosted.lose(error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, error: Code) -> None:
        """Somebody else has it from now on, or the broker stops: nobody is left waiting for room."""
        self._is_closed = True
        for task in self._running:
            task.cancel()
        backlog, self._backlog = self._backlog, deque()
        for _, _, done in backlog:
            done(error)
