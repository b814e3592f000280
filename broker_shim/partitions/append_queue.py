"""What producers send to one partition, in order, on its way into the log.

An append goes straight to the log if nothing is in front of it. It waits while the partition is being taken, while
the write buffer is full (an upload frees some of it), and while a large compressed batch in front of it is being
checked in a worker thread: unpacking it on the event loop would hold up every other client.

Transactions pass here, too, in the same order. A producer's first transactional batch is taken only after its coordinator
has said that the partition is part of the transaction (`Append.verify`): one that comes late, after the end, would open a
transaction that nobody ends. A marker goes into the log like a batch; from then on nothing more of that transaction does.

Each append is answered exactly once: with its offset at the ack level asked for, with that of the first attempt if it is
a retry (`producers`), or with a code that says what to do. Event loop only, except `_submit_apart` and `_call`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from broker_shim.partitions.producer_recovery import Snapshots
from broker_shim.partitions.producers import ProducerTable, Remembered
from broker_shim.wire import codes
from broker_shim.wire.codes import Code
from logstore.config import Ack
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import BufferFull, Closed, InvalidRecord, LogStoreError, UnknownTopic
from logstore.format.batches.batch import HEADER_SIZE, BatchInfo, read_info, split
from logstore.format.batches.codecs import decompress
from logstore.format.batches.markers import Marker, encode_marker
from logstore.format.batches.transactions import OpenTransaction, Transactions
from logstore.format.errors import FormatError

log = logging.getLogger(__name__)
APART_FROM_BYTES = 32 << 10
"""Compressed batches from this size on are checked in a worker thread."""
UNPACKED_MAX_BYTES = 1 << 20
"""And so are those that hold more than this: two kilobytes of zstd can be sixty megabytes of the same letter."""
ROOM_RETRY_S = 0.02
Answer = Callable[[Code, int], None]
"""Called once with the outcome and the base offset."""
Verify = Callable[[int, int], Code | Coroutine[Any, Any, Code]]
"""Is the partition part of the transaction that this producer has open in this epoch?"""


@dataclass(slots=True)
class Append:
    """One partition's part of a produce request. `abandoned`: its request was answered meanwhile.

    `is_heavy`: to check it takes long enough for other clients to notice. `verify`: asks the coordinator of its transaction.
    `marker`: it ends one. `opens`: it is the first of one. `end`: where it ends in the log, once acked.
    """

    records: memoryview
    batch: BatchInfo
    is_heavy: bool
    ack: Ack
    answer: Answer
    verify: Verify | None = None
    marker: Marker | None = None
    opens: bool = False
    abandoned: bool = False
    end: int | None = None

    @property
    def is_idempotent(self) -> bool:
        return self.batch.producer_id >= 0 and self.marker is None


@dataclass(slots=True)
class _Verification:
    """Appends of one producer that wait for its coordinator. `is_void`: a marker came meanwhile, so ask again."""

    waiting: deque[Append] = field(default_factory=deque)
    is_void: bool = False


class AppendQueue:
    """`open` with a table of producers when the partition is ours; `close` when it no longer is."""

    def __init__(
        self,
        snapshots: Snapshots,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        on_lost: Callable[[BaseException], None],
        on_stable: Callable[[], None],
    ) -> None:
        """`on_stable`: the last stable offset may have moved."""
        self._on_stable = on_stable
        self._verified: dict[int, int] = {}  # the epochs in which producers may begin a transaction here
        self._verifying: dict[int, _Verification] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: dict[int, int] = {}  # how many markers of a producer are on their way
        self._log: PartitionLog | None = None
        self._snapshots = snapshots
        self._loop = loop
        self._workers = workers
        self._on_lost = on_lost
        self._producers: ProducerTable | None = None
        self._waiting: deque[Append] = deque()
        self._unacked: deque[Append] = deque()
        self._acked_until = 0
        self._busy = False
        self._retry: asyncio.TimerHandle | None = None
        self._completions: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._notified = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        return self._producers is not None

    @property
    def transactions(self) -> Transactions | None:
        return self._producers.transactions if self._producers is not None else None

    @property
    def producers(self) -> ProducerTable | None:
        return self._producers

    def open(self, partition: PartitionLog, producers: ProducerTable) -> None:
        self._log = partition
        self._producers = producers
        self.pump()

    def close(self, error: BaseException) -> None:
        """Answer everything that waits: the log will not take it from us."""
        self._producers = self._log = None
        self._unacked.clear()
        self._verified.clear()
        self._ending.clear()
        waiting, self._waiting = self._waiting, deque()
        for verification in self._verifying.values():
            waiting.extend(verification.waiting)
            verification.waiting.clear()
            verification.is_void = True
        for append in waiting:
            append.answer(_code_of(error, append), -1)

    def end(self, marker: Marker, now_ms: int, answer: Answer) -> Append:
        """Append the marker of a transaction, now or in its turn. `answer` as for `add`; its ack is durable."""
        raw = memoryview(encode_marker(marker, now_ms=now_ms))
        append = Append(raw, read_info(raw), False, "durable", answer, marker=marker)
        self._in_turn(append)
        return append

    def add(
        self, records: memoryview, ack: Ack, answer: Answer, verify: Verify | None = None
    ) -> Append | None:
        """Append a record set, now or in its turn. `answer` may be called before this returns. None if refused."""
        try:
            batches = split(records)
        except FormatError as error:
            log.info("a record set was refused: %s", error)
            answer(Code.CORRUPT_MESSAGE, -1)
            return None
        refusal = _refuse(batches, verify)
        if refusal is not None:
            answer(refusal, -1)
            return None
        append = Append(records, batches[0], _is_heavy(records, batches), ack, answer, verify)
        if append.batch.is_transactional:
            # What is decided is durable: so is what it is about, before.
            append.ack = "durable"
        self._in_turn(append)
        return append

    def _in_turn(self, append: Append) -> None:
        if self._waiting or self._busy or not self.is_open:
            self._waiting.append(append)
        elif not self._submit(append):
            self._wait_for_room(append)

    def pump(self) -> None:
        """Append what waits, in order, as far as there is room."""
        while self._waiting and self.is_open and not self._busy:
            append = self._waiting.popleft()
            if not append.abandoned and not self._submit(append):
                self._wait_for_room(append)
                return

    def _wait_for_room(self, append: Append) -> None:
        """First in line again. This partition's next upload wakes us; another's may free the room without telling."""
        self._waiting.appendleft(append)
        if self._retry is None:
            self._retry = self._loop.call_later(ROOM_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.pump()

    def _submit(self, append: Append) -> bool:
        """Hand it to the log. False if there is no room now."""
        assert self._producers is not None
        assert self._log is not None
        if append.is_idempotent:
            verdict = self._producers.check(append.batch)
            if verdict.code is not Code.NONE:
                append.answer(verdict.code, -1)
                return True
            if verdict.duplicate is not None:
                self._answer_duplicate(append, verdict.duplicate)
                return True
        if append.marker is not None:
            if self._producers.transactions.is_stale(append.marker):
                append.answer(Code.NONE, -1)
                return True
        elif append.batch.is_transactional and not self._may_begin(append):
            return True
        if append.is_heavy:
            self._busy = True
            if append.opens:
                # Where it will lie is known when the worker is back; not below what is durable now.
                self._begin(append, self._log.durable_high_watermark)
            self._workers.submit(self._submit_apart, self._log, append)
            return True
        try:
            self._submitted(self._log, append, *_begin_batches(self._log, append))
        except BufferFull:
            return False
        except LogStoreError as error:
            self._refused(self._log, append, error)
        return True

    def _may_begin(self, append: Append) -> bool:
        """Whether a transactional batch goes into the log now. If not, it was answered, or waits for its coordinator."""
        assert self._producers is not None
        pid, epoch = append.batch.producer_id, append.batch.producer_epoch
        is_open = self._producers.transactions.open.get(pid)
        if is_open is not None and pid not in self._ending:
            if is_open.epoch == epoch:
                return True
            append.answer(Code.INVALID_TXN_STATE, -1)
            return False
        if pid in self._verifying:
            self._verifying[pid].waiting.append(append)
            return False
        if self._verified.get(pid) == epoch and self._snapshots.stands:
            append.opens = True
            return True
        assert append.verify is not None
        code = append.verify(pid, epoch)
        if code is Code.NONE and self._snapshots.stands:
            self._verified[pid] = epoch
            append.opens = True
            return True
        self._verifying[pid] = _Verification(deque([append]))
        task = self._loop.create_task(self._verify(append, code))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def _verify(self, append: Append, answer: Code | Coroutine[Any, Any, Code]) -> None:
        """Ask the coordinator, and let those go on that wait for it. A marker that came meanwhile asks once more."""
        pid, epoch = append.batch.producer_id, append.batch.producer_epoch
        assert append.verify is not None
        verification = self._verifying[pid]
        try:
            code = answer if isinstance(answer, Code) else await answer
            if code is Code.NONE and not self._snapshots.stands:
                code = await self._write_first_snapshot()
            while verification.is_void and code is Code.NONE:
                verification.is_void = False
                again = append.verify(pid, epoch)
                code = again if isinstance(again, Code) else await again
        except Exception:
            log.exception("producer %d could not be verified", pid)
            code = Code.NOT_ENOUGH_REPLICAS
        if self._verifying.get(pid) is verification:
            del self._verifying[pid]
        if code is Code.NONE and self.is_open:
            self._verified[pid] = epoch
        for each in verification.waiting:
            if code is not Code.NONE and each.batch.producer_epoch == epoch:
                each.answer(code, -1)
            elif not each.abandoned:
                self._in_turn(each)

    async def _write_first_snapshot(self) -> Code:
        assert self._log is not None
        assert self._producers is not None
        table = self._producers.dump(min(self._log.durable_high_watermark, self._known_until))
        try:
            await self._loop.run_in_executor(self._workers, self._snapshots.write_first, table)
        except LogStoreError as error:
            log.warning("%s: no transaction can begin: %s", self._log, error)
            return Code.NOT_ENOUGH_REPLICAS
        return Code.NONE

    @property
    def _known_until(self) -> int:
        """Up to where the table knows the offset of every batch."""
        assert self._log is not None
        return self._acked_until if self._unacked else self._log.durable_high_watermark

    def _begin(self, append: Append, offset: int) -> None:
        assert self._producers is not None
        batch = append.batch
        self._producers.transactions.open[batch.producer_id] = OpenTransaction(batch.producer_epoch, offset)

    def _submit_apart(self, partition: PartitionLog, append: Append) -> None:
        """In a worker thread. Nobody else appends meanwhile, so the order is kept."""
        outcome: tuple[Receipt, Future[Receipt]] | LogStoreError
        try:
            outcome = _begin_batches(partition, append)
        except LogStoreError as error:
            outcome = error
        self._call(self._back, partition, append, outcome)

    def _back(
        self,
        partition: PartitionLog,
        append: Append,
        outcome: tuple[Receipt, Future[Receipt]] | LogStoreError,
    ) -> None:
        self._busy = False
        if isinstance(outcome, LogStoreError) and append.opens and self._producers is not None:
            self._producers.transactions.open.pop(append.batch.producer_id, None)
        if isinstance(outcome, BufferFull) and partition is self._log:
            self._wait_for_room(append)
            return
        if isinstance(outcome, LogStoreError):
            self._refused(partition, append, outcome)
        else:
            self._submitted(partition, append, *outcome)
        self.pump()

    # What became of an append. `partition` is the log that it was handed to: by now the queue may stand in front of
    # another one, opened since, and an old one's failure says nothing about that.

    def _submitted(
        self, partition: PartitionLog, append: Append, receipt: Receipt, future: Future[Receipt]
    ) -> None:
        if self._producers is not None and partition is self._log:
            self._unacked.append(append)
            if append.is_idempotent:
                self._producers.remember(append.batch, None, future)
            if append.opens:
                self._begin(append, receipt.offset)
            if append.marker is not None:
                self._no_more_of(append.marker.producer_id)
        if future.done():
            self._acked(partition, append, future)
        else:
            future.add_done_callback(lambda done: self._call(self._acked, partition, append, done))

    def _refused(self, partition: PartitionLog, append: Append, error: LogStoreError) -> None:
        append.answer(_code_of(error, append), -1)
        if isinstance(error, InvalidRecord):
            log.info("%s: a record set was refused: %s", partition, error)
        elif partition is self._log:
            self._on_lost(error)

    def _acked(self, partition: PartitionLog, append: Append, done: Future[Receipt]) -> None:
        error = Closed(f"{partition} was closed") if done.cancelled() else done.exception()
        if error is not None:
            append.answer(_code_of(error, append), -1)
            if partition is self._log:
                self._on_lost(error)
            return
        receipt = done.result()
        if append.marker is not None:
            self._ended(partition, append.marker, receipt.offset)
        append.answer(Code.NONE, receipt.offset)
        if self._producers is None or self._log is not partition:
            return
        if append.is_idempotent:
            self._producers.stored(append.batch, receipt.offset)
        append.end = receipt.last_offset + 1
        while self._unacked and self._unacked[0].end is not None:
            self._acked_until = self._unacked[0].end
            self._unacked.popleft()
        if self._snapshots.grew(len(append.records)):
            # Others of the same upload are durable before we learn of it, and the table does not know where they lie.
            self._producers.transactions.forget_below(partition.low_watermark)
            table = self._producers.dump(min(partition.durable_high_watermark, self._acked_until))
            self._workers.submit(self._snapshots.write, table)

    def _no_more_of(self, pid: int) -> None:
        """A marker is in the log: what still comes of that transaction comes too late."""
        self._ending[pid] = self._ending.get(pid, 0) + 1
        self._verified.pop(pid, None)
        if pid in self._verifying:
            self._verifying[pid].is_void = True

    def _ended(self, partition: PartitionLog, marker: Marker, offset: int) -> None:
        """A marker is durable."""
        if self._producers is None or self._log is not partition:
            return
        left = self._ending.pop(marker.producer_id, 0) - 1
        if left > 0:
            self._ending[marker.producer_id] = left
        self._producers.transactions.ended(marker, offset)
        self._on_stable()

    def _answer_duplicate(self, append: Append, known: Remembered) -> None:
        if known.offset is not None:
            append.answer(Code.NONE, known.offset)
        else:
            known.pending.add_done_callback(lambda done: self._call(self._answer_as, append, done))

    def _answer_as(self, append: Append, first: Future[Receipt]) -> None:
        """The first attempt of a retry has ended."""
        if first.cancelled() or first.exception() is not None:
            append.answer(Code.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            append.answer(Code.NONE, first.result().offset)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run on the loop, from any thread. A commit acks many appends at once: they are one wake-up.

        After the loop has been closed nobody is left to tell.
        """
        self._completions.append((function, arguments))
        if not self._notified and not self._loop.is_closed():
            self._notified = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._notified = False  # before looking: what comes from now on is a wake-up of its own
        try:
            while self._completions:
                function, arguments = self._completions.popleft()
                function(*arguments)
        finally:
            if self._completions:  # one of them failed: that is no reason for the others to wait
                self._loop.call_soon(self._drain)


def _code_of(error: BaseException, append: Append) -> Code:
    """A topic that was deleted has taken along what was known of its producers. If that were said to librdkafka only when
    it tries again, in a topic that was recreated, it would give up for good.
    """
    if isinstance(error, UnknownTopic) and append.is_idempotent and append.batch.base_sequence > 0:
        return Code.UNKNOWN_PRODUCER_ID
    return codes.of_produce(error)


def _begin_batches(partition: PartitionLog, append: Append) -> tuple[Receipt, Future[Receipt]]:
    return partition._internal.begin_batches(
        append.records, ack=append.ack, may_be_control=append.marker is not None
    )


def _refuse(batches: list[BatchInfo], verify: Verify | None) -> Code | None:
    if not batches:
        return Code.INVALID_RECORD
    if any(batch.is_transactional and (verify is None or batch.producer_id < 0) for batch in batches):
        return Code.INVALID_RECORD  # outside of a transaction
    if len(batches) > 1 and any(batch.producer_id >= 0 for batch in batches):
        return Code.INVALID_RECORD  # as in Kafka: a sequence number stands for one batch
    return None


def _is_heavy(records: memoryview, batches: list[BatchInfo]) -> bool:
    """Only unpacking tells how much a small compressed batch holds: it is tried, up to where it would take too long."""
    packed = [batch for batch in batches if batch.codec_id]
    if not packed:
        return False
    if len(records) >= APART_FROM_BYTES:
        return True
    room = UNPACKED_MAX_BYTES
    for batch in packed:
        if room <= 0:
            return True
        area = records[batch.position + HEADER_SIZE : batch.position + batch.size]
        try:
            room -= len(decompress(batch.codec_id, area, max_size=room))
        except FormatError:  # too much, or damaged: the worker finds out which
            return True
    return False
