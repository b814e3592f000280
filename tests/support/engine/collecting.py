"""Compaction and garbage collection at once, with no grace or by a clock that is ahead."""

from __future__ import annotations

from typing import Any

import logstore
from logstore.objects import ObjectStore
from logstore.testing import ManualClock
from tests.support.engine.harness import open_store

DAY_S = 86_400.0


def compact(log: logstore.PartitionLog) -> None:
    assert log._internal.maintenance.compact(log._internal.now_ms, b"m" * 16) > 4


def gc(objects: ObjectStore, clock: ManualClock | None = None, grace: float = 0.0) -> list[Any]:
    """What another process does with its own clock and its own grace period."""
    with open_store(objects, clock, writer="read_only", delete_grace=grace) as store:
        return store.collect_garbage()


def collected_at_grace_0(objects: ObjectStore) -> None:
    assert len(gc(objects)) > 4


def collected_by_a_clock_that_is_ahead(objects: ObjectStore) -> None:
    ahead = ManualClock(start_ms=ManualClock().now_ms() + int(2 * DAY_S * 1000))
    assert len(gc(objects, ahead, DAY_S)) > 4


COLLECTIONS = [collected_at_grace_0, collected_by_a_clock_that_is_ahead]
