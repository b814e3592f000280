"""Brings batches to the WAL and gives the `local` acks: the group commit of the local disk.

Runs on the disk's own threads. Each run takes every batch that the WAL does not have, writes and fsyncs them as one frame
without the partition's lock, and then acks all who waited. What became durable meanwhile needs no WAL and is left out.
"""

from __future__ import annotations

import logging

from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.pending_batch import Exposure
from logstore.engine.runtime import Runtime
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.engine.write.wal import Wal
from logstore.objects.wrappers.retrying import RetryPolicy

logger = logging.getLogger(__name__)

_RETRIES = RetryPolicy(None, base_s=0.1, cap_s=5.0)


class LocalSync:
    def __init__(self, runtime: Runtime, state: PartitionState, writer: ExclusiveWriter, wal: Wal) -> None:
        self._runtime = runtime
        self._state = state
        self._writer = writer
        self._wal = wal
        self._failures = 0  # in a row

    def run(self) -> None:
        batches, durable = self._state.pending_from(self._wal.end_offset)
        if not batches:
            return
        try:
            self._wal.write(batches, durable)
        except OSError as error:
            self._retry_later(error)
            return
        self._failures = 0
        shown = [batch.end_offset for batch in batches if batch.exposure >= Exposure.LOCAL]
        self._writer.synced(shown[-1] if shown else 0, self._wal.end_offset)

    def _retry_later(self, error: OSError) -> None:
        """The object store is asked as ever: `durable` acks go on, and who waits for a `local` one gets it with the next
        flush if the disk is not mended before."""
        why = f"{self._wal.folder}: the WAL could not be written ({error.strerror or error})"
        self._failures += 1
        wait = _RETRIES.limit_s(self._failures)
        self._writer.not_synced(why)
        logger.warning("%s, trying again; no `local` ack is given meanwhile", why)
        self._runtime.disk.at(self, self._runtime.clock.monotonic() + wait)
