"""What a partition asks of its writer, whichever kind it is."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from logstore.config import Ack
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.memory.results import Receipt
from logstore.errors import LogStoreError
from logstore.format.batch import BatchInfo
from logstore.format.record import Record


@dataclass(slots=True)
class WriterStats:
    """What `health()` shows. Written under the lock that guards its writer. `failures`: attempts in a row. `wal_error`: why
    the local disk gives no acks, while it does not."""

    commits: int = 0
    failures: int = 0
    last_error: str | None = None
    last_progress_at: float = 0.0
    wal_error: str | None = None

    def progressed(self, now: float) -> None:
        """Something was stored: earlier failures are over."""
        self.failures, self.last_error = 0, None
        self.last_progress_at = now

    def failed(self, error: Exception) -> None:
        """An attempt failed, and there will be another."""
        self.failures += 1
        self.note(error)

    def note(self, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"


class Writer(Protocol):
    """`add_…` give None if the append is acked already, else a future for its ack; the receipt is complete with the ack."""

    failed: LogStoreError | None
    unstored: LostRange | None

    @property
    def stats(self) -> WriterStats: ...

    @property
    def next_offset(self) -> int:
        """The offset after everything that was appended here: where the next record goes, if nobody else comes first."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether nobody else can append while this writer stands: then nobody needs to ask the store for news."""
        ...

    def add_at_once(self, receipt: Receipt, record: Record, charged: int) -> bool:
        """Give one record its offset and a buffered ack, if that can be done without waiting for anything."""
        ...

    def add_one(
        self, receipt: Receipt, record: Record, charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    def add_run(
        self, receipt: Receipt, records: list[Record], charged: int, ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    def add_encoded(
        self, receipt: Receipt, batches: list[tuple[memoryview, BatchInfo]], ack: Ack, deadline: float
    ) -> Future[Receipt] | None: ...

    def when_durable(self, receipt: Receipt) -> Future[Receipt] | None: ...

    def give_up(self, waiting: Future[Receipt]) -> None: ...

    def flush_now(self, receipt: Receipt) -> Future[Receipt] | None: ...

    def stop(self, error: LogStoreError) -> None: ...

    def leave_to_parent(self, error: LogStoreError) -> None:
        """After a fork, in the child: refuse everything, and take no lock."""
        ...

    def begin_close(self) -> None: ...

    def wait_closed(self, deadline: float) -> bool: ...

    def give_up_closing(self) -> None: ...

    def health(self) -> dict[str, Any]:
        """Its own lines of `PartitionLog.health()`. Called with the partition's lock held."""
        ...
