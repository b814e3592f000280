"""One partition of `__transaction_state`, and the transactional ids that live in it.

A change counts when its record is durable; until then nobody else may change that id (CONCURRENT_TRANSACTIONS, which clients
try again). A decision is carried out by a task of its own: markers to every partition, as often as it takes, then the record
that all of them stand. That last record is not waited for: without it, whoever loads the shard sends the markers again, and
partitions know those that they have.

Runs on the event loop; loading runs in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.state_log import StateLog
from broker_shim.transactions.transaction import Decision, State, Transaction, complete, time_out
from broker_shim.transactions.transaction_records import decode, decode_key, encode, encode_key
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest
from logstore.format.batches.markers import Marker

log = logging.getLogger(__name__)
LOOK_AT_TIMES_S = 0.5
MARKER_PATIENCE_S = 1.0
"""How long a request waits for the markers of the transaction before it, rather than be told to come again."""
WRITE_PATIENCE_S = 10.0
SendMarkers = Callable[[Marker, frozenset[tuple[str, int]]], Coroutine[Any, Any, None]]
"""Returns when the marker stands in every partition."""


class TransactionShard:
    """`transactions` by transactional id: what is durable."""

    def __init__(
        self,
        hosted: HostedPartition,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        send_markers: SendMarkers,
    ) -> None:
        self.log = StateLog(hosted, loop, nothing=encode_key(""))
        self.transactions: dict[str, Transaction] = {}
        self._now_ms = now_ms
        self._loop = loop
        self._send_markers = send_markers
        self._writing: set[str] = set()
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
        for name in list(self.transactions):
            self._look_after(name)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    async def change(
        self, name: str, decide: Callable[[Transaction | None], Decision]
    ) -> tuple[Code, Transaction | None]:
        """Decide, write it, and say what the producer is told, with the transaction as it is then."""
        decision = decide(self.transactions.get(name))
        if decision.code is Code.CONCURRENT_TRANSACTIONS and name in self._finishing:
            await asyncio.wait([self._finishing[name]], timeout=MARKER_PATIENCE_S)
            decision = decide(self.transactions.get(name))
        if decision.next is None:
            return decision.code, self.transactions.get(name)
        if name in self._writing or self._closed:
            return Code.NOT_COORDINATOR if self._closed else Code.CONCURRENT_TRANSACTIONS, None
        done: asyncio.Future[Code] = self._loop.create_future()
        self._write(name, decision.next, lambda code: None if done.done() else done.set_result(code))
        try:
            code = await asyncio.wait_for(done, WRITE_PATIENCE_S)
        except TimeoutError:
            code = Code.COORDINATOR_NOT_AVAILABLE
        return (decision.code if code is Code.NONE else code), decision.next

    def _write(self, name: str, changed: Transaction, done: Callable[[Code], None]) -> None:
        def written(code: Code) -> None:
            self._writing.discard(name)
            if code is Code.NONE:
                self.transactions[name] = changed
                self._look_after(name)
            done(code)

        self._writing.add(name)
        self.log.write([(encode_key(name), encode(changed))], written)

    def _look_after(self, name: str) -> None:
        """Carry a decision out; see that what goes on ends in time."""
        state = self.transactions[name].state
        if self._closed:
            return
        if state.is_decided and name not in self._finishing:
            task = self._finishing[name] = self._loop.create_task(self._finish(name, self.transactions[name]))
            task.add_done_callback(lambda _: self._finishing.pop(name, None))
        elif state is State.ONGOING and self._timer is None:
            self._timer = self._loop.call_later(LOOK_AT_TIMES_S, self._look_at_times)

    async def _finish(self, name: str, decided: Transaction) -> None:
        await self._send_markers(decided.marker(self.log.epoch), decided.places)
        done = self.transactions[name] = complete(decided, self._now_ms())
        self.log.write([(encode_key(name), encode(done))], _ignore)

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
                self._write(name, aborted, _ignore)

    def expire(self, retention_ms: int) -> None:
        """Ids that were not used for so long are forgotten."""
        oldest = self._now_ms() - retention_ms
        idle = (State.EMPTY, State.COMPLETE_ABORT, State.COMPLETE_COMMIT)
        gone = [
            name
            for name, each in self.transactions.items()
            if each.state in idle and each.changed_at_ms < oldest and name not in self._writing
        ]
        for name in gone:
            del self.transactions[name]
        if gone:
            self.log.write([(encode_key(name), None) for name in gone], _ignore)

    def close(self, error: Code) -> None:
        """Another coordinator finishes what is decided, or this broker does when it starts again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._finishing.values()):
            task.cancel()
        self.log.close(error)


def _ignore(code: Code) -> None:
    """Nobody waits for it."""
