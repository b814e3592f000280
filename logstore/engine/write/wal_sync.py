"""Brings batches to the WAL and gives the `local` acks: the group commit of the local disk.

Runs on the disk's own threads. Each run takes every batch that the WAL does not have, writes and fsyncs them as one frame
without the partition's lock, and then acks all who waited. What became durable meanwhile needs no WAL and is left out.
"""

from __future__ import annotations

import logging

from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.memory.waiters import complete
from logstore.engine.runtime import Runtime
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.engine.write.wal import Wal
from logstore.objects.retrying import RetryPolicy

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
        with self._state.lock:
            batches = self._unsynced()
            durable = self._state.durable
        if not batches:
            return
        try:
            self._wal.write(batches, durable)
        except OSError as error:
            self._retry_later(error)
            return
        with self._state.lock:
            if self._failures:
                self._failures = 0
                self._writer.stats.wal_error = None
            if self._writer.failed is not None:
                return  # its waiters have been told
            shown = [batch.end_offset for batch in batches if batch.exposure >= Exposure.LOCAL]
            if shown:
                self._state.advance_high_watermark(shown[-1])
            acked = self._writer.local_waiters.release(self._wal.end_offset)
        complete(acked)
        self._state.tell_listeners()

    def _retry_later(self, error: OSError) -> None:
        """The object store is asked as ever: `durable` acks go on, and who waits for a `local` one gets it with the next
        flush if the disk is not mended before."""
        why = f"{self._wal.folder}: the WAL could not be written ({error.strerror or error})"
        with self._state.lock:
            self._failures += 1
            wait = _RETRIES.limit_s(self._failures)
            self._writer.stats.wal_error = why
        logger.warning("%s, trying again; no `local` ack is given meanwhile", why)
        self._runtime.disk.at(self, self._runtime.clock.monotonic() + wait)

    def _unsynced(self) -> list[PendingBatch]:
        """Closed batches from the WAL's end on: those of the window, then those of the buffer. Holds the lock."""
        state, start = self._state, self._wal.end_offset
        found: list[PendingBatch] = []
        if state.window is not None:
            found += [batch for batch in state.window.batches if batch.base_offset >= start]
        if state.buffer is not None:
            found += state.buffer.batches_from(start, state.buffer.next_offset, len(state.buffer))
        return [batch for batch in found if batch.base_offset >= start]
