"""What a writing job keeps beside the log until it is committed, and where.

    spark/‹app›/ledger                           which version of the app is stored, and the plan of one under way
    spark/‹app›/staged/‹version›/‹time›-‹id›     record batches that a task wrote; nobody reads them as part of the log

`‹app›` is a stream's query, an application that numbers its writes (`txnAppId`), or a single job. A task attempt
writes under a name that no other attempt has, so a retry or a speculative copy disturbs nobody; only what a commit
names is published.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from logstore.objects import ObjectStore
from logstore.paths import SPARK_PREFIX

MAX_VERSION = 2**63 - 1
"""Of a transaction: names of staged objects have room for it, and sort by it."""


class StagedBatch(NamedTuple):
    """One encoded batch: what an index row will say of it."""

    size: int
    count: int  # type: ignore[assignment]
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Part:
    """The batches for one partition in one staged object, back to back from `position` on.

    The first of them carries `producer_id` and `base_sequence`, which no other part has: so the log itself can tell whether
    it holds them.
    """

    topic: str
    partition: int
    key: str
    position: int
    producer_id: int
    base_sequence: int
    batches: tuple[StagedBatch, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"batches": [list(batch) for batch in self.batches]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Part:
        return cls(**fields | {"batches": tuple(StagedBatch(*batch) for batch in fields["batches"])})


@dataclass(frozen=True, slots=True)
class Transaction:
    """Whose write this is: version 8 of app A is stored once, however often it is tried.

    `run` is new each time a stream's query is started; it is empty where nobody says which run this is.
    """

    app: str
    version: int
    run: str = ""

    @property
    def home(self) -> str:
        """The app's folder: its name may hold anything, so its digest stands for it."""
        return f"{SPARK_PREFIX}{hashlib.blake2b(self.app.encode(), digest_size=16).hexdigest()}/"

    @property
    def ledger(self) -> str:
        return self.home + "ledger"

    @property
    def staged(self) -> str:
        return f"{self.home}staged/{self.version:020d}/"

    def producer_id(self, task: int) -> int:
        """Of the batches that a task writes, whichever attempt of it: a number that Kafka's producers would not get."""
        return self._digest(f"task {task}", 8) >> 1 | 1 << 62

    def segment_id(self, topic: str, incarnation: str, partition: int, number: int) -> bytes:
        """Of the `number`-th segment that this transaction adds to a partition: every attempt to commit has the same."""
        return self._digest(f"{topic}/{incarnation}/{partition}/{number}", 16).to_bytes(16, "big")

    def _digest(self, what: str, size: int) -> int:
        name = f"{self.app}\0{self.version}\0{what}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=size).digest(), "big")


def sweep(store: ObjectStore, transaction: Transaction) -> None:
    """Remove what was staged for this version and for older ones: published or given up, nobody needs it."""
    last = transaction.staged
    for info in list(store.list(transaction.home + "staged/")):
        if info.key < last or info.key.startswith(last):
            store.delete(info.key)
