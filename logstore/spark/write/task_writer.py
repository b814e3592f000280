"""What a task does with its rows: encode them as record batches, one run for each target partition, and stage them.

Nothing of it is visible in the log. The names of staged objects are new for each attempt; the message that goes to
the driver says what lies where.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from logstore.errors import RecordTooLarge
from logstore.format.batches.batch import HEADER_SIZE, encode_batch
from logstore.format.batches.record import Record
from logstore.format.batches.records import RECORD_OVERHEAD
from logstore.format.batches.sequences import advance
from logstore.objects import ObjectStore
from logstore.spark.options.transaction import Transaction
from logstore.spark.write.rows import RowSorter, Sorted, Target
from logstore.spark.write.staging import Part, StagedBatch

if TYPE_CHECKING:
    import pyarrow as pa

STAGED_BYTES = 32 << 20
PENDING_BYTES = 64 << 20
"""Of all records that are not encoded yet: with thousands of partitions, each of them holding a part of a batch."""
_ROW_BYTES = 256  # what Python's objects for a record take beside its bytes
_BATCH_ROWS = 16_384


@dataclass(slots=True)
class _Pending:
    """Records for one partition that are not encoded yet, and batches that are not staged yet."""

    records: list[Record] = field(default_factory=list)
    size: int = HEADER_SIZE
    sequence: int = 0
    first_sequence: int = 0
    encoded: list[bytes] = field(default_factory=list)
    staged: list[StagedBatch] = field(default_factory=list)


class TaskWriter:
    def __init__(
        self,
        store: ObjectStore,
        transaction: Transaction,
        task: int,
        sorter: RowSorter,
        *,
        codec_id: int,
        max_batch_bytes: int,
    ) -> None:
        self._store = store
        self._transaction = transaction
        self._producer_id = transaction.producer_id(task)
        self._sorter = sorter
        self._codec_id = codec_id
        self._max_batch_bytes = max_batch_bytes
        self._pending: dict[Target, _Pending] = {}
        self._pending_bytes = 0
        self._encoded_bytes = 0
        self._parts: list[Part] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[Part, ...]:
        """Stage all rows; returns where they lie."""
        for batch in batches:
            for rows in self._sorter.sort(batch):
                self._take(rows)
                if self._pending_bytes >= PENDING_BYTES:
                    self._encode_all()
                if self._encoded_bytes >= STAGED_BYTES:
                    self._stage()
        self._encode_all()
        self._stage()
        return tuple(self._parts)

    def _take(self, rows: Sorted) -> None:
        """Cut the records into batches that keep to the limits."""
        pending = self._pending.setdefault(rows.target, _Pending())
        sizes = rows.sizes + RECORD_OVERHEAD
        if int(sizes.max()) + HEADER_SIZE > self._max_batch_bytes:
            raise RecordTooLarge(
                f"a record of {int(sizes.max())} bytes for {rows.target[0]}/{rows.target[1]}; a batch holds "
                f"{self._max_batch_bytes}: split it, or raise the option maxBatchBytes"
            )
        ends = np.cumsum(sizes)
        first = 0
        while first < len(ends):
            taken = int(ends[first - 1]) if first else 0
            room = self._max_batch_bytes - pending.size
            stop = int(np.searchsorted(ends, taken + room, side="right"))
            stop = min(stop, first + _BATCH_ROWS - len(pending.records))
            if stop <= first:
                self._encode(pending)
                continue
            pending.records += rows.records[first:stop]
            pending.size += int(ends[stop - 1]) - taken
            self._pending_bytes += int(ends[stop - 1]) - taken + _ROW_BYTES * (stop - first)
            first = stop

    def _encode_all(self) -> None:
        for pending in self._pending.values():
            self._encode(pending)

    def _encode(self, pending: _Pending) -> None:
        if not pending.records:
            return
        if not pending.encoded:
            pending.first_sequence = pending.sequence
        raw, info = encode_batch(
            pending.records,
            now_ms=time.time_ns() // 1_000_000,
            codec_id=self._codec_id,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=pending.sequence,
        )
        pending.encoded.append(raw)
        pending.staged.append(
            StagedBatch(info.size, info.count, info.min_timestamp_ms, info.max_timestamp_ms)
        )
        pending.sequence = advance(pending.sequence, info.count)
        self._pending_bytes -= pending.size - HEADER_SIZE + _ROW_BYTES * len(pending.records)
        pending.records, pending.size = [], HEADER_SIZE
        self._encoded_bytes += info.size

    def _stage(self) -> None:
        """One object with everything that is encoded, each partition's batches together."""
        key = f"{self._transaction.staged}{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex}"
        pieces: list[bytes] = []
        position = 0
        for (topic, partition), pending in sorted(self._pending.items()):
            if not pending.encoded:
                continue
            self._parts.append(
                Part(
                    topic,
                    partition,
                    key,
                    position,
                    self._producer_id,
                    pending.first_sequence,
                    tuple(pending.staged),
                )
            )
            pieces += pending.encoded
            position += sum(batch.size for batch in pending.staged)
            pending.encoded, pending.staged = [], []
        if pieces:
            self._store.put(key, b"".join(pieces))
        self._encoded_bytes = 0
