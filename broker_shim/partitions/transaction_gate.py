"""Which transactional batches a partition takes: those of transactions whose coordinator says that they go on.

A producer's first batch is taken only after its coordinator has said that the partition is part of it (KIP-890):
one that comes late, after the end, would open a transaction that nobody ends. From the moment a marker is handed to the log
nothing more of its transaction is taken, and nothing of the next one unless the coordinator is asked again. A marker that
comes before that one is durable waits for it: it may be the same one again, and would be taken for the next one's end.

A coordinator of this broker, in the same lane, may have that in memory only. Then it says so with a `Companion`: the first
batch is stored together with the coordinator's record, both or none, and so is what follows it until that is decided.

Before the first transactional batch ever, a snapshot is in the store, by which readers know that there is something to
look for (`producer_recovery`). Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker_shim.partitions.together import Part
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.transactions import OpenTransaction, Transactions

log = logging.getLogger(__name__)


class Companion(Protocol):
    """The record that a partition is part of a transaction. It must be stored before the first batch there is."""

    def part(self) -> Part | None:
        """To be stored together with the batch. None if there is no way now: ask again in a moment."""

    async def write(self) -> Code:
        """Store it alone, first: where they cannot be stored together."""


Verify = Callable[[int, int], Code | Companion | Coroutine[Any, Any, Code]]
"""Is the partition part of the transaction that this producer has open in this epoch? A companion: yes, and the first batch
goes along with it."""


class Guarded(Protocol):
    """A transactional batch on its way into the log. `opens`: it is the first of its transaction."""

    @property
    def batch(self) -> BatchInfo: ...
    @property
    def verify(self) -> Verify | None: ...
    @property
    def answer(self) -> Callable[[Code, int], None]: ...

    abandoned: bool
    opens: bool
    companion: Companion | None


@dataclass(slots=True)
class _Verification:
    """Appends of one producer that wait for its coordinator. `is_void`: a marker came meanwhile, so ask again."""

    waiting: deque[Any] = field(default_factory=deque)
    is_void: bool = False


class TransactionGate:
    """`go_on`: an append that has waited here takes its turn. `refuse`: says no to one, for what is remembered here.
    `prepare`: writes the snapshot, if there is none; it says what the producer is told."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        go_on: Callable[[Any], None],
        refuse: Callable[[Any, Code], None],
        is_prepared: Callable[[], bool],
        prepare: Callable[[], Coroutine[Any, Any, Code]],
    ) -> None:
        self._loop = loop
        self._go_on = go_on
        self._refuse = refuse
        self._is_prepared = is_prepared
        self._prepare = prepare
        self._verified: dict[int, int] = {}  # the epochs in which producers may begin a transaction here
        self._verifying: dict[int, _Verification] = {}
        self._opening: dict[int, Companion] = {}  # of producers whose first batch is not durable yet
        self.beginning: set[int] = set()
        """Producers that have a transaction open here whose first batch is not known to be durable."""
        self._ending: dict[int, deque[Any]] = {}  # of producers whose marker is on its way: those behind it
        self._tasks: set[asyncio.Task[None]] = set()

    def holds(self, append: Guarded) -> bool:
        """Whether it waits behind others of its producer that wait for its coordinator. Asked before its sequence number is
        looked at: that of the batch before it is not remembered yet, and producers send several without waiting."""
        verification = self._verifying.get(append.batch.producer_id)
        if verification is None:
            return False
        verification.waiting.append(append)
        return True

    def is_ending(self, pid: int) -> bool:
        """Whether a marker of that producer is on its way."""
        return pid in self._ending

    def holds_marker(self, append: Any) -> bool:
        """Whether it waits for another marker of its producer: only when that is durable is known what this one ends."""
        waiting = self._ending.get(append.marker.producer_id)
        if waiting is None:
            return False
        waiting.append(append)
        return True

    def may_pass(self, append: Guarded, transactions: Transactions) -> bool:
        """Whether it goes into the log now, unless it `holds` it. If not, it was answered, or waits for its coordinator."""
        pid, epoch = append.batch.producer_id, append.batch.producer_epoch
        is_open = transactions.open.get(pid)
        if is_open is not None and pid not in self._ending:
            if is_open.epoch == epoch:
                append.companion = self._opening.get(pid)
                return True
            self._refuse(append, Code.INVALID_TXN_STATE)
            return False
        assert append.verify is not None
        code = Code.NONE if self._verified.get(pid) == epoch else append.verify(pid, epoch)
        if self._is_prepared():
            if code is Code.NONE:
                self._verified[pid] = epoch
                append.opens = True
                return True
            if not isinstance(code, Code | Coroutine):
                append.companion = self._opening[pid] = code
                append.opens = True
                return True
        self._begin_to_verify(append, code)
        return False

    def store_first(self, append: Guarded) -> None:
        """It cannot be stored together with its companion: that is stored first, and the append goes on then."""
        assert append.companion is not None
        pid, companion = append.batch.producer_id, append.companion
        append.opens, append.companion = False, None
        self._opening.pop(pid, None)
        self._begin_to_verify(append, companion.write())

    def _begin_to_verify(self, append: Guarded, answer: Code | Companion | Coroutine[Any, Any, Code]) -> None:
        verification = self._verifying[append.batch.producer_id] = _Verification(deque([append]))
        task = self._loop.create_task(self._verify(append, answer, verification))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _verify(
        self,
        append: Guarded,
        answer: Code | Companion | Coroutine[Any, Any, Code],
        verification: _Verification,
    ) -> None:
        """Ask the coordinator, and let those go on that wait for it."""
        pid, epoch = append.batch.producer_id, append.batch.producer_epoch
        assert append.verify is not None
        stands = True
        try:
            code, stands = await _answered(answer)
            if code is Code.NONE and not self._is_prepared():
                code = await self._prepare()
            while verification.is_void and code is Code.NONE:
                verification.is_void = False
                code, stands = await _answered(append.verify(pid, epoch))
        except Exception:
            log.exception("producer %d could not be verified", pid)
            code = Code.NOT_ENOUGH_REPLICAS
        if self._verifying.get(pid) is not verification:
            return  # the partition was lost: whoever waited was answered, and the transaction may end elsewhere
        del self._verifying[pid]
        if code is Code.NONE and stands:
            self._verified[pid] = epoch
        for each in verification.waiting:
            if code is not Code.NONE and each.batch.producer_epoch == epoch:
                each.answer(code, -1)
            elif not each.abandoned:
                self._go_on(each)

    def begin(self, batch: BatchInfo, offset: int, transactions: Transactions) -> None:
        """The first batch of a transaction lies at `offset`, or not below it. Once for a batch that is on its way, and once
        more when it is durable."""
        transactions.open[batch.producer_id] = OpenTransaction(batch.producer_epoch, offset)
        self.beginning.add(batch.producer_id)

    def stored(self, pid: int) -> None:
        """The first batch is durable, and its companion."""
        self._opening.pop(pid, None)
        self.beginning.discard(pid)

    def did_not_begin(self, pid: int, transactions: Transactions) -> None:
        """The first batch is not on its way after all."""
        transactions.open.pop(pid, None)
        self.beginning.discard(pid)

    def no_more_of(self, pid: int) -> None:
        """A marker is in the log: what still comes of that transaction comes too late."""
        self._ending[pid] = deque()
        self._verified.pop(pid, None)
        if pid in self._verifying:
            self._verifying[pid].is_void = True

    def ended(self, pid: int) -> None:
        """A marker is durable, and what it ended is known; or it is not stored, and never will be."""
        for behind in self._ending.pop(pid, ()):
            self._go_on(behind)

    def close(self) -> list[Any]:
        """The partition is no longer ours: whoever waits here has to be answered, and what was verified says nothing."""
        self._verified.clear()
        self._opening.clear()
        self.beginning.clear()
        waiting = [append for behind in self._ending.values() for append in behind]
        self._ending.clear()
        for verification in self._verifying.values():
            waiting += verification.waiting
        self._verifying.clear()
        return waiting


async def _answered(answer: Code | Companion | Coroutine[Any, Any, Code]) -> tuple[Code, bool]:
    """What a coordinator said, and whether the record of it is stored; if not, it is asked again when the batch goes."""
    if isinstance(answer, Code):
        return answer, True
    if isinstance(answer, Coroutine):
        return await answer, True
    return Code.NONE, False
