"""One partition as this broker serves it: a queue of appends in front of the log, watchers behind it.

    new ──open──► readable ──take──► owned ──fence, or any failure of the writer──► readable

Reading needs no ownership and fences nobody. The first produce takes the partition: it opens the log's
writer, which fences the previous owner, and rebuilds the table of idempotent producers; appends wait in the
queue meanwhile, in the order they came. So do appends that find the write buffer full: they go on when an
upload has freed some of it.

Everything here runs on the event loop, except `_open` and `_take` (worker threads) and `_moved` (any thread).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol

from broker_shim import codes, producer_recovery
from broker_shim.codes import Code
from broker_shim.producers import ProducerTable, Remembered
from logstore.config import Ack
from logstore.engine.partition_log import PartitionLog
from logstore.engine.results import Receipt
from logstore.errors import BufferFull, Fenced, InvalidRecord, LogStoreError, UnknownTopic
from logstore.format.batch import BatchInfo, split
from logstore.format.errors import FormatError
from logstore.objects import ObjectStore

log = logging.getLogger(__name__)
TAKE_TIMEOUT_S = 20.0
Answer = Callable[[Code, int], None]
"""Called once with the outcome and the base offset."""


class Watcher(Protocol):
    """Somebody who wants to know when there may be more to read. `wake` must be quick."""

    def wake(self, partition: Hosted) -> None: ...


class Owner(Protocol):
    """Whoever keeps track of which partitions are ours."""

    def lost(self, partition: Hosted, error: BaseException) -> None: ...


@dataclass(slots=True)
class Append:
    """One partition's part of a produce request. `abandoned`: its request was answered meanwhile."""

    records: memoryview
    batch: BatchInfo
    ack: Ack
    answer: Answer
    abandoned: bool = False


class Hosted:
    def __init__(
        self,
        topic: str,
        index: int,
        partition: PartitionLog,
        objects: ObjectStore,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        owner: Owner,
        follow_interval_s: float,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = partition
        self.is_owned = False
        self._producers = ProducerTable()
        self._snapshots = producer_recovery.Snapshots(objects, partition.paths)
        self._queue: deque[Append] = deque()
        self._watchers: set[Watcher] = set()
        self._notified = False
        self._trimmed_to = 0
        self._opening: asyncio.Future[None] | None = None
        self._taking: asyncio.Future[None] | None = None
        self._loop = loop
        self._workers = workers
        self._owner = owner
        self._follow_interval_s = follow_interval_s
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.topic}/{self.index}"

    # ── opening and taking ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        return self._opening is not None and self._opening.done() and self._opening.exception() is None

    def open(self) -> asyncio.Future[None]:
        """Make it readable. Raises what the store says; the next call tries again."""
        failed = self._opening is not None and self._opening.done() and self._opening.exception() is not None
        if self._opening is None or failed:
            self._opening = self._loop.run_in_executor(self._workers, self._open)
            self._opening.add_done_callback(_seen)
        return self._opening

    def _open(self) -> None:
        self.log.refresh()
        self.log.remove_listener(self._moved)
        self.log.add_listener(self._moved)

    def take(self) -> asyncio.Future[None]:
        """Become the writer. Resolves when done; raises what prevented it."""
        if self._taking is None:
            self._taking = asyncio.ensure_future(self._taken(), loop=self._loop)
            self._taking.add_done_callback(_seen)
        return self._taking

    async def _taken(self) -> None:
        try:
            await self.open()
            table = await self._loop.run_in_executor(self._workers, self._take)
        except (LogStoreError, OSError, TimeoutError) as error:
            self._fail(error)
            raise
        else:
            self._producers = table
            self.is_owned = True
            log.info("%s is ours, epoch %d", self, self.log.epoch)
            self._pump()
        finally:
            self._taking = None

    def _take(self) -> ProducerTable:
        writer = self.log.open_writer(timeout=TAKE_TIMEOUT_S)
        if writer.failed is not None:
            raise writer.failed
        return self._snapshots.recover(self.log)

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────

    def append(self, records: memoryview, ack: Ack, answer: Answer) -> Append | None:
        """Queue or append one record set. `answer` may be called before this returns. None if refused at
        once.
        """
        try:
            batches = split(records)
        except FormatError as error:
            log.info("%s: a record set was refused: %s", self, error)
            answer(Code.CORRUPT_MESSAGE, -1)
            return None
        refusal = _refuse(batches)
        if refusal is not None:
            answer(refusal, -1)
            return None
        append = Append(records, batches[0], ack, answer)
        if not self.is_owned:
            self._queue.append(append)
            self.take()
        elif self._queue or not self._submit(append):
            self._queue.append(append)
        return append

    def _pump(self) -> None:
        """Append what waits, in order, as far as there is room."""
        while self._queue and self.is_owned:
            if not self._queue[0].abandoned and not self._submit(self._queue[0]):
                return
            if self._queue:
                self._queue.popleft()

    def _submit(self, append: Append) -> bool:
        """Hand it to the log. False if there is no room now."""
        batch = append.batch
        idempotent = batch.producer_id >= 0
        if idempotent:
            verdict = self._producers.check(batch)
            if verdict.code is not Code.NONE:
                append.answer(verdict.code, -1)
                return True
            if verdict.duplicate is not None:
                self._answer_duplicate(append, verdict.duplicate)
                return True
        try:
            future = self.log.submit_batches(append.records, ack=append.ack)
        except BufferFull:
            return False
        except InvalidRecord as error:
            log.info("%s: a record set was refused: %s", self, error)
            append.answer(codes.of_produce(error), -1)
            return True
        except LogStoreError as error:
            append.answer(codes.of_produce(error), -1)
            self.lose(error)
            return True
        if idempotent:
            self._producers.remember(batch, None, future)
        if future.done():
            self._acked(append, future)
        else:
            future.add_done_callback(lambda done: self._call(self._acked, append, done))
        return True

    def _answer_duplicate(self, append: Append, known: Remembered) -> None:
        if known.offset is not None:
            append.answer(Code.NONE, known.offset)
        else:
            known.pending.add_done_callback(lambda done: self._call(self._answer_from, append, done))

    def _acked(self, append: Append, done: Future[Receipt]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            reason = error or Fenced(f"{self}: the log was closed")
            append.answer(codes.of_produce(reason), -1)
            self.lose(reason)
            return
        offset = done.result().offset
        if append.batch.producer_id >= 0:
            self._producers.stored(append.batch, offset)
        self._answer_from(append, done)
        if self._snapshots.grew(append.batch.size):
            table = self._producers.dump(self.log.durable_high_watermark)
            self._workers.submit(self._snapshots.write, table)

    def _answer_from(self, append: Append, done: Future[Receipt]) -> None:
        if done.cancelled() or done.exception() is not None:
            append.answer(Code.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            append.answer(Code.NONE, done.result().offset)

    def lose(self, error: BaseException) -> None:
        """The writer has stopped: forget what only the writer may know, and tell everyone who waits."""
        if not self.is_owned:
            return
        self.is_owned = False
        self._producers = ProducerTable()
        self._fail(error)
        if isinstance(error, Fenced | UnknownTopic):
            self._owner.lost(self, error)
        self._tell()

    def _fail(self, error: BaseException) -> None:
        log.warning("%s is not ours: %s", self, error)
        code = codes.of_produce(error)
        waiting, self._queue = self._queue, deque()
        for append in waiting:
            append.answer(code, -1)

    def release(self) -> asyncio.Future[int] | None:
        """Another broker will lead: take no more, and bring what we have to the store before it fences us."""
        if not self.is_owned:
            return None
        self._fail(Fenced(f"{self} moves to another broker"))
        return self._loop.run_in_executor(self._workers, self.log.flush, TAKE_TIMEOUT_S)

    def close(self) -> None:
        """The broker stops: nothing of this partition runs on."""
        if self._following is not None:
            self._following.cancel()

    def trim(self, offset: int) -> asyncio.Future[int]:
        """Delete every record before `offset`. Resolves to the new low watermark."""
        return self._loop.run_in_executor(self._workers, self._trim, offset)

    def _trim(self, offset: int) -> int:
        low = self.log.maintenance.delete_before(offset, int(time.time() * 1000))
        self._trimmed_to = max(self._trimmed_to, low)
        return low

    @property
    def low_watermark(self) -> int:
        """The first offset there is. The log itself hears of a trim with its next checkpoint, clients at once."""
        return max(self.log.low_watermark, self._trimmed_to)

    # ── watching ─────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        if not self.is_owned and self._following is None and self._follow_interval_s > 0:
            self._following = self._loop.create_task(self._follow())

    async def _follow(self) -> None:
        """While somebody waits and the partition is not ours: look for what its writer, elsewhere, has
        stored.
        """
        try:
            while self._watchers and not self.is_owned:
                await asyncio.sleep(self._follow_interval_s)
                if self._watchers:
                    await self._loop.run_in_executor(self._workers, self._refresh)
        finally:
            self._following = None

    def _refresh(self) -> None:
        try:
            self.log.refresh()
        except LogStoreError as error:
            log.warning("%s: looking for news failed: %s", self, error)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def _moved(self) -> None:
        """A mark moved, says the log, from any thread. Many moves in one turn of the loop are one wake-up."""
        if (self._watchers or self._queue) and not self._notified:
            self._notified = True
            self._call(self._tell)

    def _tell(self) -> None:
        self._notified = False
        self._pump()
        for watcher in tuple(self._watchers):
            watcher.wake(self)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run on the loop. After the loop has been closed nobody is left to tell."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _refuse(batches: list[BatchInfo]) -> Code | None:
    if not batches:
        return Code.INVALID_RECORD
    if any(batch.is_transactional for batch in batches):
        return Code.INVALID_RECORD
    if len(batches) > 1 and any(batch.producer_id >= 0 for batch in batches):
        return Code.INVALID_RECORD  # as in Kafka: a sequence number stands for one batch
    return None


def _seen(future: asyncio.Future[None]) -> None:
    """Whoever waits gets the error; if nobody does, the loop need not complain."""
    if not future.cancelled():
        future.exception()
