"""Rebuilding a partition's table of idempotent producers when a broker takes the partition.

Batches in the log carry producer id, epoch and sequence, so reading the log gives the table. So that this
does not grow with the log, the table is written beside it as a snapshot every 64 MiB, and only what came
after is read. A snapshot speaks of durable records alone: one that knew of a batch which a crash took back
would answer the producer's retry with "stored".

A log that was never served by a broker has no snapshot and, maybe, terabytes: there only the last day is
read, which is far longer than any producer retries, and the first snapshot is written at once.
"""

from __future__ import annotations

import logging
import time

from broker_shim.producers import ProducerTable
from logstore.engine.partition_log import PartitionLog
from logstore.errors import ObjectNotFound, StoreError
from logstore.format.batch import split
from logstore.objects import ObjectStore
from logstore.paths import PartitionPaths

log = logging.getLogger(__name__)
PREFIX = "broker/producers/"
SNAPSHOT_EVERY_BYTES = 64 << 20
READ_BYTES = 8 << 20
LOOK_BACK_MS = 24 * 3600 * 1000


def topic_prefix(topic: str, incarnation: str) -> str:
    return f"{PREFIX}{topic}/{incarnation}/"


class Snapshots:
    """Those of one partition. `recover` and `write` do I/O: worker threads."""

    def __init__(self, objects: ObjectStore, paths: PartitionPaths) -> None:
        self._objects = objects
        self._key = f"{topic_prefix(paths.topic, paths.incarnation)}{paths.partition}"
        self._since = 0

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
        had_snapshot = table is not None
        if table is None:
            recent = partition.offset_for_timestamp(int(time.time() * 1000) - LOOK_BACK_MS) if end else 0
            position = end if recent is None else max(low, min(recent, end))
            table = ProducerTable(complete=position == 0)
        while position < end:
            result = partition.read(position, READ_BYTES, visibility="durable")
            for part in result.parts:
                for batch in split(part):
                    table.replay(batch)
            if result.next_offset <= position:
                break
            position = result.next_offset
        if not had_snapshot and end > 0:
            self.write(table.dump(end))
        return table

    def _load(self, low: int, end: int) -> tuple[ProducerTable | None, int]:
        try:
            table, offset = ProducerTable.load(self._objects.get(self._key))
        except ObjectNotFound:
            return None, low
        except ValueError as error:
            log.warning("%s: %s; the log is read instead", self._key, error)
            return None, low
        if offset > end:
            log.warning(
                "%s: speaks of offset %d and the log ends at %d; it is not used", self._key, offset, end
            )
            return None, low
        return table, max(low, offset)

    def write(self, table: bytes) -> None:
        """Best effort: without it the next owner reads more of the log."""
        try:
            self._objects.put(self._key, table)
        except StoreError as error:
            log.warning("%s: no snapshot this time: %s", self._key, error)
