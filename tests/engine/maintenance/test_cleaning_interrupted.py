"""B13: a pass of compaction by key that is killed, overtaken, or read and written beside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import count

import pytest

import logstore
from logstore import Record
from logstore.engine.partition.partition_log import PartitionLog
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.cleaning import append_all, check_same, clean, fold, history, reread
from tests.support.engine.dying import DiesAt, OvertakenAt
from tests.support.engine.harness import DEFAULTS, copy_of
from tests.support.engine.upkeep import GRACE_S, merge_all, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints", "lane_or_chain")


# Interrupted, overtaken, read meanwhile


def _prepared() -> tuple[MemoryStore, ManualClock, list[Record]]:
    """A log that was compacted once, whose tombstones are due, and which went on since."""
    made, at_s, stored = _prepared_once(DEFAULTS.get("writer", "exclusive"))
    objects, clock = copy_of(made), ManualClock()
    clock.advance(at_s)
    return objects, clock, list(stored)


@cache
def _prepared_once(writer: str) -> tuple[MemoryStore, float, list[Record]]:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer=writer) as store:
        log = store.create_topic("t", compact=True, segment_bytes=700, tombstone_seconds=10).partition(0)
        stored = append_all(log, history(11, 9, keys=5))
        clean(log, clock)
        clock.advance(11)
        stored += append_all(log, history(12, 7, keys=5))
    return objects, 11.0, stored


@pytest.mark.parametrize("after", [False, True])
def test_B13_killed_at_every_step(after: bool) -> None:
    for request in count():
        objects, clock, stored = _prepared()
        lifeline = DiesAt(objects)
        with open_store(lifeline, clock, writer="read_only") as store:
            log = store.topic("t").partition(0)
            log._internal.state  # noqa: B018
            lifeline.die_at(request, after=after)
            try:
                clean(log, clock)
            except logstore.LogStoreError:
                assert lifeline.died
            died = lifeline.died
            lifeline.die_at(-1, after=False)
        check_same(stored, reread(objects, clock))
        with open_store(objects, clock) as store:
            log = store.topic("t").partition(0)
            clean(log, clock)
            clock.advance(GRACE_S + 1)
            store.collect_garbage()
            left = reread(objects, clock)
            check_same(stored, left)
            assert log.append(Record(b"more", key=b"more")).offset == len(stored)
        assert sum(record.value is None for record in left) < 6
        if not died:
            assert request > 20
            return


def _meanwhile(act: str, other: PartitionLog, clock: ManualClock, stored: list[Record]) -> None:
    if act == "clean":
        clean(other, clock)
    elif act == "merge":
        merge_all(other, clock)
    elif act == "append":
        stored += append_all(other, history(20, 3))
        checkpointer = other._internal._checkpointer
        assert checkpointer is not None
        checkpointer.write()
    else:
        other.delete_before(5)


@pytest.mark.parametrize(
    "act",
    ["clean", "append", *(pytest.param(rare, marks=pytest.mark.soak) for rare in ("merge", "expire"))],
)
def test_B13_overtaken_at_every_step(act: str) -> None:
    for request in count():
        objects, clock, stored = _prepared()
        overtaken = OvertakenAt(objects)
        with (
            open_store(objects, clock) as other_store,
            open_store(overtaken, clock, writer="read_only") as store,
        ):
            other, log = other_store.topic("t").partition(0), store.topic("t").partition(0)

            overtaken.overtake_at(request, partial(_meanwhile, act, other, clock, stored))
            clean(log, clock)
            if not overtaken.overtaken:
                assert request > 20
                return
            low = 5 if act == "expire" else 0
            expected = [record for record in stored if (record.offset or 0) >= low]
            left = reread(objects, clock)
            if act != "expire":
                check_same(expected, left)
            clock.advance(11)
            clean(other, clock)
            clock.advance(GRACE_S + 1)
            other_store.collect_garbage()
            left = reread(objects, clock)
            assert fold(left) == fold(stored) or act == "expire"
            assert {record.offset for record in left} <= {record.offset for record in expected}


def test_B13_a_reader_in_the_middle_goes_on() -> None:
    """It holds references to segments that are rewritten, and then deleted, while it reads."""
    objects, clock, stored = _prepared()
    with open_store(objects, clock, writer="read_only", cache_bytes=0) as reader:
        log = reader.topic("t").partition(0)
        records: Iterator[Record] = log.records()
        seen = [next(records) for _ in range(4)]
        with open_store(objects, clock) as store:
            clean(store.topic("t").partition(0), clock)
            clock.advance(GRACE_S + 1)
            store.collect_garbage()
        seen += records
        check_same(stored, seen)


@pytest.mark.parametrize("writer", ["shared", "exclusive"])
def test_B13_beside_writers_that_go_on(writer: str) -> None:
    objects, clock = MemoryStore(), ManualClock()
    stored: list[Record] = []
    with (
        open_store(objects, clock, writer=writer) as store,
        open_store(objects, clock, writer="read_only") as other,
    ):
        store.create_topic("t", compact=True, segment_bytes=1500, tombstone_seconds=5)
        log, elsewhere = store.topic("t").partition(0), other.topic("t").partition(0)
        for turn in range(12):
            stored += append_all(log, history(turn, 6, keys=5))
            clean(elsewhere, clock)
            clock.advance(2)
            check_same(stored, list(log.records()))
        clock.advance(GRACE_S + 1)
        store.collect_garbage()
        check_same(stored, list(log.records()))
