"""What the log holds, as the driver sees it when it plans: topics from the catalog, segments from the manifests.

A partition costs one GET of its manifest, one LIST of what is newer, and one small GET for each of those; many
partitions are asked side by side. Those that are in a lane cost nothing each: what the lane says of them is read once. No
segment's records are read. Memory is O(segments): some numbers for each.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from logstore.arrow.plan.request import Subscription
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.many_chains import load_all
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.read.partition_reader import PartitionReader
from logstore.engine.read.transaction_index import Stable, TransactionIndex
from logstore.errors import LogStoreError, UnknownTopic
from logstore.format.batches.transactions import Aborted
from logstore.layout.catalog import Catalog, TopicDescriptor
from logstore.layout.paths import STORE_KEY, PartitionPaths, is_internal
from logstore.objects import ObjectStore, RetryingStore, RetryPolicy, open_url
from logstore.objects.fan_out import fan_out
from logstore.objects.wrappers.slices import SlicedStore

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_INDEX_CACHE_BYTES = 16 << 20
_tasks = itertools.count()

T = TypeVar("T")
R = TypeVar("R")


def open_store(path: str) -> ObjectStore:
    """The store of this process, riding out failures of some seconds: an error on the driver ends a whole query."""
    store = RetryingStore(SlicedStore(open_url(path)), RetryPolicy(attempts=6, base_s=0.1, cap_s=3.0))
    _spare_modules_from_collection()
    return store


def _spare_modules_from_collection() -> None:
    """A Python worker of Spark collects garbage after each task, through all that was ever imported: 20 ms, a tenth of what
    a task of ours takes. What is there when its second task begins is there to stay (the first has imported what tasks need,
    and what it left behind was collected), so the collector need not look at it again."""
    if "SPARK_REUSE_WORKER" in os.environ and next(_tasks) == 1:
        gc.freeze()


@dataclass(slots=True)
class LogPartition:
    """One partition and its segments, as last loaded."""

    paths: PartitionPaths
    view: ChainView
    transactions: TransactionIndex | None = None
    stable: Stable | None = None
    """For a read of committed records, where there are transactions: see `plan.committed`."""

    @property
    def topic(self) -> str:
        return self.paths.topic

    @property
    def number(self) -> int:
        return self.paths.partition

    @property
    def low(self) -> int:
        return self.view.low_watermark

    @property
    def end(self) -> int:
        """One past the last offset that is read: durable, and decided if that was asked for."""
        return self.durable_end if self.stable is None else max(self.low, self.stable.end)

    @property
    def durable_end(self) -> int:
        """One past the last durable offset."""
        return self.view.tail.end_offset

    def aborted(self, start: int, stop: int) -> tuple[Aborted, ...]:
        """The transactions with records between these offsets that are to be left out."""
        return () if self.transactions is None else tuple(self.transactions.aborted(start, stop))

    def follow(self, store: ObjectStore, lanes: LaneReader) -> None:
        """Take in what was committed since: one or two requests if nothing was."""
        view = self.view
        links = Chain(store, self.paths, lanes=lanes).follow(view.tail)
        if links is None:
            self.reload(store, lanes)
        for link in links or ():
            view.add(link)

    def reload(self, store: ObjectStore, lanes: LaneReader) -> None:
        """Ask the manifest again: maintenance may have merged or expired segments."""
        self.view = Chain(store, self.paths, lanes=lanes).load()

    def first_at(self, store: ObjectStore, timestamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one: one index and one block are read, as a broker would."""
        reader = SegmentReader(store, BlockCache(_INDEX_CACHE_BYTES))
        return PartitionReader(PartitionState(self.view), Chain(store, self.paths), reader).first_at(
            timestamp_ms
        )


def is_deleted(store: ObjectStore, paths: PartitionPaths) -> bool:
    """Whether the partition is known to be one of a topic that was deleted."""
    try:
        return Chain(store, paths).load().tail.deleted
    except LogStoreError:
        return False


def subscribed(store: ObjectStore, wanted: Subscription, *, missing_ok: bool = False) -> list[PartitionPaths]:
    """The partitions that a subscription means right now, sorted. What is named must exist, or may be missing."""
    catalog = Catalog(store)
    if wanted.pattern is not None:
        return [paths for topic in _matching(store, wanted.pattern) for paths in _all_of(topic)]
    found: list[PartitionPaths] = []
    for name, numbers in wanted.assigned or [(name, None) for name in wanted.topics]:
        try:
            topic = catalog.find(name)
        except UnknownTopic:
            if not missing_ok:
                raise
            continue
        found += _all_of(topic) if numbers is None else _some_of(topic, numbers, missing_ok)
    return found


def _matching(store: ObjectStore, pattern: str) -> list[TopicDescriptor]:
    """The topics in whose name the pattern is found, anywhere, as Spark's Kafka source takes it; none that is internal."""
    topics = Catalog(store).all()
    if not topics and store.head(STORE_KEY) is None:
        raise UnknownTopic(
            f"subscribePattern={pattern!r}: there is no log store in {store!r}. Check the path or URL"
        )
    return [topic for topic in topics if re.search(pattern, topic.name) and not is_internal(topic.name)]


def warn_if_nothing(store: ObjectStore, wanted: Subscription, found: Collection[object]) -> None:
    """A pattern that means no topic is no error, because topics may come; a mistake looks the same, so it is said."""
    if wanted.pattern is not None and not found:
        logger.warning(
            "subscribePattern=%r is found in no topic's name in %r (internal ones, __…, are never meant): nothing is read",
            wanted.pattern,
            store,
        )


def _all_of(topic: TopicDescriptor) -> list[PartitionPaths]:
    return [PartitionPaths(topic.name, topic.incarnation, number) for number in range(topic.partitions)]


def _some_of(topic: TopicDescriptor, numbers: Iterable[int], missing_ok: bool) -> list[PartitionPaths]:
    for number in numbers:
        if number >= topic.partitions and not missing_ok:
            raise UnknownTopic(
                f"assign: topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number}"
            )
    there = [number for number in numbers if number < topic.partitions]
    return [PartitionPaths(topic.name, topic.incarnation, number) for number in there]


def load(
    store: ObjectStore, wanted: Iterable[PartitionPaths], *, missing_ok: bool = False
) -> list[LogPartition]:
    """The segments of each partition, in the order given. A topic that was deleted since it was found is treated as one
    that was not there: an empty partition would be a lie. A lane is read once for all of them."""
    lanes = LaneReader(store, max_age=math.inf)
    chains = [Chain(store, paths, lanes=lanes) for paths in wanted]
    found = [
        LogPartition(chain.paths, view)
        for chain, view in zip(chains, load_all(chains, lanes), strict=True)
        if missing_ok or not view.tail.deleted
    ]
    if len(found) < len(chains):
        known = {partition.paths for partition in found}
        gone = next(chain.paths for chain in chains if chain.paths not in known)
        raise UnknownTopic(f"{gone}: the topic was deleted")
    return [partition for partition in found if not partition.view.tail.deleted]


def side_by_side(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`call(item)` for each item, in their order: one partition after the other where the store answers at once, which
    keeps the interpreter busy, else many at a time."""
    return list(fan_out((partial(call, item) for item in items), at_once=_AT_ONCE))
