"""`view=latest`: the last record of each key, as of the end of the read; a tombstone takes its key out.

A key lives in one partition, so each partition is one task and nothing is shuffled. It is read from its newest
record to its oldest: the first one met of a key is its last, so rows go out as they are found, and memory is
O(keys) and not O(values). Records without a key have no last one and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logstore.arrow.plan.log_partitions import open_store
from logstore.arrow.plan.splits import Split
from logstore.arrow.scan.batch_joiner import BatchJoiner
from logstore.arrow.scan.columns import STORED_COLUMNS
from logstore.arrow.scan.constants import with_constants
from logstore.arrow.scan.fetch import Fetcher
from logstore.arrow.scan.split_scan import RELOADS, Scan, grouped
from logstore.errors import CorruptData, ObjectNotFound
from logstore.objects import ObjectStore, close_store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LatestScan:
    """How to read splits that are whole partitions; small and picklable."""

    scan: Scan

    def rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The last record of each key in the split."""
        store = open_store(self.scan.path)
        try:
            yield from grouped(self.rows_from(store, split))
        finally:
            close_store(store)

    def rows_from(self, store: ObjectStore, split: Split) -> Iterator[pa.RecordBatch]:
        columns = self.scan.columns
        stored = sorted(STORED_COLUMNS.intersection(columns) | {"key", "value"})
        newest = _Newest()
        left, reloads = split, 0
        while True:
            try:
                with Fetcher(store, left.bounds) as fetcher:
                    for fetched in fetcher.blocks(left.refs, left.start, left.stop, newest_first=True):
                        block = BatchJoiner(left.aborted)
                        block.add(fetched)
                        for batch in reversed(list(block.chunks(stored, left.start, left.stop))):
                            kept = newest.of(batch)
                            yield with_constants(kept, split.paths.topic, split.paths.partition, columns)
                        left, reloads = replace(left, stop=int(fetched.block.index["base_offset"][0])), 0
                return
            except (ObjectNotFound, CorruptData) as error:
                reloads += 1
                if reloads > RELOADS:
                    raise
                left = self.scan.replanned(store, left, left.start, error)


class _Newest:
    """Which keys have been met, from the newest record on."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that are the last of their key, in offset order."""
        import pyarrow as pa

        seen = self._seen
        dead = batch.column("value").is_null().to_pylist() if batch.column("value").null_count else None
        keys = batch.column("key").to_pylist()
        kept: list[int] = []
        for row in range(len(keys) - 1, -1, -1):
            key = keys[row]
            if key is not None and key not in seen:
                seen.add(key)
                if dead is None or not dead[row]:
                    kept.append(row)
        kept.reverse()
        return batch.take(pa.array(kept, pa.int64()))
