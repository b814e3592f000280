"""What a partition remembers of its idempotent producers: enough to store each batch once, in order.

For each producer id: its epoch and its last five batches (a client has at most five in flight). A batch is

* new         if its first sequence follows the last one, or is 0 where the producer, or its epoch, is not known;
* a duplicate if first and last sequence equal those of a remembered batch: the answer is that batch's;
* refused     otherwise, never taken in behind a gap. A client takes an ack to mean that what it sent before is stored too:
              a batch that is on its way back to it with a retriable error would be reported as delivered.

How it is refused decides how clients go on (KIP-360), so what was lost is said to be lost:

* OUT_OF_ORDER_SEQUENCE_NUMBER  the batch has overtaken others: they are all sent again. At the head of the line it is
                                fatal to librdkafka, and cannot happen there;
* INVALID_PRODUCER_EPOCH        the epoch has passed; or a crash has taken batches of it that were acked in the buffer. What
                                is in flight fails, which it has, and the producer goes on in a new epoch;
* UNKNOWN_PRODUCER_ID           nothing is known of this producer any more: its records were deleted, by retention or with a
                                former topic of this name, or too many others came since. It starts a new epoch and sends
                                again what was refused.

A producer's transactions are known here, too (`transactions`): a marker may say that an epoch has passed of which no batch
came, and a batch outside of a transaction is refused while one is open.

A batch is remembered from the moment it is handed to the log, before its ack, so that requests in flight are
checked against each other. Batches carry id, epoch and sequence, so the table can be rebuilt from the log.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from broker_shim.wire.codes import Code
from logstore.format.batches.batch import BatchInfo, Buffer
from logstore.format.batches.sequences import KnownProducer, KnownProducers, SequenceCheck, Sequences
from logstore.format.batches.transactions import Transactions

REMEMBERED_BATCHES = 5


class Remembered(NamedTuple):
    first: int
    last: int
    offset: int | None
    """The base offset, once known."""
    pending: Any
    """What a duplicate of a batch in flight has to wait for."""


class Verdict(NamedTuple):
    """NONE with `duplicate` set: answer as for that batch. NONE without: store it."""

    code: Code
    duplicate: Remembered | None = None


NEW = Verdict(Code.NONE)


class ProducerTable:
    """The producers of one partition. `complete`: whoever is not in it has no batch acked."""

    def __init__(self, *, complete: bool = True) -> None:
        # One more of each: the five may all be in flight, and a snapshot of what is durable needs the one before.
        self._producers = KnownProducers[Remembered](REMEMBERED_BATCHES + 1)
        self._of_others = Code.OUT_OF_ORDER_SEQUENCE_NUMBER if complete else Code.UNKNOWN_PRODUCER_ID
        """The answer to a producer that is not in the table and does not begin at 0."""
        self._cut_off: set[int] = set()  # whose last batches may be lost
        self.transactions = Transactions()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: BatchInfo) -> Verdict:
        ended = self.transactions.last_ends.get(batch.producer_id)
        if ended is not None and batch.producer_epoch < ended.epoch:
            return Verdict(Code.INVALID_PRODUCER_EPOCH)
        verdict = self._check_sequence(batch)
        if verdict is NEW and not batch.is_transactional and batch.producer_id in self.transactions.open:
            return Verdict(Code.INVALID_TXN_STATE)
        return verdict

    def _check_sequence(self, batch: BatchInfo) -> Verdict:
        append = Sequences.of(batch)
        checked = self._producers.check(append)
        if checked is SequenceCheck.REPLACED:
            return Verdict(Code.INVALID_PRODUCER_EPOCH)
        if checked in (SequenceCheck.UNKNOWN, SequenceCheck.NEW_EPOCH):
            if append.first == 0:
                return NEW
            if checked is SequenceCheck.UNKNOWN:
                return Verdict(self._of_others)
        else:
            for known in list(self._producers[append.producer_id].batches)[-REMEMBERED_BATCHES:]:
                if known[:2] == append[2:]:
                    return Verdict(Code.NONE, known)
            if checked is SequenceCheck.NEXT:
                return NEW
        # Some batches before it are missing: they are lost, or not here yet.
        is_lost = (
            checked in (SequenceCheck.AHEAD, SequenceCheck.NEW_EPOCH) and append.producer_id in self._cut_off
        )
        return Verdict(Code.INVALID_PRODUCER_EPOCH if is_lost else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def remember(self, batch: BatchInfo, offset: int | None, pending: Any = None) -> None:
        """After `check` said NEW and the log took the batch."""
        append = Sequences.of(batch)
        self._producers.batches_of(append).append(Remembered(append.first, append.last, offset, pending))
        self._cut_off.discard(append.producer_id)
        if (silent := self._producers.forget()) is not None:
            self._cut_off.discard(silent)
            if self._of_others is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._of_others = Code.UNKNOWN_PRODUCER_ID

    def forget(self, batch: BatchInfo) -> None:
        """A batch that was handed to the log is not stored, and never will be; nor is what its producer sent behind it."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            return
        left = [
            each for each in producer.batches if each.pending is None or each.first != batch.base_sequence
        ]
        producer.batches.clear()
        producer.batches.extend(left)
        if not left:
            del self._producers[batch.producer_id]

    def stored(self, batch: BatchInfo, offset: int) -> None:
        """The log has said where a batch that was in flight lies."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            return
        for place, known in enumerate(producer.batches):
            if known.first == batch.base_sequence and known.pending is not None:
                producer.batches[place] = known._replace(offset=offset, pending=None)

    def replay(self, raw: Buffer, batch: BatchInfo) -> None:
        """Take in a batch of the log."""
        self.transactions.replay(raw, batch)
        if batch.producer_id >= 0 and not batch.is_control:
            self.remember(batch, batch.base_offset)

    def last_sequences(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The epoch and the last sequence of each producer."""
        for producer_id, each in self._producers.items():
            yield producer_id, (each.epoch, each.batches[-1].last)

    def tail_was_lost(self) -> None:
        """Batches that were acked in the buffer went down with a crash. Nobody sends them again: each producer's next
        batch may lie behind some that are missing.
        """
        self._cut_off = set(self._producers)
        self._of_others = Code.INVALID_PRODUCER_EPOCH

    def dump(self, offset: int, beginning: Container[int] = ()) -> bytes:
        """What the table knows of the log below `offset`; `load` reads it back. `beginning`: as for `Transactions.dump`."""
        rows = []
        for pid, each in self._producers.items():
            below = [b[:3] for b in each.batches if b.offset is not None and b.offset < offset]
            rows.append([pid, each.epoch, below])
        table = {
            "offset": offset,
            "producers": rows,
            "cut_off": sorted(self._cut_off),
            "transactions": self.transactions.dump(offset, beginning),
        }
        return json.dumps({**table, "of_others": self._of_others}).encode()

    @classmethod
    def load(cls, data: bytes) -> tuple[ProducerTable, int]:
        """A table and the offset up to which it knows the log. Raises ValueError if it is none."""
        try:
            content = json.loads(data)
            table = cls()
            table._of_others = Code(content["of_others"])
            for pid, epoch, batches in content["producers"]:
                known = [Remembered(first, last, offset, None) for first, last, offset in batches]
                if known:
                    table._producers[int(pid)] = KnownProducer(
                        int(epoch), deque(known, REMEMBERED_BATCHES + 1)
                    )
            table._cut_off = set(content["cut_off"])
            if "transactions" in content:
                table.transactions = Transactions.load(content["transactions"])
            return table, int(content["offset"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a table of producers: {error!r}") from error
