"""Many partitions of a lane are planned, opened and followed with the requests of one (N08)."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

import logstore
from logstore.arrow.plan.log_partitions import LogPartition, load
from logstore.engine.chain.chain import Chain
from logstore.engine.maintenance.lane_maintenance import LaneMaintenance
from logstore.engine.partition import many_partitions
from logstore.errors import Fenced
from logstore.format.stored.entry import Entry, EntryKind
from logstore.format.stored.lane_checkpoint import LaneCheckpoint
from logstore.layout.paths import LANES_PREFIX, LanePaths, PartitionPaths, is_birth_lane
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.wrappers.slices import SlicedStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, running, until

MANY = 1000


def filled(store: logstore.Store, partitions: int, rounds: int, topic: str = "t") -> list[PartitionPaths]:
    """A record in each partition, so many times."""
    made = store.create_topic(topic, partitions, exist_ok=True)
    for number in range(rounds):
        for each in range(partitions):
            made.partition(each).append(b"%d" % number, ack="buffered")
        store.flush()
    return [made.partition(each)._internal.paths for each in range(partitions)]


def planned(objects: ObjectStore, wanted: list[PartitionPaths]) -> tuple[list[LogPartition], FaultyStore]:
    counted = FaultyStore(objects)
    return load(SlicedStore(counted), wanted), counted


def entries(objects: ObjectStore) -> int:
    """How many a flush makes depends on what came first."""
    return sum(info.key.endswith(".seg") for info in objects.list(LANES_PREFIX))


def lanes_of(objects: ObjectStore) -> list[str]:
    """Those that somebody owns."""
    lanes = {info.key.split("/")[1] for info in objects.list(LANES_PREFIX)}
    return sorted(lane for lane in lanes if not is_birth_lane(lane))


def test_N08_a_thousand_partitions_are_planned_with_the_requests_of_one_lane() -> None:
    """While their writer lives, and after it has closed."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        wanted = filled(store, MANY, 2)
        found, counted = planned(objects, wanted)
        assert [partition.end for partition in found] == [2] * MANY
        assert len(counted.calls) <= min(80, 16 + entries(objects))
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [2] * MANY
    assert len(counted.calls) <= min(80, 16 + entries(objects))
    assert [partition.view.segments.all() for partition in found[::100]] == [
        Chain(SlicedStore(objects), paths).load().segments.all() for paths in wanted[::100]
    ]


@pytest.mark.soak
def test_N08_ten_thousand_partitions_are_planned_with_two_hundred_requests() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        wanted = filled(store, 10 * MANY, 2)
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [2] * 10 * MANY
    assert len(counted.calls) <= 200


def test_N08_the_partitions_of_a_process_that_was_killed_are_planned_likewise() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    wanted = filled(store, 100, 3)
    crash(store)
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [3] * 100
    assert len(counted.calls) <= 20 + entries(objects)


def test_N08_a_full_lane_costs_no_more_than_its_checkpoint_and_what_came_since() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    wanted = filled(store, 20, 70)
    crash(store)
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [70] * 20
    assert len(counted.calls) <= 80


def test_N08_an_entry_of_a_thousand_parts_is_looked_at_with_one_request() -> None:
    """Its directory is larger than the tail that a look asks for if it knows nothing; the checkpoint knows how wide it
    is."""
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    wanted = filled(store, MANY, 1)
    store._lanes._lanes[0].checkpoints.write()
    filled(store, MANY, 3)
    crash(store)
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [4] * MANY
    seen = [call.key for call in counted.calls if call.key.endswith(".seg") and call.key.startswith("lanes/")]
    assert len(set(seen)) >= 2
    assert len(seen) == len(set(seen)), "each once: those that are there, and the empty place behind them"


def test_N08_partitions_that_moved_are_found_in_their_new_lane() -> None:
    objects = MemoryStore()
    first = open_store(objects, lanes=1)
    wanted = filled(first, 60, 2)
    with running(objects, lanes=1) as second:
        for number in range(40, 60):
            second.topic("t").partition(number).append(b"moved")
        found, counted = planned(objects, wanted)
        moved = second.topic("t").partition(50)
        assert [partition.end for partition in found] == [2] * 40 + [moved.durable_high_watermark] * 20
        assert len(counted.calls) <= 40 + entries(objects)
        with running(objects, writer="read_only") as reader:
            many_partitions.load(reader.topic("t").partition(number)._internal for number in range(60))
            assert [value for _, value in pairs(reader.topic("t").partition(50))] == [b"0", b"1", b"moved"]
    crash(first)


def test_N08_fifty_lanes_of_one_topic_are_planned_with_a_few_requests_each() -> None:
    objects = MemoryStore()
    stores = [open_store(objects, lanes=1) for _ in range(50)]
    topic = stores[0].create_topic("t", 200)
    for number in range(200):
        for _ in range(3):
            stores[number % 50].topic("t").partition(number).append(b"x")
    wanted = [topic.partition(number)._internal.paths for number in range(200)]
    found, counted = planned(objects, wanted)
    assert [partition.end for partition in found] == [3] * 200
    assert len(counted.calls) < 50 * 24, "4 partitions each, 12 entries"
    checkpoints = [info for info in objects.list(LANES_PREFIX) if info.key.endswith("checkpoint")]
    entries = [info for info in objects.list(LANES_PREFIX) if info.key.endswith(".seg")]
    assert len(checkpoints) * 10 <= len(entries)
    for store in stores:
        crash(store)


def test_N08_a_thousand_topics_of_one_partition_cost_no_more_puts_than_one() -> None:
    """What a lane says of its partitions comes with its entries and its checkpoints: no object for a topic is written."""
    objects = MemoryStore()
    counted = FaultyStore(objects)
    with running(counted, lanes=1) as store:
        logs = [store.create_topic(f"t{number}").partition(0) for number in range(MANY)]
        for log in logs:
            log.append(b"0", ack="buffered")
        store.flush()
        counted.forget_calls()
        for number in range(70):
            for log in logs[number::70]:
                log.append(b"1", ack="buffered")
            store.flush()
        puts = [call.key for call in counted.calls if call.operation == "put"]
        assert all(key.startswith(LANES_PREFIX) for key in puts)
        # The lanes where the topics begin get theirs once, when nobody has claimed anything for a second.
        puts = [key for key in puts if not is_birth_lane(key.split("/")[1])]
        assert sum(key.endswith("checkpoint") for key in puts) * 10 <= len(puts)
    found, _ = planned(objects, [log._internal.paths for log in logs])
    assert [partition.end for partition in found] == [2] * MANY


def test_N08_a_thousand_idle_partitions_are_followed_with_four_requests_an_interval(
    clock: ManualClock,
) -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as writer:
        filled(writer, MANY, 1)
        counted = FaultyStore(objects)
        with running(counted, clock, writer="read_only", follow_interval=0.5) as reader:
            topic = reader.topic("t")
            counted.forget_calls()
            many, _ = topic._internal.many(None, "durable")
            many.put([topic._internal.cursor(number, None) for number in range(MANY)])
            assert many.take(0) == []
            assert len(counted.calls) <= 20 + entries(objects), "to open them all"
            assert sum(len(taken.records) for taken in many.take(2 * MANY)) == MANY
            for _ in range(3):
                clock.advance(0.5)
                counted.forget_calls()
                assert many.take(MANY) == []
                assert len(counted.calls) <= 2, "four a second"
            writer.topic("t").partition(617).append(b"new")
            clock.advance(0.5)
            assert [taken.records[0].value for taken in many.take(MANY)] == [b"new"]
            many.close()


def test_N08_all_ends_are_looked_at_with_a_few_requests() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as writer:
        filled(writer, 100, 1)
        counted = FaultyStore(objects)
        with running(counted, writer="read_only") as reader:
            logs = [reader.topic("t").partition(number)._internal for number in range(100)]
            many_partitions.look_at(logs)
            before = entries(objects)
            filled(writer, 100, 1)
            counted.forget_calls()
            many_partitions.look_at(logs)
            assert [log.high_watermark("durable") for log in logs] == [2] * 100
            assert len(counted.calls) <= entries(objects) - before + 2


def test_N05_nobody_goes_on_behind_a_claim_without_a_seal_that_names_it() -> None:
    """Not behind a fence, either: who knows a partition by its lane alone would not learn it."""
    objects = MemoryStore()
    with running(objects, lanes=1) as first:
        wanted = filled(first, 20, 1)
    [lane] = lanes_of(objects)
    with running(objects, lanes=1) as second:
        second.topic("t").partition(3).append(b"more")
        state = second._runtime.lanes.snapshot(lane)
        assert [key.prefix for key, one in state.claims.items() if one.is_left] == [wanted[3].prefix]
        assert all(one.is_sealed for one in state.claims.values())
        found, _ = planned(objects, wanted)
        assert [partition.end for partition in found] == [1, 1, 1, 2] + [1] * 16


def test_N08_a_base_that_cannot_be_read_is_done_without() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        wanted = filled(store, 10, 1)
        store._lanes._lanes[0].checkpoints.write()
    [lane] = lanes_of(objects)
    key = LanePaths(lane).checkpoint
    known = LaneCheckpoint.parse(objects.get(key))
    objects.put(key, replace(known, bases=b"no zstd at all").pack())
    found, _ = planned(objects, wanted)
    assert [partition.end for partition in found] == [1] * 10


def test_L24_what_retention_has_deleted_is_not_planned_from_a_lane(often: None, clock: ManualClock) -> None:
    """By another process than the lane's owner, who has not heard of it."""
    objects = MemoryStore()
    owner = open_store(objects, clock, lanes=1)
    topic = owner.create_topic("t", 4)
    for value in range(9):  # 36 entries: checkpoints, and a split
        for number in range(4):
            topic.partition(number).append(b"%d" % value)
    with running(objects, clock, lanes=0, delete_grace=0.0) as other:
        log = other.topic("t").partition(1)
        log.delete_before(5)
        clock.advance(3600.0)
        assert log._internal.maintenance.collect(clock.now_ms())
    paths = [topic.partition(number)._internal.paths for number in range(4)]
    assert [partition.low for partition in planned(objects, paths)[0]] == [0, 5, 0, 0]
    for value in range(9, 12):  # the owner's next checkpoints say it, too
        for number in range(4):
            topic.partition(number).append(b"%d" % value)
    found, _ = planned(objects, paths)
    assert [partition.low for partition in found] == [0, 5, 0, 0]
    assert [partition.end for partition in found] == [12] * 4
    crash(owner)


def appended(store: logstore.Store, number: int, value: bytes) -> None:
    """By a writer that may have been stopped, and not have heard of it."""
    log = store.topic("t").partition(number)
    try:
        log.append(value)
    except Fenced:
        log.reopen().append(value)


@pytest.mark.parametrize("seed", range(6))
def test_N08_what_is_known_by_lanes_is_what_is_there(seed: int, often: None) -> None:
    """Owners that close, die and take partitions from each other, splits, compaction and collection between: a reader that
    loads all partitions at once reads what was appended."""
    chance = random.Random(seed)
    objects, clock = MemoryStore(), ManualClock()
    expected: dict[int, list[bytes]] = defaultdict(list)
    count = 8
    stores = [open_store(objects, clock, lanes=1, delete_grace=0.0)]
    stores[0].create_topic("t", count)
    for step in range(60):
        store = chance.choice(stores)
        match chance.randrange(8):
            case 0:
                stores.append(open_store(objects, clock, lanes=chance.choice([0, 1, 1]), delete_grace=0.0))
            case 1 if len(stores) > 1:
                stores.remove(store)
                crash(store) if chance.random() < 0.5 else store.close()
            case 2:
                log = store.topic("t").partition(chance.randrange(count))
                clock.advance(60.0)
                log._internal.maintenance.compact(clock.now_ms(), b"%016d" % step)
                log._internal.maintenance.collect(clock.now_ms())
            case 3:
                clock.advance(60.0)
                LaneMaintenance(store._runtime).collect()
            case _:
                for number in chance.sample(range(count), 4):
                    value = b"%d-%d" % (step, number)
                    appended(store, number, value)
                    expected[number].append(value)
        with running(objects, clock, writer="read_only") as reader:
            logs = [reader.topic("t").partition(number) for number in range(count)]
            many_partitions.load(log._internal for log in logs)
            for number, log in enumerate(logs):
                assert [value for _, value in pairs(log)] == expected[number], (
                    f"step {step}, partition {number}"
                )
    for store in stores:
        crash(store)


def test_N04_those_who_take_over_at_the_same_time_share_an_entry() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    filled(store, 30, 1)
    crash(store)
    [lane] = lanes_of(objects)
    gated = GatedStore(objects)
    with running(gated, lanes=1, take_over=True) as taker:
        logs = [taker.topic("t").partition(number) for number in range(30)]
        many_partitions.load(log._internal for log in logs)
        with gated.hold("put", prefix=f"lanes/{lane}/") as gate:
            taking = [background(log.append, b"taken") for log in logs]
            gate.wait_held()
            until(lambda: len(taker._lanes._lanes[0]._book.known.claims) == 30)
            gate.open()
            assert len({future.result().offset for future in taking}) == 1
        log = taker._runtime.lanes._lanes[lane].log
        seals = [
            entry
            for entry in log.entries_from(0)
            if isinstance(entry, Entry) and entry.header.kind is EntryKind.TRANSFER
        ]
        assert len(seals) <= 3
        assert sum(len(entry.seals) for entry in seals) == 30
