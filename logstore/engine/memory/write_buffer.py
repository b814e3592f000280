"""The write buffer: the batches that no flush has taken yet.

Guarded by the partition's lock, and free of I/O and of encoding. Offsets in it are dense from `base_offset` to
`next_offset`. An append is whole: its batches enter together and `take` never parts them, so one segment, which is one
commit, holds all of an append or nothing. What belongs to an atomic append over several partitions is taken when that one
goes along, and not before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from logstore.engine.memory.pending_batch import Exposure, PendingBatch, covering, leave_out
from logstore.format.batches.batch import BatchInfo
from logstore.format.batches.record import Record

OPEN_BATCH_BYTES = 256 * 1024
"""Records that arrive one by one share a batch of up to this size."""


class WriteBuffer:
    def __init__(self, next_offset: int, leader_epoch: int, codec_id: int, batch_bytes: int) -> None:
        self.next_offset = next_offset
        self.charged = 0
        self.oldest_at: float | None = None
        self._leader_epoch = leader_epoch
        self._codec_id = codec_id
        self.batch_bytes = batch_bytes
        self._batches: list[PendingBatch] = []
        self.open_batch: PendingBatch | None = None

    def __len__(self) -> int:
        return self.next_offset - self.base_offset

    @property
    def base_offset(self) -> int:
        return self._batches[0].base_offset if self._batches else self.next_offset

    def add_records(self, records: Sequence[Record], charged: int, exposure: Exposure, now: float) -> int:
        """Give the records the next offsets; they join the open batch if they fit. Returns the first offset."""
        batch = self.open_batch
        if batch is None or batch.charged + charged > self.batch_bytes or exposure < batch.exposure:
            batch = self.open_batch = PendingBatch(
                self.next_offset, self._leader_epoch, exposure, self._codec_id
            )
            self._batches.append(batch)
            if self.oldest_at is None:
                self.oldest_at = now
        batch.add(records, charged, exposure)
        self.charged += charged
        first = self.next_offset
        self.next_offset = first + len(records)
        return first

    def add_to_open(self, batch: PendingBatch, record: Record, charged: int) -> None:
        """`add_records` for one buffered record that fits `batch`, which is the open one: the shortest way in."""
        batch.add_one(record, charged)
        self.charged += charged
        self.next_offset += 1

    def add_encoded(
        self,
        batches: Sequence[tuple[memoryview, BatchInfo]],
        exposure: Exposure,
        now: float,
        atomic: object | None = None,
    ) -> tuple[int, int]:
        """Give encoded batches the next offsets, as one append. Returns the first offset and how many bytes it charged."""
        self.open_batch = None
        first, charged = self.next_offset, 0
        for number, (raw, info) in enumerate(batches):
            batch = PendingBatch.ready(self.next_offset, self._leader_epoch, exposure, raw, info, info.size)
            batch.starts_append = number == 0
            batch.atomic = atomic
            self._batches.append(batch)
            self.next_offset += info.count
            charged += info.size
        self.charged += charged
        if self.oldest_at is None:
            self.oldest_at = now
        return first, charged

    def close_batch(self) -> None:
        """Let nothing more join the newest batch: from now on its bytes may be asked for."""
        self.open_batch = None

    def batches_from(self, offset: int, stop: int, limit: int) -> list[PendingBatch]:
        """As `covering` says; their bytes may be asked for, so they are closed."""
        if self.open_batch is not None and self.open_batch.base_offset < stop:
            self.close_batch()
        return covering(self._batches, offset, stop, limit)

    def take(self, segment_bytes: float, atomics: Collection[object] = ()) -> list[PendingBatch]:
        """Take whole appends from the front: at least one, and more while they fit into `segment_bytes`. All that belongs to
        `atomics` is taken, and nothing from another atomic append on."""
        self.close_batch()
        if len(self._batches) == 1 and self._batches[0].atomic is None:
            taken = self._batches.copy()
            self._batches.clear()  # not another list, for the garbage collector to find: most partitions are idle now
            self.charged, self.oldest_at = 0, None
            return taken
        least = max((n for n, batch in enumerate(self._batches) if batch.atomic in atomics), default=-1)
        taken_bytes, end, size = 0, 0, 0
        for number, batch in enumerate(self._batches):
            size += batch.charged
            if batch.atomic is not None and batch.atomic not in atomics:
                break
            if end and size > segment_bytes and number > least:
                break
            if number + 1 == len(self._batches) or self._batches[number + 1].starts_append:
                taken_bytes, end = size, number + 1
        taken, self._batches = self._batches[:end], self._batches[end:]
        self.charged -= taken_bytes
        if not self._batches:
            self.oldest_at = None
        return taken

    def charged_until(self, atomic: object) -> int:
        """What must be taken to take that one: everything before it, too."""
        end = max((n for n, batch in enumerate(self._batches, 1) if batch.atomic is atomic), default=0)
        return sum(batch.charged for batch in self._batches[:end])

    def leave_out(self, atomic: object) -> tuple[int, int]:
        """It will not be stored: what follows moves up. Returns how many records and how many bytes it had."""
        self._batches, count, charged = leave_out(self._batches, atomic)
        self.next_offset -= count
        self.charged -= charged
        if not self._batches:
            self.oldest_at = self.open_batch = None
        return count, charged

    def move_up(self, count: int) -> None:
        """So many records before these will not be stored."""
        for batch in self._batches:
            batch.move_up(count)
        self.next_offset -= count

    def rebase(self, next_offset: int, leader_epoch: int) -> int:
        """Begin there, in that epoch; only while nobody has seen any of it. Returns by how much the offsets have grown."""
        grown = next_offset - self.base_offset
        self._leader_epoch = leader_epoch
        for batch in self._batches:
            batch.rebase(grown, leader_epoch)
        self.next_offset += grown
        return grown

    def clear(self) -> int:
        """Drop everything; returns how many bytes that frees."""
        freed, self.charged = self.charged, 0
        self._batches, self.open_batch, self.oldest_at = [], None, None
        return freed
