"""The write buffer: the batches that no flush has taken yet.

Guarded by the partition's lock, and free of I/O and of encoding. Offsets in it are dense from `base_offset` to
`next_offset`. An append is whole: its batches enter together and `take` never parts them, so one segment, which is one
commit, holds all of an append or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.engine.pending_batch import Exposure, PendingBatch, covering
from logstore.format.batch import BatchInfo
from logstore.format.record import Record


class WriteBuffer:
    def __init__(self, next_offset: int, leader_epoch: int, codec_id: int, batch_bytes: int) -> None:
        self.next_offset = next_offset
        self.charged = 0
        self.oldest_at: float | None = None
        self._leader_epoch = leader_epoch
        self._codec_id = codec_id
        self._batch_bytes = batch_bytes
        self._batches: list[PendingBatch] = []
        self._open: PendingBatch | None = None

    def __len__(self) -> int:
        return self.next_offset - self.base_offset

    @property
    def base_offset(self) -> int:
        return self._batches[0].base_offset if self._batches else self.next_offset

    def add_records(self, records: Sequence[Record], charged: int, exposure: Exposure, now: float) -> int:
        """Give the records the next offsets; they join the open batch if they fit. Returns the first offset."""
        batch = self._open
        if batch is None or batch.charged + charged > self._batch_bytes or exposure < batch.exposure:
            batch = self._open = PendingBatch(self.next_offset, self._leader_epoch, exposure, self._codec_id)
            self._batches.append(batch)
            if self.oldest_at is None:
                self.oldest_at = now
        batch.add(records, charged, exposure)
        self.charged += charged
        first = self.next_offset
        self.next_offset = first + len(records)
        return first

    def add_record(self, record: Record, charged: int, exposure: Exposure) -> int:
        """`add_records` for one record and a batch that has begun: the path of a service that appends one by one.

        Returns −1 if the record needs a batch of its own.
        """
        batch = self._open
        if batch is None or batch.charged + charged > self._batch_bytes or exposure < batch.exposure:
            return -1
        batch.add_one(record, charged, exposure)
        self.charged += charged
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def add_encoded(
        self, batches: Sequence[tuple[memoryview, BatchInfo]], exposure: Exposure, now: float
    ) -> tuple[int, int]:
        """Give encoded batches the next offsets, as one append. Returns the first offset and how many bytes it charged."""
        self._open = None
        first, charged = self.next_offset, 0
        for number, (raw, info) in enumerate(batches):
            batch = PendingBatch.ready(self.next_offset, self._leader_epoch, exposure, raw, info, info.size)
            batch.starts_append = number == 0
            self._batches.append(batch)
            self.next_offset += info.count
            charged += info.size
        self.charged += charged
        if self.oldest_at is None:
            self.oldest_at = now
        return first, charged

    def close_batch(self) -> None:
        """Let nothing more join the newest batch: from now on its bytes may be asked for."""
        self._open = None

    def batches_from(self, offset: int, stop: int, limit: int) -> list[PendingBatch]:
        """As `covering` says; their bytes may be asked for, so they are closed."""
        if self._open is not None and self._open.base_offset < stop:
            self.close_batch()
        return covering(self._batches, offset, stop, limit)

    def take(self, segment_bytes: int) -> list[PendingBatch]:
        """Take whole appends from the front: at least one, and more while they fit into `segment_bytes`."""
        self.close_batch()
        taken_bytes, end, size = 0, 0, 0
        for number, batch in enumerate(self._batches):
            size += batch.charged
            if end and size > segment_bytes:
                break
            if number + 1 == len(self._batches) or self._batches[number + 1].starts_append:
                taken_bytes, end = size, number + 1
        taken, self._batches = self._batches[:end], self._batches[end:]
        self.charged -= taken_bytes
        if not self._batches:
            self.oldest_at = None
        return taken

    def clear(self) -> int:
        """Drop everything; returns how many bytes that frees."""
        freed, self.charged = self.charged, 0
        self._batches, self._open, self.oldest_at = [], None, None
        return freed
