"""One partition of `__transaction_state`, and the transactional ids that live in it.

A change counts when its record is durable; until then nobody else may change that id (CONCURRENT_TRANSACTIONS, which clients
try again). A decision is carried out by a task of its own: markers to every partition, as often as it takes, then the record
that all of them are stored. That last record is not waited for: without it, whoever loads the shard sends the markers
again, and partitions know those that they have; and it is written late, because what the same producer does next mostly says
so, too. Its next transaction is recorded while the markers are on their way, with what is still to be told; the answer waits
for both.

Where the partitions of a transaction are in one lane of this broker with the log (`MarkerSender.is_one_lane`):

* that it goes on is in memory, and stored together with the first batch in each partition (`Companion`);
* how it ended is stored together with all markers: then there is nothing left to finish.

A transaction that was begun so is lost with its coordinator. The next one knows by a batch that is no part of anything:
then it records that it is aborted, so that the producer can be told.

Runs on the event loop; loading runs in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.state_log import StateLog, nobody_waits, outcome
from broker_shim.partitions.together import Part
from broker_shim.transactions import transaction
from broker_shim.transactions.marker_sender import MarkerSender
from broker_shim.transactions.transaction import Decision, Place, State, Transaction, complete, time_out
from broker_shim.transactions.transaction_records import decode, decode_key, encode, encode_key
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest

log = logging.getLogger(__name__)
LOOK_AT_TIMES_S = 0.5
MARKER_PATIENCE_S = 1.0
"""How long a request waits for the markers of the transaction before it, rather than be told to come again."""
WRITE_PATIENCE_S = 10.0
WRITE_DONE_AFTER_S = 1.0
PROVED_FOR_S = 1.0
"""How long ago the log must have been ours for a transaction to begin in memory: a coordinator that was replaced, and does
not know, finds out by the write."""
IDLE = (State.EMPTY, State.COMPLETE_ABORT, State.COMPLETE_COMMIT)


class TransactionShard:
    """`transactions` by transactional id: what is durable; of those that go on, also what will be with the next batch."""

    def __init__(
        self,
        hosted: HostedPartition,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        markers: MarkerSender,
    ) -> None:
        self.log = StateLog(hosted, loop, nothing=encode_key(""))
        self.transactions: dict[str, Transaction] = {}
        self._now_ms = now_ms
        self._loop = loop
        self._markers = markers
        self._writing: set[str] = set()
        self._in_memory: set[str] = set()
        """Whose transaction goes on, and may not be in the log as it is."""
        self._restored: set[str] = set()
        """Whose former coordinator may have known of a transaction that is not in the log, or of more of its partitions."""
        self._finishing: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def load(self) -> None:
        self.log.load()

    def restore(self) -> None:
        """What was decided and not finished is finished now."""
        for raw_key, value in self.log.latest.items():
            try:
                name = decode_key(raw_key)
                if name is not None:
                    self.transactions[name] = decode(value)
            except MalformedRequest as error:
                log.warning("%s: a record that cannot be read is left alone: %s", self.log.hosted, error)
        self._restored.update(self.transactions)
        for name in self.transactions:
            self._look_after(name)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    async def change(
        self, name: str, decide: Callable[[Transaction | None], Decision]
    ) -> tuple[Code, Transaction | None]:
        """Decide, write it, and say what the producer is told, with the transaction as it is then."""
        decision = decide(self.transactions.get(name))
        if decision.code is Code.CONCURRENT_TRANSACTIONS or (
            decision.next is not None
            and decision.next.ending is not None
            and self._is_kept_in_memory(decision.next)
        ):
            await self._is_told(name)
            decision = decide(self.transactions.get(name))
        if decision.next is None:
            return await self._said_again(name, decide)
        if name in self._writing or self._closed:
            return Code.NOT_COORDINATOR if self._closed else Code.CONCURRENT_TRANSACTIONS, None
        if decision.next.state is not State.ONGOING:
            self._restored.discard(name)
        if decision.next.ending is None and self._is_kept_in_memory(decision.next):
            self.transactions[name] = decision.next
            self._in_memory.add(name)
            self._look_after(name)
            return decision.code, decision.next
        code = await self._written(name, decision.next)
        if code is Code.NONE and decision.next.ending is not None and not await self._is_told(name):
            code = Code.CONCURRENT_TRANSACTIONS
        return (decision.code if code is Code.NONE else code), decision.next

    def _is_kept_in_memory(self, changed: Transaction) -> bool:
        """Whether that it goes on is stored with its batches."""
        return (
            changed.state is State.ONGOING
            and self._loop.time() - self.log.proved_at < PROVED_FOR_S
            and self._markers.is_one_lane(self.log, changed.places)
        )

    async def _is_told(self, name: str) -> bool:
        """Whether the markers of the transaction before stand, after a while."""
        if name in self._finishing:
            await asyncio.wait([self._finishing[name]], timeout=MARKER_PATIENCE_S)
        known = self.transactions.get(name)
        return known is None or known.to_finish is None

    async def _said_again(
        self, name: str, decide: Callable[[Transaction | None], Decision]
    ) -> tuple[Code, Transaction | None]:
        """What is answered and not written is the same after a look at the store. A coordinator that was replaced may know
        an older transaction, which ended as this one is to end, or an older life of the producer."""
        code = decide(self.transactions.get(name)).code
        if code is not Code.CONCURRENT_TRANSACTIONS:
            if not await self.log.is_still_ours():
                return Code.NOT_COORDINATOR, None
            now = decide(self.transactions.get(name))
            code = now.code if now.next is None else Code.CONCURRENT_TRANSACTIONS
        return code, self.transactions.get(name)

    def _write(self, name: str, changed: Transaction, done: Callable[[Code], None]) -> None:
        if not changed.state.is_decided or not self._end_at_once(name, changed, done):
            self._write_alone(name, changed, done)

    def _write_alone(self, name: str, changed: Transaction, done: Callable[[Code], None]) -> None:
        def written(code: Code) -> None:
            self._writing.discard(name)
            if code is Code.NONE:
                before = self.transactions.get(name)
                self.transactions[name] = changed
                self._in_memory.discard(name)
                if changed.ending is not None and (before is None or before.to_finish is None):
                    self._told(name)  # meanwhile
                self._look_after(name)
            done(code)

        self._writing.add(name)
        self.log.write([(encode_key(name), encode(changed))], written)

    def _end_at_once(self, name: str, decided: Transaction, done: Callable[[Code], None]) -> bool:
        """Store how it ended, and all markers, with one append. False if that cannot be done now."""
        ended = complete(decided, self._now_ms())

        def written(code: Code) -> None:
            self._writing.discard(name)
            if code is Code.OPERATION_NOT_ATTEMPTED and not self._closed:
                self._write_alone(name, decided, done)  # one of the partitions is another's: in two steps
                return
            if code is Code.NONE:
                self.transactions[name] = ended
                self._in_memory.discard(name)
            done(code)

        part = self.log.part([(encode_key(name), encode(ended))], written, lambda: self._writing.add(name))
        return part is not None and self._markers.at_once(
            part, decided.marker(self.log.epoch), decided.places
        )

    # ── questions of partitions ──────────────────────────────────────────────────────────────────────────

    def verify(
        self, name: str, producer_id: int, epoch: int, place: Place
    ) -> Code | InMemory | Coroutine[Any, Any, Code]:
        """May this producer write to that partition now? `InMemory`: yes, with the record of it."""
        known = self.transactions.get(name)
        code = transaction.verify(known, producer_id, epoch, place)
        is_told = known is None or known.to_finish is None
        if code is Code.NONE and name in self._in_memory and known is not None:
            return InMemory(self, name, known.started_ms)
        if code is not Code.NONE or not is_told or self.log.proved_at < self._markers.taken_at(*place):
            return self._confirmed(name, producer_id, epoch, place)
        return code

    async def _confirmed(self, name: str, producer_id: int, epoch: int, place: Place) -> Code:
        """The answer after a look at the store. A no is final for the producer; a yes must not be older than what the
        partition knows: a coordinator that was replaced would let a batch in that nobody ends."""
        if not await self._is_told(name) or not await self.log.is_still_ours():
            return Code.NOT_ENOUGH_REPLICAS
        known = self.transactions.get(name)
        code = transaction.verify(known, producer_id, epoch, place)
        is_same = known is not None and (known.producer_id, known.epoch) == (producer_id, epoch)
        if code is Code.INVALID_TXN_STATE and is_same and name in self._restored:
            return await self._refuse_lost(name)
        return code

    async def _refuse_lost(self, name: str) -> Code:
        """It was begun in the memory of a coordinator that is gone, or the partition added there. Afterwards the producer
        may ask to abort it, and goes on in a new epoch: the number of the batch that is refused is missing in this one."""
        known = self.transactions[name]
        if name in self._writing or known.to_finish is not None:
            return Code.NOT_ENOUGH_REPLICAS
        if known.state is not State.ONGOING:
            code = await self._written(name, transaction.lost(known, self._now_ms()))
            if code is not Code.NONE:
                return Code.NOT_ENOUGH_REPLICAS
            self._restored.discard(name)
        return Code.UNKNOWN_PRODUCER_ID

    async def verified(self, name: str, producer_id: int, epoch: int, place: Place) -> Code:
        """The same for a partition of another broker: what is in memory only is stored first."""
        answer = self.verify(name, producer_id, epoch, place)
        if isinstance(answer, Code):
            return answer
        return await (answer if isinstance(answer, Coroutine) else answer.write())

    def part_of(self, name: str, started_ms: int) -> Part | None:
        """That this transaction goes on, as a part of what is stored together."""
        known = self.transactions.get(name)
        if known is None or not _is(known, started_ms) or name in self._writing:
            return None
        return self.log.part([(encode_key(name), encode(known))], nobody_waits)

    async def write_ongoing(self, name: str, started_ms: int) -> Code:
        """That this transaction goes on, by itself."""
        known = self.transactions.get(name)
        if known is None or not _is(known, started_ms) or self._closed:
            return Code.INVALID_TXN_STATE
        if name in self._writing:
            return Code.NOT_ENOUGH_REPLICAS
        code = await self._written(name, known)
        return code if code is Code.NONE else Code.NOT_ENOUGH_REPLICAS

    async def _written(self, name: str, changed: Transaction) -> Code:
        """`_write`, for a task."""
        return await outcome(partial(self._write, name, changed), WRITE_PATIENCE_S)

    def _look_after(self, name: str) -> None:
        """Carry a decision out; see that what goes on ends in time."""
        known = self.transactions[name]
        if self._closed:
            return
        if known.to_finish is not None and name not in self._finishing:
            task = self._finishing[name] = self._loop.create_task(self._finish(name, known.to_finish))
            task.add_done_callback(lambda _: self._finishing.pop(name, None))
        if known.state is State.ONGOING and self._timer is None:
            self._timer = self._loop.call_later(LOOK_AT_TIMES_S, self._look_at_times)

    async def _finish(self, name: str, decided: Transaction) -> None:
        await self._markers.send(decided.marker(self.log.epoch), decided.places)
        self._told(name)

    def _told(self, name: str) -> None:
        """Every marker stands."""
        done = self.transactions[name] = complete(self.transactions[name], self._now_ms())
        self._loop.call_later(WRITE_DONE_AFTER_S, self._write_done, name, done)

    def _write_done(self, name: str, done: Transaction) -> None:
        if self.transactions.get(name) is done and name not in self._writing and not self._closed:
            self.log.write([(encode_key(name), encode(done))], nobody_waits)

    def _look_at_times(self) -> None:
        """Abort what has gone on for too long."""
        self._timer = None
        now_ms = self._now_ms()
        for name, known in self.transactions.items():
            if known.state is not State.ONGOING:
                continue
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(LOOK_AT_TIMES_S, self._look_at_times)
            aborted = time_out(known, now_ms)
            if aborted is not None and name not in self._writing:
                log.info("transaction of %s: aborted after %d ms", name, now_ms - known.started_ms)
                self._write(name, aborted, nobody_waits)

    def expire(self, retention_ms: int) -> None:
        """Ids that were not used for so long are forgotten."""
        oldest = self._now_ms() - retention_ms
        gone = [
            name
            for name, each in self.transactions.items()
            if each.state in IDLE and each.changed_at_ms < oldest and name not in self._writing
        ]
        for name in gone:
            del self.transactions[name]
        if gone:
            self.log.write([(encode_key(name), None) for name in gone], nobody_waits)

    def close(self, error: Code) -> None:
        """Another coordinator finishes what is decided, or this broker does when it starts again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._finishing.values()):
            task.cancel()
        self.log.close(error)


class InMemory:
    """A transaction that goes on, and whose record is stored together with the first batch in each partition."""

    def __init__(self, shard: TransactionShard, name: str, started_ms: int) -> None:
        self._shard = shard
        self._name = name
        self._started_ms = started_ms

    def part(self) -> Part | None:
        return self._shard.part_of(self._name, self._started_ms)

    async def write(self) -> Code:
        return await self._shard.write_ongoing(self._name, self._started_ms)


def _is(known: Transaction, started_ms: int) -> bool:
    return known.state is State.ONGOING and known.started_ms == started_ms
