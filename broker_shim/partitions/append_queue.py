"""What producers send to one partition, in order, on its way into the log.

An append goes straight to the log if nothing is in front of it. It waits while the partition is being taken, while
the write buffer is full (an upload frees some of it), and while a large compressed batch in front of it is being
checked in a worker thread: unpacking it on the event loop would hold up every other client.

Transactions pass here, too, in the same order: their batches through a gate (`transaction_gate`), markers as they are.

Each append is answered exactly once: with its offset at the ack level asked for, with that of the first attempt if it is
a retry (`producers`), or with a code that says what to do. Event loop only, except `_submit_apart` and `_call`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

from broker_shim.partitions.append import (
    APART_FROM_BYTES,
    Answer,
    Append,
    code_of,
    is_too_heavy,
    nobody,
    refusal_of,
    rewrite_append,
)
from broker_shim.partitions.producer_recovery import Snapshots
from broker_shim.partitions.producers import ProducerTable, Remembered
from broker_shim.partitions.together import NotStored, Part, append_together
from broker_shim.partitions.topic_rules import TopicRules
from broker_shim.partitions.transaction_gate import TransactionGate, Verify
from broker_shim.wire.codes import Code
from logstore.config import Ack
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import checked
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    BufferFull,
    Closed,
    InvalidRecord,
    KeyRequired,
    LogStoreError,
    NotAtomic,
    RecordTooLarge,
)
from logstore.format.batches.batch import read_info, split
from logstore.format.batches.markers import Marker, encode_marker
from logstore.format.batches.transactions import Transactions
from logstore.format.errors import FormatError

log = logging.getLogger(__name__)
ROOM_RETRY_S = 0.02


class AppendQueue:
    """`open` with a table of producers when the partition is ours; `close` when it no longer is."""

    def __init__(
        self,
        snapshots: Snapshots,
        rules: TopicRules,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        on_lost: Callable[[BaseException], None],
        on_stable: Callable[[], None],
        is_still_ours: Callable[[], Coroutine[Any, Any, bool]],
    ) -> None:
        """`on_stable`: the last stable offset may have moved. `is_still_ours`: asks the store."""
        self._on_stable = on_stable
        self._is_still_ours = is_still_ours
        self._refusals: list[tuple[Append, Code]] = []
        self._confirming: asyncio.Task[None] | None = None
        self._gate = TransactionGate(
            loop, self._in_turn, self.refuse, lambda: snapshots.stands, self._write_first_snapshot
        )
        self._log: PartitionLog | None = None
        self._rules = rules
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
        waiting, self._waiting = self._waiting, deque()
        waiting.extend(self._gate.close())
        for append in waiting:
            append.answer(code_of(error, append), -1)

    def end(self, marker: Marker, now_ms: int, answer: Answer) -> Append:
        """Append the marker of a transaction, now or in its turn. `answer` as for `add`; its ack is durable."""
        raw = memoryview(encode_marker(marker, now_ms=now_ms))
        append = Append(raw, read_info(raw), False, "durable", answer, marker=marker)
        self._in_turn(append)
        return append

    def part_of_end(self, marker: Marker, now_ms: int) -> Part | Code | None:
        """The marker of a transaction, to be stored together with others, now. None if it would have to wait its turn; NONE
        if it is stored."""
        if self._waiting or self._busy or self._producers is None or self._log is None:
            return None
        if self._producers.transactions.is_stale(marker):
            return Code.NONE
        if self._gate.is_ending(marker.producer_id):
            return None
        log, raw = self._log, memoryview(encode_marker(marker, now_ms=now_ms))
        append = Append(raw, read_info(raw), False, "durable", nobody, marker=marker)
        return Part(log, checked(log, raw, control=True), lambda future: self._submitted(log, append, future))

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
        rules = self._rules
        refusal = refusal_of(batches, rules.max_bytes, verify)
        if refusal is not None:
            answer(refusal, -1)
            return None
        append = Append(
            records, batches[0], is_too_heavy(records, batches), ack, answer, rules.rewrite, verify=verify
        )
        if rules.rewrite is not None and len(records) >= APART_FROM_BYTES:
            append.is_heavy = True
        if append.batch.is_transactional:
            # What is decided is durable: so is what it is about, before.
            append.ack = "durable"
        self._in_turn(append)
        return append

    def refuse(self, append: Append, code: Code) -> None:
        """Say no, for what is remembered here. A refusal ends a transaction for its producer: it is said only after a look
        at the store. If somebody has taken the partition, and nothing was written since, what is remembered is past."""
        if not append.batch.is_transactional:
            append.answer(code, -1)
            return
        self._refusals.append((append, code))
        if self._confirming is None:
            self._confirming = self._loop.create_task(self._confirm())

    async def _confirm(self) -> None:
        """One look for all that wait for one."""
        try:
            while self._refusals:
                refusals, self._refusals = self._refusals, []
                try:
                    is_ours = await self._is_still_ours()
                except (LogStoreError, OSError) as error:
                    log.info("%s: nobody knows whether it is still ours: %s", self._log, error)
                    is_ours = False
                for append, code in refusals:
                    append.answer(code if is_ours else Code.NOT_LEADER_OR_FOLLOWER, -1)
        finally:
            self._confirming = None

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
        if append.marker is None and append.batch.is_transactional and self._gate.holds(append):
            return True
        if append.is_idempotent:
            verdict = self._producers.check(append.batch)
            if verdict.code is not Code.NONE:
                self.refuse(append, verdict.code)
                return True
            if verdict.duplicate is not None:
                self._answer_duplicate(append, verdict.duplicate)
                return True
        if append.marker is not None:
            if self._producers.transactions.is_stale(append.marker):
                append.answer(Code.NONE, -1)
                return True
            if self._gate.holds_marker(append):
                return True
        elif append.batch.is_transactional and not self._gate.may_pass(append, self._producers.transactions):
            return True
        if append.opens:
            # Where it will lie is known with its ack; not below what is durable now.
            self._gate.begin(append.batch, self._log.durable_high_watermark, self._producers.transactions)
        if append.is_heavy:
            self._busy = True
            self._workers.submit(self._submit_apart, self._log, append)
            return True
        try:
            if append.companion is not None:
                self._check(self._log, append)
                return self._submit_together(self._log, append)
            self._submitted(self._log, append, self._hand_over(self._log, append))
        except BufferFull:
            self._did_not_begin(append)
            return False
        except LogStoreError as error:
            self._did_not_begin(append)
            self._refused(self._log, append, error)
        return True

    def _submit_together(self, partition: PartitionLog, append: Append) -> bool:
        """With its companion. False if there is no room now. Raises `LogStoreError`."""
        assert append.companion is not None
        assert append.checked is not None
        companion = append.companion.part()
        if companion is None:
            self._did_not_begin(append)
            return False
        mine = Part(partition, append.checked, lambda future: self._submitted(partition, append, future))
        try:
            append_together([companion, mine])
        except BufferFull:
            self._did_not_begin(append)
            return False
        except (NotAtomic, RecordTooLarge):
            self._did_not_begin(append)
            self._gate.store_first(append)
        return True

    def _check(self, partition: PartitionLog, append: Append) -> None:
        if append.checked is None:
            if append.rewrite is not None:
                rewrite_append(append, self._rules.max_bytes, int(time.time() * 1000))
            append.checked = checked(partition, append.records)

    def _did_not_begin(self, append: Append) -> None:
        if append.opens and self._producers is not None:
            append.opens = False
            self._gate.did_not_begin(append.batch.producer_id, self._producers.transactions)

    async def _write_first_snapshot(self) -> Code:
        """Before the first transactional batch."""
        if self._log is None or self._producers is None:
            return Code.NOT_LEADER_OR_FOLLOWER
        durable = self._log.durable_high_watermark
        table = self._producers.dump(min(durable, self._acked_until) if self._unacked else durable)
        try:
            await self._loop.run_in_executor(self._workers, self._snapshots.write_first, table)
        except LogStoreError as error:
            log.warning("%s: no transaction can begin: %s", self._log, error)
            return Code.NOT_ENOUGH_REPLICAS
        return Code.NONE

    def _hand_over(self, partition: PartitionLog, append: Append) -> Future[Receipt]:
        if append.rewrite is not None:
            rewrite_append(append, self._rules.max_bytes, int(time.time() * 1000))
        return partition._internal.submit_batches(
            append.records, ack=append.ack, control=append.marker is not None
        )

    def _submit_apart(self, partition: PartitionLog, append: Append) -> None:
        """In a worker thread. Nobody else appends meanwhile, so the order is kept."""
        outcome: Future[Receipt] | LogStoreError | None = None
        try:
            if append.companion is not None:
                self._check(partition, append)
            else:
                outcome = self._hand_over(partition, append)
        except LogStoreError as error:
            outcome = error
        self._call(self._back, partition, append, outcome)

    def _back(
        self,
        partition: PartitionLog,
        append: Append,
        outcome: Future[Receipt] | LogStoreError | None,
    ) -> None:
        """None: it was checked, and goes with its companion now."""
        self._busy = False
        if outcome is None:
            if partition is not self._log:
                append.answer(Code.NOT_LEADER_OR_FOLLOWER, -1)
                self.pump()
                return
            try:
                if not self._submit_together(partition, append):
                    self._wait_for_room(append)
                    return
            except LogStoreError as error:
                outcome = error
            else:
                self.pump()
                return
        if isinstance(outcome, LogStoreError) and partition is self._log:
            self._did_not_begin(append)
        if isinstance(outcome, BufferFull) and partition is self._log:
            self._wait_for_room(append)
            return
        if isinstance(outcome, LogStoreError):
            self._refused(partition, append, outcome)
        else:
            self._submitted(partition, append, outcome)
        self.pump()

    # What became of an append. `partition` is the log that it was handed to: by now the queue may stand in front of
    # another one, opened since, and an old one's failure says nothing about that.

    def _submitted(self, partition: PartitionLog, append: Append, future: Future[Receipt]) -> None:
        if self._producers is not None and partition is self._log:
            self._unacked.append(append)
            if append.is_idempotent:
                self._producers.remember(append.batch, None, future)
            if append.marker is not None:
                self._gate.no_more_of(append.marker.producer_id)
        if future.done():
            self._acked(partition, append, future)
        else:
            future.add_done_callback(lambda done: self._call(self._acked, partition, append, done))

    def _refused(self, partition: PartitionLog, append: Append, error: LogStoreError) -> None:
        wrong = error.places if isinstance(error, KeyRequired) else ()
        append.answer(code_of(error, append), -1, -1, wrong)
        if isinstance(error, InvalidRecord):
            log.info("%s: a record set was refused: %s", partition, error)
        elif partition is self._log:
            self._on_lost(error)

    def _acked(self, partition: PartitionLog, append: Append, done: Future[Receipt]) -> None:
        error = Closed(f"{partition} was closed") if done.cancelled() else done.exception()
        if isinstance(error, NotStored) and partition is self._log:
            self._withdrawn(append)
            return
        if error is not None:
            append.answer(code_of(error, append), -1)
            if partition is self._log:
                self._on_lost(error)
            return
        receipt = done.result()
        if self._producers is not None and self._log is partition:
            if append.opens:
                self._gate.begin(append.batch, receipt.offset, self._producers.transactions)
                self._gate.stored(append.batch.producer_id)
            if append.marker is not None:
                self._producers.transactions.ended(append.marker, receipt.offset)
                self._gate.ended(append.marker.producer_id)
                self._on_stable()
        append.answer(Code.NONE, receipt.offset, append.append_ms)
        if self._producers is None or self._log is not partition:
            return
        if append.is_idempotent:
            self._producers.stored(append.batch, receipt.offset)
        append.end = receipt.last_offset + 1
        self._let_acked_go()
        if self._snapshots.grew(len(append.records)):
            # Others of the same upload are durable before we learn of it, and the table does not know where they lie.
            self._producers.transactions.forget_below(partition.low_watermark)
            durable = min(partition.durable_high_watermark, self._acked_until)
            table = self._producers.dump(durable, self._gate.beginning)
            self._workers.submit(self._snapshots.write, table)

    def _withdrawn(self, append: Append) -> None:
        """It is not stored, for the sake of another log that had a part of it. All is as if it had not come."""
        assert self._producers is not None
        if append.marker is not None:
            self._gate.ended(append.marker.producer_id)
        else:
            self._did_not_begin(append)
            self._gate.stored(append.batch.producer_id)
            self._producers.forget(append.batch)
        append.answer(Code.NOT_LEADER_OR_FOLLOWER, -1)
        append.end = self._acked_until
        self._let_acked_go()

    def _let_acked_go(self) -> None:
        while self._unacked and self._unacked[0].end is not None:
            self._acked_until = max(self._acked_until, self._unacked[0].end)
            self._unacked.popleft()

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
