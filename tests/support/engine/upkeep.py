"""A partition with small segments, to be kept up by hand: what the tests of maintenance share."""

from __future__ import annotations

from typing import Any

import logstore
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.partition.partition_log import PartitionLog
from logstore.testing import ManualClock
from tests.support.engine.harness import DEFAULTS

GRACE_S = 3600.0


def open_store(objects: object, clock: ManualClock, **settings: Any) -> logstore.Store:
    return logstore.open(objects, clock=clock, **{"delete_grace": GRACE_S, **DEFAULTS, **settings})  # type: ignore[arg-type]


def fill(log: PartitionLog, count: int, first: int = 0) -> list[bytes]:
    """`count` segments of one record each."""
    values = [b"value-%d" % n for n in range(first, first + count)]
    for value in values:
        log.append(value)
    return values


def values_of(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def merge_all(log: PartitionLog, clock: ManualClock) -> int:
    merged = 0
    while (count := log._internal.maintenance.compact(clock.now_ms(), b"%016d" % merged)) > 0:
        merged += count
    return merged


def refs(log: PartitionLog) -> list[SegmentRef]:
    log.refresh()
    return log._internal.state.segments.all()
