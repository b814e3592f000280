"""What topics and partitions hold, as far as the store says so: for `topics` and `describe`.

To know how many records a partition has it must be loaded. What is in a lane comes with it, ten thousand partitions as cheap
as one; any other takes some three requests, so of those only `LOOK_MAX` are looked at unless somebody insists.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from logstore.cost.prices import GB, STANDARD
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.many_chains import load_some
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData, UnsupportedStore
from logstore.layout.catalog import TopicDescriptor
from logstore.layout.paths import PartitionPaths
from logstore.objects.protocol import ObjectStore

LOOK_MAX = 256
_LANES_LOOKED_FOR = 64
"""Of so many topics the first partition is looked at before any other: it leads to the lane that the rest is in."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """`records`: without those that were lost. `bytes`: of the objects that hold them. `newest_ms`: the newest timestamp;
    -1 if there is none. `writer`: the kind of the last one, and its epoch. `lane`: through which it writes; None if through
    none."""

    partition: int
    low: int
    durable: int
    records: int
    bytes: int
    segments: int
    newest_ms: int
    writer: str
    epoch: int
    lane: str | None


Facts = list[PartitionFacts] | CorruptData | UnsupportedStore | None
"""Of the partitions of a topic; why there are none; None if it was not looked at."""


def look_at(
    objects: ObjectStore,
    topics: Sequence[TopicDescriptor],
    numbers: Mapping[str, Sequence[int]] | None = None,
    most: int | None = None,
) -> dict[str, Facts]:
    """All partitions of these topics, or those with these `numbers`, by the topic's name. `most`: at most so many that are
    in no lane; a topic of which some would be left is None."""
    lanes = LaneReader(objects)
    wanted: dict[str, list[Chain]] = {}
    for topic in topics:
        chosen = range(topic.partitions) if numbers is None else numbers[topic.name]
        paths = (PartitionPaths(topic.name, topic.incarnation, number) for number in chosen)
        wanted[topic.name] = [Chain(objects, each, lanes=lanes) for each in paths]
    first = [chains[0] for chains in islice(wanted.values(), _LANES_LOOKED_FOR) if chains]
    every = dict.fromkeys([*first, *(chain for chains in wanted.values() for chain in chains)])
    views = load_some(list(every), lanes, len(every) if most is None else most)
    return {name: _facts([views.get(chain) for chain in chains]) for name, chains in wanted.items()}


@contextmanager
def nothing_collected() -> Iterator[None]:
    """What a look at many partitions makes stays to its end, and Python's collector, which goes through all of it again and
    again to find nothing, is a third of the work."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _facts(views: Sequence[ChainView | CorruptData | UnsupportedStore | None]) -> Facts:
    found: list[PartitionFacts] = []
    for view in views:
        if not isinstance(view, ChainView):
            return view
        found.append(_facts_of(view))
    return found


def _facts_of(view: ChainView) -> PartitionFacts:
    table, tail, low = view.segments.table, view.tail, view.low_watermark
    return PartitionFacts(
        partition=view.segments.paths.partition,
        low=low,
        durable=tail.end_offset,
        records=sum(
            end - max(base, low)
            for base, end in zip(table.base_offset, table.end_offset, strict=True)
            if end > low
        ),
        bytes=sum(table.size),
        segments=len(table),
        newest_ms=max(table.max_timestamp_ms, default=-1),
        writer=tail.mode.name.lower() if tail.next_seq else "none",
        epoch=tail.epoch,
        lane=tail.claim.lane if tail.claim is not None else None,
    )


def storage_dollars(size: int) -> float:
    """A month in S3 Standard."""
    return size / GB * STANDARD.storage_gb_month


def age(newest_ms: int) -> float | None:
    """Seconds since then; None if there is nothing."""
    return None if newest_ms < 0 else max(0.0, time.time() - newest_ms / 1000)
