"""What topics and partitions hold, as far as the store says so: for `topics` and `describe`.

To know how many records a partition has it must be loaded, some three requests each unless many are in one lane. So
partitions are looked at side by side, and only `LOOK_MAX` of them unless somebody insists: a store of 10,000 is listed by
its catalog.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logstore.cost.prices import GB, STANDARD
from logstore.engine.partition.many_partitions import load
from logstore.engine.partition.partition_log import PartitionLog
from logstore.topic import Topic

LOOK_MAX = 256
_SIDE_BY_SIDE = 16


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """`records`: without those that were lost. `bytes`: of the objects that hold them. `newest_ms`: the newest timestamp;
    -1 if there is none. `writer`: the kind of the last one, and its epoch."""

    partition: int
    low: int
    durable: int
    records: int
    bytes: int
    segments: int
    newest_ms: int
    writer: str
    epoch: int


def look_at(log: PartitionLog) -> PartitionFacts:
    state = log._internal.state
    low, durable, _ = state.marks()
    refs = state.refs()
    lost = sum(end - start for start, end in state.lost_between(low, durable))
    tail = state.tail
    return PartitionFacts(
        partition=log.partition,
        low=low,
        durable=durable,
        records=durable - low - lost,
        bytes=sum(ref.size for ref in refs),
        segments=len(refs),
        newest_ms=max((ref.max_timestamp_ms for ref in refs), default=-1),
        writer=tail.mode.name.lower() if tail.next_seq else "none",
        epoch=tail.epoch,
    )


def look_at_all(topic: Topic, numbers: Iterable[int] | None = None) -> list[PartitionFacts]:
    """All of them, or these."""
    chosen = range(topic.partitions) if numbers is None else numbers
    logs = [topic.partition(number) for number in chosen]
    load(log._internal for log in logs)
    if len(logs) == 1:
        return [look_at(logs[0])]
    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(logs))) as pool:
        return list(pool.map(look_at, logs))


def storage_dollars(size: int) -> float:
    """A month in S3 Standard."""
    return size / GB * STANDARD.storage_gb_month


def age(newest_ms: int) -> float | None:
    """Seconds since then; None if there is nothing."""
    return None if newest_ms < 0 else max(0.0, time.time() - newest_ms / 1000)
