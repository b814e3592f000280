"""What a writing job keeps beside the log until it is committed, and where.

    spark/‹app›/ledger                           which version of the app is stored, and the plan of one under way
    spark/‹app›/staged/‹version›/‹time›-‹id›     record batches that a task wrote; nobody reads them as part of the log

`‹app›` is a stream's query, an application that numbers its writes (`txnAppId`), or a single job. A task attempt
writes under a name that no other attempt has, so a retry or a speculative copy disturbs nobody; only what a commit
names is published.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from logstore.objects import ObjectStore
from logstore.spark.options.transaction import Transaction


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


def sweep(store: ObjectStore, transaction: Transaction) -> None:
    """Remove what was staged for this version and for older ones: published or given up, nobody needs it."""
    last = transaction.staged
    for info in list(store.list(transaction.home + "staged/")):
        if info.key < last or info.key.startswith(last):
            store.delete(info.key)
