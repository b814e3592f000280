"""Rebuilding a partition's table of idempotent producers when a broker takes the partition.

Batches in the log carry producer id, epoch and sequence, so reading the log gives the table. So that this
does not grow with the log, the table is written beside it as a snapshot every 64 MiB, and only what came
after is read. A snapshot speaks of durable records alone: one that knew of a batch which a crash took back
would answer the producer's retry with "stored".

The table knows the partition's transactions, too. So that a reader need not look for them in a log that has none, a
snapshot is in the store before the first transactional batch is: without one there is nothing to look for.

A log that was never served by a broker has no snapshot and, maybe, terabytes: there only the last 256 MiB are read.
What a broker has stored without a snapshot is always less.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker_shim.partitions.producers import ProducerTable
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import ObjectNotFound, StoreError
from logstore.format.batches.batch import split
from logstore.format.batches.transactions import Transactions
from logstore.layout.broker import producers_key
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore

log = logging.getLogger(__name__)
SNAPSHOT_EVERY_BYTES = 64 << 20
READ_BYTES = 8 << 20
LOOK_BACK_BYTES = 4 * SNAPSHOT_EVERY_BYTES


class Snapshots:
    """Those of one partition. `recover` and `write` do I/O: worker threads.

    `is_recreated`: its topic has taken the place of another. Producers that wrote to that one go on with the sequence
    that they have come to. `acks_early`: idempotent producers are told of batches that are not stored yet, so a crash
    may take some that nobody sends again. (Where they are not, it takes only what others sent without waiting for an
    answer.)
    """

    def __init__(
        self,
        objects: ObjectStore,
        paths: PartitionPaths,
        *,
        is_recreated: bool = False,
        acks_early: bool = False,
    ) -> None:
        self._is_recreated = is_recreated
        self._acks_early = acks_early
        self._objects = objects
        self._key = producers_key(paths)
        self._since = 0
        self.stands = False
        """Whether a snapshot that can speak of transactions is known to be in the store."""

    def grew(self, size: int) -> bool:
        """`size` more bytes are in the log. True if a snapshot is due."""
        self._since += size
        if self._since < SNAPSHOT_EVERY_BYTES:
            return False
        self._since = 0
        return True

    def recover(self, partition: PartitionLog) -> ProducerTable:
        """The table of everything durable. The caller owns the partition, so nothing is added meanwhile."""
        low, end = partition.low_watermark, partition.durable_high_watermark
        table, position = self._load(low, end)
        self.stands = table is not None
        if table is None:
            position = max(low, _recent(partition)) if position < 0 else position
            table = ProducerTable(complete=position == 0 and not self._is_recreated)
        self._since = 0
        table.transactions.forget_below(low)
        known = position
        while position < end:
            result = partition.read(position, READ_BYTES, visibility="durable")
            for part in result.parts:
                self._since += len(part)
                for batch in split(part):
                    if self._acks_early and any(
                        known < lost.end <= batch.base_offset for lost in result.lost
                    ):
                        table.tail_was_lost()
                    table.replay(part, batch)
                    known = batch.last_offset + 1
            if result.next_offset <= position:
                break
            position = result.next_offset
        if end > known and self._acks_early:
            table.tail_was_lost()
        return table

    def recover_transactions(self, partition: PartitionLog) -> tuple[Transactions, int]:
        """Those of everything durable, for a reader that does not own the partition, and how far that is. One request for a
        log that has none.
        """
        low, end = partition.low_watermark, partition.durable_high_watermark
        table, position = self._load(low, end)
        if table is None:
            return (Transactions(), end) if position < 0 else (self.follow(Transactions(), partition, low))
        return self.follow(table.transactions, partition, position)

    @staticmethod
    def follow(
        transactions: Transactions, partition: PartitionLog, position: int
    ) -> tuple[Transactions, int]:
        """Take in what is durable from `position` on."""
        end = partition.durable_high_watermark
        while position < end:
            result = partition.read(position, READ_BYTES, visibility="durable")
            for part in result.parts:
                for batch in split(part):
                    if batch.base_offset >= position:
                        transactions.replay(part, batch)
            if result.next_offset <= position:
                break
            position = result.next_offset
        return transactions, max(position, end)

    @staticmethod
    def missing(several: Sequence[Snapshots]) -> list[bool]:
        """Of which of these partitions there is none. A LIST for each topic, where each of them would make a GET."""
        found: set[str] = set()
        for prefix in {each._key.rpartition("/")[0] for each in several}:
            found.update(info.key for info in several[0]._objects.list(f"{prefix}/"))
        return [each._key not in found for each in several]

    def _load(self, low: int, end: int) -> tuple[ProducerTable | None, int]:
        """The table and the offset up to which it knows the log. Without one: from where on to read, -1 if none was ever
        written.
        """
        try:
            table, offset = ProducerTable.load(self._objects.get(self._key))
        except ObjectNotFound:
            return None, -1
        except ValueError as error:
            log.warning("%s: %s; the log is read instead", self._key, error)
            return None, low
        if offset > end:
            log.warning(
                "%s: speaks of offset %d and the log ends at %d; it is not used", self._key, offset, end
            )
            return None, low
        if offset < low:
            return None, low  # what came between is deleted: which sequence is next, nobody knows
        return table, offset

    def write_first(self, table: bytes) -> None:
        """Before the first transactional batch: raises if it cannot be written."""
        self._objects.put(self._key, table)
        self.stands = True

    def write(self, table: bytes) -> None:
        """Best effort: without it the next owner reads more of the log."""
        try:
            self._objects.put(self._key, table)
        except StoreError as error:
            log.warning("%s: no snapshot this time: %s", self._key, error)


def _recent(partition: PartitionLog) -> int:
    """The offset from which on the log's last `LOOK_BACK_BYTES` lie, cut at a segment."""
    size = 0
    for segment in reversed(partition.segments()):
        size += segment.size
        if size > LOOK_BACK_BYTES:
            return segment.end_offset
    return 0
