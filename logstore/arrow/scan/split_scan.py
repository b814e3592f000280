"""What a task does with its split: read, check, decode to Arrow, in offset order.

A segment that is gone when its turn comes was merged or expired by maintenance: the manifest is asked again and
the scan goes on at the first offset it has not handed out. Records that retention or the topic's deletion has taken
are data loss, judged as `failOnDataLoss` says. Damaged bytes always end the task, with the name of the object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from logstore.arrow.plan.log_partitions import LogPartition, is_deleted, open_store
from logstore.arrow.plan.planner import within
from logstore.arrow.plan.splits import Split
from logstore.arrow.scan.batch_joiner import CHUNK_ROWS, BatchJoiner
from logstore.arrow.scan.columns import INDEX_COLUMNS, STORED_COLUMNS
from logstore.arrow.scan.constants import with_constants
from logstore.arrow.scan.fetch import Fetcher
from logstore.arrow.scan.gathered import GatheredStore
from logstore.arrow.scan.heap import keep_what_batches_free
from logstore.engine.chain.chain import Chain
from logstore.errors import CorruptData, ObjectNotFound, UnknownTopic
from logstore.format.stored.segment import Index
from logstore.objects import ObjectStore, close_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

RELOADS = 4
_ALONE_ROWS = CHUNK_ROWS // 8
Pieces = Iterator[tuple["Iterable[pa.RecordBatch]", int]]


@dataclass(frozen=True, slots=True)
class Scan:
    """How to read splits; small and picklable, because it travels to executors."""

    path: str
    columns: tuple[str, ...]
    fail_on_data_loss: bool

    def rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The records of the split, as Arrow batches with exactly the columns asked for."""
        keep_what_batches_free()
        store = open_store(self.path)
        try:
            yield from self.rows_from(store, split)
        finally:
            close_store(store)

    def rows_of(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        """The records of splits that lie in the same entries of lanes, one after the other."""
        keep_what_batches_free()
        store = open_store(self.path)
        try:
            yield from self.rows_of_from(store, splits)
        finally:
            close_store(store)

    def rows_of_from(
        self, store: ObjectStore, splits: Sequence[Split], threads: Executor | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same from a store that is open, by the caller's `fetching_threads`."""
        gathered = GatheredStore(store, splits)
        yield from grouped(batch for split in splits for batch in self.rows_from(gathered, split, threads))

    def rows_from(
        self, store: ObjectStore, split: Split, threads: Executor | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records of a split, from a store that is open."""
        # An index does not tell whose batch it is: where some are left out, they are read.
        by_index = INDEX_COLUMNS.issuperset(self.columns) and not split.aborted
        read = self._offsets if by_index else self._records
        topic, partition = split.paths.topic, split.paths.partition
        position, reloads = split.start, 0
        while True:
            try:
                for batches, end in read(store, split, threads):
                    for batch in batches:
                        yield with_constants(batch, topic, partition, self.columns)
                    position, reloads = end, 0
                return
            except (ObjectNotFound, CorruptData) as error:
                reloads += 1
                if reloads > RELOADS:
                    raise CorruptData(
                        split.refs[0].key, position, f"the manifest names it and it is missing ({error})"
                    ) from error
                split = self.replanned(store, split, position, error)

    def replanned(
        self, store: ObjectStore, split: Split, position: int, why: ObjectNotFound | CorruptData
    ) -> Split:
        """The rest of the split from `position` on, where the manifest says it lies now.

        Damage is raised again, unless the topic was deleted: that leaves segments without records in some places.
        """
        if is_deleted(store, split.paths):
            return self._without_the_rest(split, position)
        if isinstance(why, CorruptData):
            raise why
        partition = LogPartition(split.paths, Chain(store, split.paths).load())
        if partition.end < split.stop:
            key = next((ref.key for ref in split.refs if ref.end_offset > position), split.refs[0].key)
            raise CorruptData(
                key,
                position,
                f"it was committed up to {split.stop}, and now the log ends at {partition.end} ({why})",
            ) from why
        start = within(partition, position, self.fail_on_data_loss)
        segments = partition.view.segments
        rows = range(segments.row_at(start), len(segments))
        refs = [ref for row in rows if (ref := segments.ref(row)).base_offset < split.stop]
        logger.info("%s: segments were replaced while they were read; going on at %d", split.paths, start)
        return replace(split, start=start, refs=tuple(refs))

    def _without_the_rest(self, split: Split, position: int) -> Split:
        lost = f"{split.paths}: the topic was deleted, and offsets {position} to {split.stop} were still to be read"
        if self.fail_on_data_loss:
            raise UnknownTopic(f"{lost} (Spark goes on without if failOnDataLoss is false)")
        logger.warning("%s; failOnDataLoss is false: going on without", lost)
        return replace(split, start=split.stop, refs=())

    def _offsets(self, store: ObjectStore, split: Split, threads: Executor | None) -> Pieces:
        """Offsets alone: the indexes tell them, but for sparse segments, whose records do."""
        with Fetcher(store, split.bounds, threads) as fetcher:
            for ref, index in zip(
                split.refs, fetcher.indexes(split.refs, split.start, split.stop), strict=True
            ):
                if index is not None:
                    yield _offset_batches(index, split.start, split.stop), ref.end_offset
                    continue
                for fetched in fetcher.blocks([ref], split.start, split.stop, newest_first=False):
                    joined = BatchJoiner()
                    joined.add(fetched)
                    yield joined.chunks(["offset"], split.start, split.stop), joined.end_offset

    def _records(self, store: ObjectStore, split: Split, threads: Executor | None) -> Pieces:
        columns = [name for name in self.columns if name in STORED_COLUMNS]
        joined = BatchJoiner(split.aborted)
        with Fetcher(store, split.bounds, threads) as fetcher:
            blocks = fetcher.blocks(split.refs, split.start, split.stop, newest_first=False)
            try:
                for fetched in blocks:
                    joined.add(fetched)
                    if joined.full:
                        yield joined.chunks(columns, split.start, split.stop), joined.end_offset
                        joined = BatchJoiner(split.aborted)
            except ObjectNotFound:
                if joined:  # what came before the missing object is handed out first
                    yield joined.chunks(columns, split.start, split.stop), joined.end_offset
                raise
            if joined:
                yield joined.chunks(columns, split.start, split.stop), joined.end_offset


def _offset_batches(index: Index, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Every offset of the batches in `index`, from `start` up to `stop`."""
    import pyarrow as pa

    counts = index["count"].astype(np.int64)
    shifts = index["base_offset"] - (np.cumsum(counts) - counts)
    offsets = np.repeat(shifts, counts) + np.arange(int(counts.sum()))
    offsets = offsets[np.searchsorted(offsets, start) : np.searchsorted(offsets, stop)]
    for first in range(0, len(offsets), CHUNK_ROWS):
        yield pa.RecordBatch.from_arrays([pa.array(offsets[first : first + CHUNK_ROWS])], ["offset"])


def grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth sending. Small ones are copied together; one that is large enough is handed
    on as it is."""
    import pyarrow as pa

    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if group and (rows >= CHUNK_ROWS or batch.num_rows >= _ALONE_ROWS):
            yield pa.concat_batches(group) if len(group) > 1 else group[0]
            group, rows = [], 0
        if batch.num_rows >= _ALONE_ROWS:
            yield batch
        else:
            group.append(batch)
            rows += batch.num_rows
    if rows:
        yield pa.concat_batches(group) if len(group) > 1 else group[0]
