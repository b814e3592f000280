"""What is promised to readers of a partition's own chain, on lanes: after the entries were split and deleted under them,
with requests that fail, and how often each entry is asked for."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

import logstore
from logstore.engine.lanes.known_lane import KnownLane, let_go_of_old
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData, StoreUnavailable
from logstore.objects import MemoryStore
from logstore.objects.wrappers.slices import whole
from logstore.testing import FaultyStore, GatedStore, ManualClock, SlowStore
from tests.support.engine.harness import (
    at,
    background,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from tests.support.patience import PATIENCE_S

GRACE_S = 3600.0
T0 = 1_700_000_000_000


def entries(objects: MemoryStore) -> list[str]:
    return [info.key for info in objects.list("lanes/") if info.key.endswith(".seg")]


def lane_of(store: logstore.Store) -> str:
    (lane,) = store._lanes.overviews()
    return lane.name


def go_on_for_a_while(
    store: logstore.Store, objects: MemoryStore, clock: ManualClock, values: list[bytes]
) -> None:
    """Append them one by one; then what the lane holds is merged, the grace period passes, its old entries are deleted."""
    log = partition(store)
    for value in values:
        log.append(value)
    lane = store._lanes.of(log._internal.paths)
    assert lane is not None
    before = entries(objects)
    log._internal.maintenance.compact(clock.now_ms(), b"m" * 16)
    lane.checkpoints.write()
    clock.advance(2 * GRACE_S)
    lane.checkpoints.write()
    store.collect_garbage()
    lane.checkpoints.write()
    assert len(entries(objects)) < len(before) - 4, "the test is about entries that are gone"


def opened(objects: MemoryStore, clock: ManualClock, **settings: object) -> logstore.Store:
    return open_store(objects, clock, **{"delete_grace": GRACE_S, "take_over": True, **settings})


@pytest.mark.parametrize("moved_since", [False, True])
def test_L23_C02_a_reader_that_idled_until_the_entries_were_gone_sees_what_came_since(
    moved_since: bool, often: None
) -> None:
    objects, clock = MemoryStore(), ManualClock()
    writing = opened(objects, clock)
    partition(writing).append(b"v0")
    with opened(objects, clock, writer="read_only") as reading:
        log = reading.topic("t").partition(0)
        assert pairs(log) == at(0, numbered(0, 1))
        if moved_since:
            writing.close()
            writing = opened(objects, clock)
        go_on_for_a_while(writing, objects, clock, numbered(1, 19))
        assert log.read(1).next_offset > 1
        assert log.durable_high_watermark == 20
        assert pairs(log) == at(0, numbered(0, 20))
    writing.close()


@pytest.mark.parametrize("lanes", [1, 0])
def test_W06_a_log_that_was_only_read_until_the_entries_were_gone_appends_at_the_end(
    lanes: int, often: None
) -> None:
    objects, clock = MemoryStore(), ManualClock()
    peer = opened(objects, clock)
    partition(peer).append(b"v0")
    with opened(objects, clock, lanes=lanes) as store:
        log = store.topic("t").partition(0)
        assert pairs(log) == at(0, numbered(0, 1))
        go_on_for_a_while(peer, objects, clock, numbered(1, 19))
        assert log.append(b"v20").offset == 20
        assert log.append(b"v21").offset == 21
        assert pairs(log) == at(0, numbered(0, 22))
    peer.close()


def test_L26_a_look_up_by_time_survives_the_split_of_its_entries_and_names_what_is_missing(
    often: None,
) -> None:
    objects, clock = MemoryStore(), ManualClock()
    with opened(objects, clock) as store:
        log = partition(store)
        for time in range(20):
            log.append(logstore.Record(b"x", timestamp_ms=T0 + time))
        with opened(objects, clock, writer="read_only", cache_bytes=0) as reader:
            old = reader.topic("t").partition(0)
            assert old.durable_high_watermark == 20
            go_on_for_a_while(store, objects, clock, [])
            assert old.offset_for_timestamp(T0 + 3) == 3
            (merged, *_) = [info.key for info in objects.list(log._internal.paths.merged_prefix)]
            objects.delete(merged)
            with pytest.raises(CorruptData, match="missing") as caught:
                old.offset_for_timestamp(T0 + 3)
            assert caught.value.key == merged


def test_L30_a_failed_get_of_an_entry_is_not_remembered() -> None:
    objects = MemoryStore()
    with running(objects, compression="none") as store:
        partition(store).append(b"x" * 300_000)
    gated = GatedStore(objects)
    with open_store(gated, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        with gated.hold("get", prefix="lanes/", suffix=".seg") as gate:
            reader = background(log.read, 0)
            gate.wait_held()
            refused = StoreUnavailable("not today")
            refused.retriable = False
            gate.fail(refused)
            with pytest.raises(StoreUnavailable):
                reader.result(PATIENCE_S)
        assert [len(value) for _, value in pairs(log)] == [300_000]


def large_entries(count: int) -> MemoryStore:
    """Each with a segment that a look at the lane does not bring along."""
    objects = MemoryStore()
    with running(objects, compression="none") as store:
        log = partition(store)
        for number in range(count):
            log.append(b"%d" % number * 150_000)
    return objects


def test_L30_a_sequential_read_of_a_lane_prefetches_the_next_entry() -> None:
    objects = large_entries(5)
    gated = GatedStore(objects)
    with open_store(gated, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        second = whole(log._internal.state.segments.all()[1].key)
        with gated.hold("get", prefix=second) as gate:
            assert log.read(0, 1).next_offset == 1
            (held,) = gate.wait_held()
            assert held.key == second, "nobody has asked for its records yet"
        assert [offset for offset, _ in pairs(log)] == list(range(5))


def test_L30_every_entry_is_fetched_once_in_a_scan_with_prefetch(clock: ManualClock) -> None:
    objects = large_entries(12)
    faulty = FaultyStore(SlowStore(objects, get=0.020, sleep=clock.advance))
    with open_store(faulty, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        refs = {whole(ref.key) for ref in log._internal.state.segments.all()}
        assert len(refs) == 12
        faulty.forget_calls()
        assert len(pairs(log)) == 12
        fetched = Counter(call.key for call in faulty.calls if call.operation == "get")
        assert {key: fetched[key] for key in refs} == dict.fromkeys(refs, 1)


def test_L30_two_scans_of_a_lane_each_read_ahead(clock: ManualClock) -> None:
    objects = large_entries(12)
    with open_store(SlowStore(objects, get=0.020, sleep=clock.advance), clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        for step in range(3):
            for begin in (0, 6):
                assert [record.offset for record in log.read(begin + step, 1).records()] == [begin + step]
        keys = [ref.key for ref in log._internal.state.segments.all()]
        known = store._runtime.cache.is_known
        until(lambda: all(known((keys[begin + 3], "all")) for begin in (0, 6)))


def test_L08_who_reads_for_years_does_not_keep_the_lanes_of_all_processes_that_ever_wrote() -> None:
    """Of those that it has not asked for long it knows nothing more, and asks again when somebody does."""
    objects, clock = MemoryStore(), ManualClock()
    read: list[weakref.ref[LaneState]] = []
    opened(objects, clock).close()
    with opened(objects, clock, writer="read_only") as reader:
        for life in range(5):
            with opened(objects, clock) as writer:
                topic = writer.create_topic("t", 2, exist_ok=True)
                for number in range(2 if life == 0 else 1):
                    topic.partition(number).append(b"%d" % life)
            log, slow = (reader.topic("t").partition(number) for number in range(2))
            log.refresh()
            assert pairs(log) == at(0, numbered_lives(life + 1))
            if life == 0:
                assert pairs(slow) == [(0, b"0")]
            known = reader._runtime.lanes._lanes.values()
            read += [weakref.ref(lane.state) for lane in known if lane.state is not None]
            clock.advance(2 * GRACE_S)
        kept = [lane for lane in reader._runtime.lanes._lanes.values() if lane.state is not None]
        assert len(kept) <= 3
        with opened(objects, clock) as writer:
            assert writer.topic("t").partition(1).append(b"late").offset == 1
        slow.refresh()
        assert pairs(slow) == [(0, b"0"), (1, b"late")]
        assert sum(state() is not None for state in read) <= 2 * len(kept)


def test_L08_thousands_of_lanes_that_are_met_at_once_are_not_gone_through_with_each() -> None:
    clock, times, due = ManualClock(), 0, -math.inf

    def gone_through() -> Iterator[KnownLane]:
        nonlocal times
        times += 1
        yield from ()

    for _ in range(1000):
        due = let_go_of_old(gone_through(), clock.monotonic(), due)
    assert times == 1
    clock.advance(3600.0)
    let_go_of_old(gone_through(), clock.monotonic(), due)
    assert times == 2


def numbered_lives(count: int) -> list[bytes]:
    return [b"%d" % life for life in range(count)]
