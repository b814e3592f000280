"""Garbage collection: only what nobody needs goes, and the log stays readable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import logstore
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.stored.manifest import Manifest
from logstore.format.stored.segment import SegmentFlags, SegmentHeader
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background
from tests.support.engine.upkeep import GRACE_S, fill, merge_all, open_store, values_of
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("how_far_the_store_is")


def test_L23_what_a_merge_that_died_has_left_is_collected_once_nothing_can_name_it() -> None:
    """The merged object stands; the manifest that should have named it was never written. As long as that one could still
    come, the object is left for the grace period; once another manifest stands, it goes at once."""
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with open_store(faulty, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 8)
        assert merge_all(log, clock)
        expected += fill(log, 40, first=8)
        before = {info.key for info in objects.list(log._internal.paths.merged_prefix)}
        faulty.fail("put", suffix="manifest", times=None, with_=Fault.LOSE_REQUEST)
        with pytest.raises(logstore.errors.StoreError):
            log._internal.maintenance.compact(clock.now_ms(), b"d" * 16)
        (left,) = {info.key for info in objects.list(log._internal.paths.merged_prefix)} - before
        faulty.heal()
        assert store.collect_garbage(dry_run=True) == []
        assert log._internal.maintenance.compact(clock.now_ms(), b"l" * 16) > 1
        live = {info.key for info in objects.list(log._internal.paths.merged_prefix)} - before - {left}
        assert left in [item.key for item in store.collect_garbage(dry_run=True)]
        assert left in [item.key for item in store.collect_garbage()]
        assert live <= {info.key for info in objects.list(log._internal.paths.merged_prefix)} <= live | before
        assert values_of(log) == expected
    with open_store(objects, clock) as store:
        assert values_of(store.topic("t").partition(0)) == expected


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W06_a_fence_is_never_deleted_so_a_writer_that_slept_still_meets_it() -> None:
    objects, clock = MemoryStore(), ManualClock()
    sleeper = open_store(objects, clock)
    asleep = sleeper.create_topic("t").partition(0)
    asleep.append(b"before")
    with open_store(objects, clock) as store:
        log = store.topic("t").partition(0)
        fill(log, 20)
        merge_all(log, clock)
        clock.advance(100 * GRACE_S)
        log._internal.maintenance.collect(clock.now_ms())
    headers = [
        SegmentHeader.parse(objects.get(info.key))
        for info in objects.list("topics/")
        if "merged" not in info.key and info.key.endswith(".seg")
    ]
    assert sum(SegmentFlags.FENCE in header.flags for header in headers) == 2
    with pytest.raises(logstore.Fenced, match="epoch 2"):
        asleep.append(b"into the past")
    sleeper.close()


class Merged(NamedTuple):
    """A partition most of whose twenty segments have just become one. `way`: the store's way to its objects."""

    log: PartitionLog
    way: FaultyStore
    clock: ManualClock

    def collect(self) -> list[Garbage]:
        return self.log._internal.maintenance.collect(self.clock.now_ms())

    @property
    def retired(self) -> list[str]:
        """The keys."""
        paths, retired = (
            self.log._internal.paths,
            Manifest.parse(self.way.get(self.log._internal.paths.manifest)).retired,
        )
        ever = self.clock.now_ms() + 1
        return [paths.segment(one) if isinstance(one, int) else one for one, _ in retired.until(ever)]


@pytest.fixture
def merged() -> Iterator[Merged]:
    way, clock = FaultyStore(MemoryStore()), ManualClock()
    with open_store(way, clock) as store:
        log = store.create_topic("t").partition(0)
        fill(log, 20)
        assert merge_all(log, clock) >= 15
        way.forget_calls()
        yield Merged(log, way, clock)


@pytest.mark.usefixtures("own_chain")
def test_L23_collecting_asks_about_no_object_that_is_still_in_its_grace_period(merged: Merged) -> None:
    """On a busy partition a day's worth of objects waits to be deleted: not a request for each of them, each time."""
    assert merged.collect() == []
    asked = {call.key for call in merged.way.calls if call.operation == "head"}
    assert not [key for key in asked if key.endswith(".seg")]
    merged.clock.advance(GRACE_S)
    assert len(merged.collect()) >= 15


def test_L24_a_round_beside_the_writer_deletes_so_many_and_the_next_ones_the_rest(merged: Merged) -> None:
    """After a day without one there may be a million: the partitions of a store take turns at it."""
    merged.clock.advance(GRACE_S)
    everything = merged.retired
    first = merged.log._internal.maintenance.collect(merged.clock.now_ms(), at_most=5)
    assert [item.key for item in first] == everything[:5]
    assert merged.retired == everything[5:]
    assert [item.key for item in merged.collect()] == everything[5:]
    assert merged.retired == []


@pytest.mark.usefixtures("own_chain")
def test_L23_what_was_deleted_and_could_not_be_noted_is_noted_by_the_next_one(merged: Merged) -> None:
    """Else the manifest would name it, and each run would ask for it, for ever."""
    merged.clock.advance(GRACE_S)
    merged.way.fail("put", suffix="manifest", times=1, with_=Fault.REFUSE)
    with pytest.raises(logstore.Determinate):
        merged.collect()
    left = merged.retired
    assert len(left) >= 15
    assert not [key for key in left if merged.way.head(key)]
    assert merged.collect() == []
    assert merged.retired == []


def test_L23_collecting_where_there_is_nothing_to_collect_costs_one_request(merged: Merged) -> None:
    assert merged.collect() == []
    assert [(call.operation, call.key) for call in merged.way.calls] == [
        ("get", merged.log._internal.paths.manifest)
    ]


@pytest.mark.usefixtures("own_chain")
def test_L24_of_two_who_collect_at_once_neither_fails() -> None:
    """One has looked at an object and the other deletes it, before the first reads what it is."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with open_store(objects, clock) as store, open_store(gated, clock, writer="read_only") as other:
        log = store.create_topic("t").partition(0)
        fill(log, 20)
        assert merge_all(log, clock)
        clock.advance(GRACE_S)
        with gated.hold("get", suffix=".seg") as gate:
            collecting = background(
                other.topic("t").partition(0)._internal.maintenance.collect, clock.now_ms()
            )
            gate.wait_held()
            assert len(log._internal.maintenance.collect(clock.now_ms())) >= 15
        collecting.result(PATIENCE_S)
        assert log._internal.maintenance.garbage(clock.now_ms()) == []
