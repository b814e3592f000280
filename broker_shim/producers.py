"""What a partition remembers of its idempotent producers: enough to store each batch once, in order.

For each producer id: its epoch and its last five batches (a client has at most five in flight). A batch is

* new         if its first sequence follows the last one, or starts at 0 in a new epoch; or if it lies ahead and a crash
              has taken what came between, which was acked before it was stored;
* a duplicate if first and last sequence equal those of a remembered batch: the answer is that batch's;
* refused     otherwise: OUT_OF_ORDER_SEQUENCE_NUMBER, or INVALID_PRODUCER_EPOCH for an epoch that has passed.

A batch is remembered from the moment it is handed to the log, before its ack, so that requests in flight are
checked against each other. Batches carry id, epoch and sequence, so the table can be rebuilt from the log.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker_shim.codes import Code
from logstore.format.batch import BatchInfo

REMEMBERED_BATCHES = 5
SEQUENCE_MASK = 0x7FFFFFFF
MAX_PRODUCERS = 100_000
"""For each partition. The one that was silent longest is forgotten first."""


class Remembered(NamedTuple):
    first: int
    last: int
    offset: int | None
    """The base offset, once known."""
    pending: Any
    """What a duplicate of a batch in flight has to wait for."""


@dataclass
class Producer:
    epoch: int
    batches: deque[Remembered] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class Verdict(NamedTuple):
    """NONE with `duplicate` set: answer as for that batch. NONE without: store it."""

    code: Code
    duplicate: Remembered | None = None


NEW = Verdict(Code.NONE)


class ProducerTable:
    """The producers of one partition. `complete` says that no record that they sent is missing from it."""

    def __init__(self, *, complete: bool = True) -> None:
        self._producers: dict[int, Producer] = {}
        self._complete = complete
        self._may_skip: set[int] = set()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: BatchInfo) -> Verdict:
        producer = self._producers.get(batch.producer_id)
        first = batch.base_sequence
        if producer is None:
            # Of a producer whose records were deleted, by retention or with a former topic of this name, nothing is
            # known: any sequence may be next.
            ok = first == 0 or not self._complete
            return NEW if ok else Verdict(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if batch.producer_epoch < producer.epoch:
            return Verdict(Code.INVALID_PRODUCER_EPOCH)
        if batch.producer_epoch > producer.epoch:
            return NEW if first == 0 else Verdict(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        last = last_sequence(batch)
        for known in producer.batches:
            if known.first == first and known.last == last:
                return Verdict(Code.NONE, known)
        skipped = (first - producer.batches[-1].last - 1) & SEQUENCE_MASK
        if skipped == 0 or (batch.producer_id in self._may_skip and skipped <= SEQUENCE_MASK // 2):
            return NEW
        return Verdict(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def remember(self, batch: BatchInfo, offset: int | None, pending: Any = None) -> None:
        """After `check` said NEW and the log took the batch."""
        producer = self._producers.pop(batch.producer_id, None)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = Producer(batch.producer_epoch)
        producer.batches.append(Remembered(batch.base_sequence, last_sequence(batch), offset, pending))
        self._producers[batch.producer_id] = producer
        self._may_skip.discard(batch.producer_id)
        if len(self._producers) > MAX_PRODUCERS:
            oldest = next(iter(self._producers))
            del self._producers[oldest]
            self._may_skip.discard(oldest)
            self._complete = False

    def stored(self, batch: BatchInfo, offset: int) -> None:
        """The log has said where a batch that was in flight lies."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            return
        for place, known in enumerate(producer.batches):
            if known.first == batch.base_sequence and known.pending is not None:
                producer.batches[place] = known._replace(offset=offset, pending=None)

    def replay(self, batch: BatchInfo) -> None:
        """Take in a batch that stands in the log."""
        if batch.producer_id >= 0:
            self.remember(batch, batch.base_offset)

    def tail_was_lost(self) -> None:
        """Batches that were acked in the buffer went down with a crash. Nobody sends them again, so each producer's next
        batch may lie behind some that are missing.
        """
        self._may_skip = set(self._producers)
        self._complete = False

    def dump(self, offset: int) -> bytes:
        """What the table knows of the log below `offset`; `load` reads it back."""
        rows = []
        for pid, each in self._producers.items():
            below = [b[:3] for b in each.batches if b.offset is not None and b.offset < offset]
            rows.append([pid, each.epoch, below])
        table = {"offset": offset, "complete": self._complete, "producers": rows}
        return json.dumps({**table, "may_skip": sorted(self._may_skip)}).encode()

    @classmethod
    def load(cls, data: bytes) -> tuple[ProducerTable, int]:
        """A table and the offset up to which it knows the log. Raises ValueError if it is none."""
        try:
            content = json.loads(data)
            table = cls(complete=bool(content["complete"]))
            for pid, epoch, batches in content["producers"]:
                known = [Remembered(first, last, offset, None) for first, last, offset in batches]
                if known:
                    table._producers[int(pid)] = Producer(int(epoch), deque(known, REMEMBERED_BATCHES))
            table._may_skip = set(content.get("may_skip", ()))
            return table, int(content["offset"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a table of producers: {error!r}") from error


def last_sequence(batch: BatchInfo) -> int:
    return (batch.base_sequence + batch.count - 1) & SEQUENCE_MASK
