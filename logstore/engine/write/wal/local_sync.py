"""Brings batches to the WAL and gives the `local` acks: the group commit of the local disk, for all partitions at once.

Runs on the disk's own threads. Each run takes every batch that the WAL does not have of the partitions that asked, writes
and fsyncs them as one frame without a partition's lock, and then acks all who waited. What became durable meanwhile needs
no WAL and is left out.

**Nothing past the reservation is written.** A batch that waits for a `durable` ack goes along only if one behind it may be
shown before it is stored. So all that the WAL has of a writer lies below every reservation that this writer has committed
since, where no other life of its lane gives an offset away: what such a life stores ends past it, and it is judged as lost.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.pending_batch import Exposure, PendingBatch
from logstore.engine.runtime import Runtime
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.engine.write.wal.wal import Wal, WalPart
from logstore.objects.wrappers.retrying import RetryPolicy

logger = logging.getLogger(__name__)

FRAME_BYTES = 4 << 20
"""A frame takes no further batch once it is as large: it lies in memory a second time."""
_RETRIES = RetryPolicy(None, base_s=0.1, cap_s=5.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    state: PartitionState
    writer: ExclusiveWriter
    part: WalPart


class LocalSync:
    """`_lock` guards `_members` and `_asked`, for memory work only; a partition's lock may be held outside of it."""

    def __init__(self, runtime: Runtime, wal: Wal) -> None:
        self.wal = wal
        self._runtime = runtime
        self._lock = threading.Lock()
        self._members: dict[WalPart, _Member] = {}
        self._asked: dict[_Member, None] = {}  # in the order in which they came
        self._failures = 0  # in a row

    def add(self, state: PartitionState, writer: ExclusiveWriter, part: WalPart) -> None:
        """Give the writer its local acks from now on."""
        member = _Member(state, writer, part)
        with self._lock:
            self._members[part] = member
        writer.local_sync = lambda: self._ask(member)

    def remove(self, part: WalPart) -> None:
        with self._lock:
            self._members.pop(part, None)

    def _ask(self, member: _Member) -> None:
        with self._lock:
            self._asked[member] = None
        self._runtime.disk.at(self, self._runtime.clock.monotonic())

    def run(self) -> None:
        with self._lock:
            asked, self._asked = list(self._asked), {}
        while asked:
            group, asked = self._next_group(asked)
            if not group:
                continue
            try:
                written = set(self.wal.write([(member.part, batches) for member, batches in group]))
            except OSError as error:
                self._retry_later([member for member, _ in group], error)
                return
            self._failures = 0
            for member, batches in group:
                if member.part in written:
                    shown = [batch.end_offset for batch in batches if batch.exposure >= Exposure.LOCAL]
                    member.writer.synced(shown[-1] if shown else 0, batches[-1].end_offset)

    def _next_group(
        self, asked: list[_Member]
    ) -> tuple[list[tuple[_Member, list[PendingBatch]]], list[_Member]]:
        """What the next frame holds, and who is left for another one."""
        group: list[tuple[_Member, list[PendingBatch]]] = []
        size = 0
        for number, member in enumerate(asked):
            taken = list[PendingBatch]()
            for batch in _shown_early(member.state.pending_from(member.part.end_offset)[0]):
                if size >= FRAME_BYTES:
                    return ([*group, (member, taken)] if taken else group), asked[number:]
                taken.append(batch)
                size += batch.encoded().size
            if taken:
                group.append((member, taken))
        return group, []

    def _retry_later(self, members: list[_Member], error: OSError) -> None:
        """The object store is asked as ever: `durable` acks go on, and who waits for a `local` one gets it with the next
        flush if the disk is not mended before."""
        why = f"{self.wal.folder}: the WAL could not be written ({error.strerror or error})"
        self._failures += 1
        wait = _RETRIES.limit_s(self._failures)
        with self._lock:
            self._asked.update(dict.fromkeys(self._members.values()))  # of what the failed file held, too
        for member in members:
            member.writer.not_synced(why)
        logger.warning("%s, trying again; no `local` ack is given meanwhile", why)
        self._runtime.disk.at(self, self._runtime.clock.monotonic() + wait)


def _shown_early(batches: list[PendingBatch]) -> list[PendingBatch]:
    """Up to the last that is shown before it is stored."""
    ends = (number for number in range(len(batches), 0, -1) if batches[number - 1].exposure >= Exposure.LOCAL)
    return batches[: next(ends, 0)]
