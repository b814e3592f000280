"""Reads of committed records: a partition ends at its last stable offset, and its splits know what was aborted before that.

One LIST for each topic tells which of its partitions have transactions at all. Of those that do, batch headers are read from
the broker's last snapshot on; what was learned is kept for the next look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from logstore.arrow.plan.log_partitions import LogPartition, side_by_side
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import ReadResult
from logstore.engine.read.partition_reader import PartitionReader
from logstore.engine.read.transaction_index import Ahead, Stable, TransactionIndex
from logstore.layout.broker import producers_key, producers_prefix
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore

_CACHE_BYTES = 16 << 20


class CommittedEnds:
    """Not for threads."""

    def __init__(self) -> None:
        self._known: dict[PartitionPaths, TransactionIndex] = {}

    def look(self, store: ObjectStore, partitions: Sequence[LogPartition]) -> None:
        """From now on they end where everything before is decided. Called after each look at where they end."""
        topics = {each.topic for each in partitions if each.paths not in self._known}
        keys = {info.key for topic in topics for info in store.list(producers_prefix(topic))}
        for each in partitions:
            if each.paths not in self._known and producers_key(each.paths) in keys:
                self._known[each.paths] = TransactionIndex(store, each.paths)
            each.transactions = self._known.get(each.paths)
        side_by_side(partial(_learn, store), [each for each in partitions if each.transactions is not None])


def _learn(store: ObjectStore, partition: LogPartition) -> None:
    try:
        partition.stable = _stable(store, partition)
    except Ahead:
        partition.reload(store, LaneReader(store, max_age=math.inf))
        partition.stable = _stable(store, partition, is_newest=True)


def _stable(store: ObjectStore, partition: LogPartition, *, is_newest: bool = False) -> Stable:
    assert partition.transactions is not None
    segments = SegmentReader(store, BlockCache(_CACHE_BYTES))
    reader = PartitionReader(PartitionState(partition.view), Chain(store, partition.paths), segments)

    def read(offset: int, max_bytes: int) -> ReadResult:
        return reader.read(offset, max_bytes, "durable")

    return partition.transactions.learn(partition.low, partition.durable_end, read, is_newest=is_newest)
