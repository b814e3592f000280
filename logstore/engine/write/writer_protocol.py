"""What a partition asks of the writer that `append` uses, exclusive or shared."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from typing import ClassVar

from logstore.config import Ack
from logstore.engine.chain.chain import Chain
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import Receipt
from logstore.engine.runtime import Runtime
from logstore.engine.write.lifecycle import WriterLifecycle, WriterStats
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.record import Record


class Writer(WriterLifecycle):
    """`add_…` give None if the append is acked already, else a future for its ack; the receipt is complete with the ack.

    `is_alone`: nobody else can append while this writer is open, so nobody needs to poll the store. `claim_committed`: of
    one that was opened ahead of its claim; until then what it is given waits.
    """

    __slots__ = ("claim_committed",)

    is_alone: ClassVar[bool]

    def __init__(self, runtime: Runtime, chain: Chain, state: PartitionState, stats: WriterStats) -> None:
        super().__init__(runtime, chain, state, stats)
        self.claim_committed: Future[None] | None = None

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """The offset after everything that was appended here: where the next record goes, if nobody else comes first."""

    def make_room(self, charged: int, deadline: float) -> None:
        """Take as much from the budget, waiting for it up to the deadline. Without the lock."""
        runtime = self._runtime
        if runtime.budget.try_take(charged):
            return
        with runtime.budget.pressing():  # memory pressure: nobody's flush waits for its interval
            runtime.task_pool.all_now()
            runtime.budget.take(charged, max(0.0, deadline - runtime.clock.monotonic()))

    @abstractmethod
    def add_at_once(self, receipt: Receipt, record: Record, charged: int) -> bool:
        """Give one record its offset and a buffered ack, if that can be done without waiting for anything."""

    @abstractmethod
    def add_one(
        self, receipt: Receipt, record: Record, charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    @abstractmethod
    def add_run(
        self, receipt: Receipt, records: list[Record], charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    @abstractmethod
    def add_encoded(
        self, receipt: Receipt, batches: list[tuple[memoryview, BatchInfo]], ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    @abstractmethod
    def when_durable(self, receipt: Receipt) -> Future[Receipt] | None: ...

    @abstractmethod
    def give_up(self, waiting: Future[Receipt]) -> None: ...

    @abstractmethod
    def flush_now(self, receipt: Receipt) -> Future[Receipt] | None: ...
