"""A batch on its way to a segment.

Records that arrive one by one share a batch: it is *open* while it grows (only under the partition's lock), *closed* when a
flush, the WAL or a reader needs it, and *encoded* once, by whoever needs its bytes first, outside of the partition's lock.
From then on its bytes never change: buffer, window and segment hold the same ones.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter

from logstore.format.batches.batch import BatchInfo, encode_batch
from logstore.format.batches.record import Record
from logstore.format.stored.encoded_batch import EncodedBatch, place

_base_offset = attrgetter("base_offset")
_COPIED_TO = 1024
_ENCODED: list[Record] = []
"""The records of every batch that is encoded: an empty list of its own would be one more for the garbage collector."""


class Exposure(IntEnum):
    """Which ack a record waits for, ordered by how early it may be seen."""

    DURABLE = 0
    LOCAL = 1
    BUFFERED = 2


_BUFFERED = Exposure.BUFFERED  # asking the enumeration takes as long as adding a record


@dataclass(slots=True, eq=False)
class PendingBatch:
    """`exposure` is that of its last record. A record may join only if its own exposure is not lower, so the end of a batch
    is always as visible as its most visible record, and the buffered high watermark always falls on the end of a batch.

    `atomic`: the append over several partitions that it is part of, which is not decided yet."""

    base_offset: int
    _leader_epoch: int
    exposure: Exposure
    _codec_id: int
    count: int = 0
    charged: int = 0
    starts_append: bool = True
    atomic: object | None = None
    _records: list[Record] = field(default_factory=list)
    _encoded: EncodedBatch | None = None
    _raw: memoryview | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def ready(
        cls,
        base_offset: int,
        leader_epoch: int,
        exposure: Exposure,
        raw: memoryview,
        info: BatchInfo,
        charged: int,
    ) -> PendingBatch:
        """One that came encoded: it is given its offset and nothing else changes."""
        batch = cls(base_offset, leader_epoch, exposure, info.codec_id)
        batch.count, batch.charged = info.count, charged
        batch._encoded = place(raw, info, base_offset, leader_epoch)
        return batch

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    def add(self, records: Sequence[Record], charged: int, exposure: Exposure) -> None:
        """Only while open, under the partition's lock."""
        self._records.extend(records)
        self.count += len(records)
        self.charged += charged
        self.exposure = exposure

    def add_one(self, record: Record, charged: int) -> None:
        """`add` for one buffered record."""
        self._records.append(record)
        self.count += 1
        self.charged += charged
        self.exposure = _BUFFERED

    def encoded(self) -> EncodedBatch:
        """Its bytes; the first call encodes. Only once closed."""
        encoded = self._encoded
        if encoded is not None:
            return encoded
        with self._lock:
            if self._encoded is None:
                raw, info = encode_batch(self._records, now_ms=0, codec_id=self._codec_id)
                # A copy of a few bytes is less than a view of them.
                data = raw if len(raw) <= _COPIED_TO else memoryview(raw)
                self._encoded = place(data, info, self.base_offset, self._leader_epoch)
                self._records = _ENCODED
            return self._encoded

    def raw(self) -> memoryview:
        """Its bytes in one piece; made once, and from then on the only copy."""
        if self._raw is None:
            encoded = self.encoded()
            raw = memoryview(encoded.tobytes())
            self._encoded = encoded.moved(raw)
            self._raw = raw
        return self._raw

    def move_up(self, count: int) -> None:
        """What was before it is not stored: it begins `count` offsets earlier. Only while nobody has seen it."""
        with self._lock:
            self.base_offset -= count
            if self._encoded is not None:
                self._encoded = self._encoded.at(self.base_offset, self._leader_epoch)
            self._raw = None

    def rebase(self, grown: int, leader_epoch: int) -> None:
        """It begins so many offsets later, in another epoch. Only while nobody has seen it."""
        with self._lock:
            self._leader_epoch = leader_epoch
        self.move_up(-grown)

    def move_into(self, segment: memoryview, position: int) -> int:
        """The same bytes lie in `segment` at `position`: from now on those are the only copy. Returns where they end."""
        encoded = self.encoded()
        end = position + encoded.size
        self._raw = raw = segment[position:end]
        self._encoded = encoded.moved(raw)
        return end


def covering(batches: list[PendingBatch], offset: int, stop: int, limit: int) -> list[PendingBatch]:
    """Up to `limit` of the batches below `stop`, the first of which covers `offset` or is the first there is."""
    first = max(bisect_right(batches, offset, key=_base_offset) - 1, 0)
    return [batch for batch in batches[first : first + limit] if batch.base_offset < stop]


def leave_out(batches: list[PendingBatch], atomic: object) -> tuple[list[PendingBatch], int, int]:
    """The batches without those of `atomic`, with dense offsets, and how many records and bytes it had."""
    kept, count, charged = [], 0, 0
    for batch in batches:
        if batch.atomic is atomic:
            count += batch.count
            charged += batch.charged
            continue
        if count:
            batch.move_up(count)
        kept.append(batch)
    return kept, count, charged
