"""One partition as this broker serves it: whose it is, what waits to be appended, who waits to read.

    new ──open──► readable ──take──► owned ──fence, failure of the writer, hand-over──► new

Reading needs no ownership and fences nobody. The first produce takes the partition: it opens the log's writer, which
fences the previous owner, and rebuilds the table of idempotent producers. A partition that was lost or handed over is
reopened before it is read or taken again: its old writer cannot know what others have stored since.

Everything here runs on the event loop, except `_open`, `_take`, `_hand_over` and `_refresh` (worker threads) and `_moved`
(any thread).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker_shim.partitions.append import Answer, Append
from broker_shim.partitions.append_queue import AppendQueue
from broker_shim.partitions.producer_recovery import Snapshots
from broker_shim.partitions.producers import ProducerTable
from broker_shim.partitions.together import Part
from broker_shim.partitions.topic_rules import TopicRules
from broker_shim.partitions.transaction_gate import Verify
from broker_shim.wire.codes import Code
from logstore.config import Ack
from logstore.errors import Fenced, LogStoreError, fresh
from logstore.format.batches.markers import Marker
from logstore.format.batches.transactions import Transactions
from logstore.layout.broker import INTERNAL_TOPICS
from logstore.store import Store
from logstore.topic import Topic

log = logging.getLogger(__name__)
TAKE_TIMEOUT_S = 20.0


class Watcher(Protocol):
    """Somebody who wants to know when there may be more to read. `wake` must be quick. `is_waiting`: there is a client
    behind it, now, for whom the store may be asked what a writer elsewhere has done.
    """

    @property
    def is_waiting(self) -> bool: ...

    def wake(self, partition: HostedPartition) -> None: ...


class Owner(Protocol):
    """Whoever keeps track of which partitions are ours."""

    def lost(self, partition: HostedPartition, error: BaseException) -> None: ...

    def found_open(self, partition: HostedPartition) -> None:
        """It was read, and has open transactions: somebody must be there to end them."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the partitions of a broker share. `ack`: what most producers ask for. `max_message_bytes`: of topics that do not
    say."""

    store: Store
    loop: asyncio.AbstractEventLoop
    workers: Executor
    follow_interval_s: float
    ack: Ack
    max_message_bytes: int


class Stable(NamedTuple):
    """Up to where every transaction is decided, and durable, and what is known of them there: one look, for one answer. Of
    two looks the second may find a log that has grown, and transactions that nobody has looked for yet."""

    end: int
    transactions: Transactions


class HostedPartition:
    def __init__(self, topic: Topic, index: int, host: Host, rules: TopicRules, owner: Owner) -> None:
        self.topic = topic.name
        self.index = index
        self.rules = rules
        self.log = topic.partition(index)
        self.is_recreated = topic._internal.descriptor.is_recreated
        self._host = host
        self._loop = host.loop
        self._owner = owner
        self._ack: Ack = "durable" if topic.name in INTERNAL_TOPICS else host.ack
        self.taken_at = 0.0
        self._was_open = False
        self._is_stale = True
        self._handing_over: asyncio.Future[None] | None = None
        self._snapshots = Snapshots(
            host.store.objects,
            self.log._internal.paths,
            is_recreated=self.is_recreated,
            acks_early=self._ack != "durable",
        )
        self._queue = AppendQueue(
            self._snapshots, rules, host.loop, host.workers, self.lose, self._tell, self.is_still_ours
        )
        self._learning: asyncio.Task[None] | None = None
        self._followed: tuple[Transactions, int] | None = None  # while it is not ours; up to which offset
        self._watchers: set[Watcher] = set()
        self._notified = False
        self._opening: asyncio.Future[None] | None = None
        self._taking: asyncio.Future[None] | None = None
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.topic}/{self.index}"

    # Opening and taking

    @property
    def is_open(self) -> bool:
        return self._opening is not None and self._opening.done() and self._opening.exception() is None

    @property
    def is_owned(self) -> bool:
        return self._queue.is_open

    def knows_epoch(self, epoch: int) -> bool:
        """Could a client have learnt this epoch from us, or from a leader before us?

        A topic that has taken another's place (`is_recreated`) begins with epoch 1 again, and librdkafka keeps to the
        largest that it knows of the name: that says nothing about a newer leader then. Who does not write looks in
        the store.
        """
        return epoch <= self.log._internal.epoch or (self.is_recreated and self.is_owned)

    def open(self, since: float | None = None) -> asyncio.Future[None]:
        """Make it readable. Raises what the store says; the next call tries again. `since`: as for `look`, and the topic was
        looked at then, too."""
        failed = self._opening is not None and self._opening.done() and self._opening.exception() is not None
        if self._opening is None or failed:
            self._opening = self._loop.run_in_executor(self._host.workers, self._open, since)
            self._opening.add_done_callback(_seen)
        return self._opening

    def look(self, since: float | None = None) -> None:
        """In a worker thread: what others have written. `since`: what was seen of its lane from then on will do."""
        if since is None:
            self.log.refresh()
        else:
            self.log._internal.refresh_since(since)

    def _open(self, since: float | None) -> None:
        if self._is_stale:
            is_new = since is not None and not self._was_open and not self.log._internal.closed
            found = self.log if is_new else self._host.store.topic(self.topic).partition(self.index)
            if found._internal.stopped is not None or (self._was_open and found is self.log):
                found = found.reopen(TAKE_TIMEOUT_S)
            if self._was_open:
                self.log._internal.remove_listener(self._moved)
            self.log = found
            self._was_open, self._is_stale = True, False
        self.look(since)
        self.log._internal.remove_listener(self._moved)
        self.log._internal.add_listener(self._moved)

    def take(self) -> asyncio.Future[None]:
        """Become the writer. Resolves when done; raises what prevented it."""
        if self._taking is None:
            self._taking = asyncio.ensure_future(self._taken(), loop=self._loop)
            self._taking.add_done_callback(_seen)
        return self._taking

    async def _taken(self) -> None:
        try:
            if self.is_owned:
                return
            if self._handing_over is not None:
                await asyncio.wait([self._handing_over])  # our own fence must not overtake our own flush
            await self.open()
            table = await self._loop.run_in_executor(self._host.workers, self._take)
        except (LogStoreError, OSError, TimeoutError) as error:
            log.warning("%s could not be taken: %s", self, error)
            self._queue.close(error)
            self._let_go()
            self._loop.call_soon(self._wake)  # it is reopened: what is known of its end no longer counts
            raise
        else:
            log.info("%s is ours, epoch %d", self, self.log._internal.epoch)
            self.taken_at = self._loop.time()
            self._queue.open(self.log, table)
            if table.transactions.open:
                self._owner.found_open(self)
        finally:
            self._taking = None

    def _take(self) -> ProducerTable:
        # With the level that most appends will have: for buffered ones the fence reserves offsets at once.
        writer = self.log._internal.open_writer(timeout=TAKE_TIMEOUT_S, ack=self._ack)
        if writer.failed is not None:
            raise fresh(writer.failed)
        return self._snapshots.recover(self.log)

    async def is_still_ours(self) -> bool:
        """Asks the store whether somebody has taken it since we last wrote. Raises what the store says."""
        if not self.is_owned:
            return False
        log = self.log
        newest = await self._loop.run_in_executor(self._host.workers, log._internal.fetch_epoch)
        if newest > log._internal.epoch and log is self.log:
            self.lose(
                Fenced(f"{self}: a writer of epoch {newest} took over; found out by a look at the store")
            )
        return log is self.log and self.is_owned

    def lose(self, error: BaseException) -> None:
        """The writer has stopped: forget what only the writer may know, and tell everyone who waits."""
        if not self.is_owned:
            return
        log.warning("%s is no longer ours: %s", self, error)
        self._queue.close(error)
        self._let_go()
        self._owner.lost(self, error)
        self._tell()

    def _lose_if_stopped(self) -> None:
        stopped = self.log._internal.stopped
        if stopped is not None:
            self.lose(stopped)

    def release(self, why: str) -> asyncio.Future[None] | None:
        """Give the partition up: take no more, and bring what we have to the store before anybody fences us."""
        if not self.is_owned:
            return None
        self._queue.close(Fenced(f"{self}: {why}"))
        self._handing_over = self._loop.run_in_executor(self._host.workers, self._hand_over)
        self._handing_over.add_done_callback(self._handed_over)
        self._let_go()
        return self._handing_over

    def _hand_over(self) -> None:
        self.log.reopen(TAKE_TIMEOUT_S)  # which closes the writer: the next one finds no reservation of ours

    def _handed_over(self, flushing: asyncio.Future[None]) -> None:
        if not flushing.cancelled() and flushing.exception() is not None:
            log.warning("%s was given up with records that are not stored: %s", self, flushing.exception())

    def _let_go(self) -> None:
        """From now on others write here: whoever wants to read or write through us has to open it again."""
        self._is_stale = True
        self._opening = None
        self._followed = None

    def close(self) -> None:
        """The broker stops: nothing of this partition runs on."""
        if self._following is not None:
            self._following.cancel()

    # Appending and trimming

    def append(
        self, records: memoryview, ack: Ack, answer: Answer, verify: Verify | None = None
    ) -> Append | None:
        """Append a record set, taking the partition first if it is not ours. As `AppendQueue.add`."""
        append = self._queue.add(records, ack, answer, verify)
        if append is not None and not self.is_owned:
            self.take()
        return append

    def end_transaction(self, marker: Marker, answer: Answer) -> None:
        """Append the marker of a transaction, taking the partition first if it is not ours."""
        self._queue.end(marker, self.log._internal.now_ms, answer)
        if not self.is_owned:
            self.take()

    def part_of_end(self, marker: Marker) -> Part | Code | None:
        """The marker, to be stored together with others, now: as `AppendQueue.part_of_end`."""
        return self._queue.part_of_end(marker, self.log._internal.now_ms)

    def trim(self, offset: int) -> asyncio.Future[int]:
        """Delete every record before `offset`. Resolves to the new low watermark."""
        return self._loop.run_in_executor(self._host.workers, self.log.delete_before, offset)

    @property
    def low_watermark(self) -> int:
        """The first offset there is."""
        return self.log.low_watermark

    def stored_bytes(self) -> int:
        """Of the objects that hold its records, as last seen. For a worker thread: a long log has many."""
        return sum(ref.size for ref in self.log.segments())

    # Transactions

    def stable(self) -> Stable | None:
        """None if `learn_stable` has to look first.

        The durable high watermark is read first: what it covers is known to the table of an owner, unless its writer has
        stopped. From then on the log follows another's, also before we are told.
        """
        durable = self.log.durable_high_watermark
        stopped = self.log._internal.stopped
        if self.is_owned and stopped is not None:
            self._loop.call_soon(self._lose_if_stopped)
            return None
        known = self._queue.transactions
        if known is None and self._followed is not None and self._followed[1] >= durable:
            known = self._followed[0]
        return None if known is None else Stable(known.last_stable(durable), known)

    @property
    def producers(self) -> ProducerTable | None:
        """What is known of them, if the partition is ours."""
        return self._queue.producers

    async def learn_stable(self) -> Stable:
        """As `stable`, read from the log if need be. Raises what the store says."""
        while (known := self.stable()) is None:
            await self.open()
            if self._learning is None:
                self._learning = self._loop.create_task(self._learned())
                self._learning.add_done_callback(_seen)
            await asyncio.shield(self._learning)
        return known

    async def _learned(self) -> None:
        """One worker at a time: it adds to what is known."""
        try:
            log = self.log
            followed = await self._loop.run_in_executor(self._host.workers, self._follow_transactions)
            if not self._is_stale and self.log is log:
                self._followed = followed
                followed[0].forget_below(log.low_watermark)
                if followed[0].open:
                    self._owner.found_open(self)
        finally:
            self._learning = None

    @property
    def has_learned(self) -> bool:
        """Whether anything is known of its transactions."""
        return self.is_owned or self._followed is not None

    def had_none(self, until: int) -> None:
        """There are no transactions below that offset."""
        if self._followed is None:
            self._followed = Transactions(), until

    def _follow_transactions(self) -> tuple[Transactions, int]:
        if self._followed is None or self._followed[1] < self.log.low_watermark:
            # The markers between are deleted, too: what was open then may have ended.
            return self._snapshots.recover_transactions(self.log)
        transactions, until = self._followed
        return self._snapshots.follow(transactions, self.log, until)

    # Watching

    def watch(self, watcher: Watcher) -> None:
        """Wake it whenever there may be more, until `unwatch`."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def follow(self) -> None:
        """A watcher waits. If the partition is not ours: look for what its writer, elsewhere, has stored."""
        if not self.is_owned and self._following is None and self._host.follow_interval_s > 0:
            self._following = self._loop.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while self._is_awaited and not self.is_owned:
                await asyncio.sleep(self._host.follow_interval_s)
                if self._is_awaited:
                    await self._loop.run_in_executor(self._host.workers, self._refresh)
        finally:
            self._following = None

    @property
    def _is_awaited(self) -> bool:
        return any(watcher.is_waiting for watcher in self._watchers)

    def _refresh(self) -> None:
        try:
            self.log.refresh()
        except LogStoreError as error:
            log.warning("%s: polling the store failed: %s", self, error)

    def _moved(self) -> None:
        """A watermark moved, says the log, from any thread. Many moves in one turn of the loop are one wake-up."""
        if (self._watchers or self._queue) and not self._notified:
            self._notified = True
            self._call(self._tell)

    def _tell(self) -> None:
        self._notified = False
        self._queue.pump()
        self._wake()

    def _wake(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.wake(self)

    def _call(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _seen(future: asyncio.Future[None]) -> None:
    """Whoever waits gets the error; if nobody does, the loop need not complain."""
    if not future.cancelled():
        future.exception()


def without_transactions(partitions: Sequence[HostedPartition]) -> list[tuple[HostedPartition, int]]:
    """In a worker thread: those that have had none, and up to which offset."""
    ends = [each.log.durable_high_watermark for each in partitions]
    # Looked for after the ends: a snapshot stands before the first transactional batch.
    missing = Snapshots.missing([each._snapshots for each in partitions])
    return [
        (each, end) for each, end, is_missing in zip(partitions, ends, missing, strict=True) if is_missing
    ]
