"""L21, L22: what the log costs in requests, counted."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import WriterMode
from logstore.layout.paths import PartitionPaths
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, drive, open_store, pairs, partition, running, until
from tests.support.patience import PATIENCE_S


def requests(faulty: FaultyStore) -> Counter[str]:
    return Counter(call.operation for call in faulty.calls)


# L21


@pytest.mark.parametrize("newer", [0, 1, 7, 30])
@pytest.mark.parametrize("length", [100, 100_000])
@pytest.mark.usefixtures("own_chain")
def test_L21_opening_costs_at_most_three_requests_and_one_for_each_segment_since_the_manifest(
    length: int, newer: int
) -> None:
    """A manifest of `length` segments, and `newer` segments behind it."""
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        put_manifest(objects, log._internal.paths, length)
        for _ in range(newer):  # the first append also commits a fence
            log.append(b"x")
    behind = newer + 1 if newer else 0
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only") as store:
        log = store.topic("t").partition(0)
        faulty.forget_calls()
        assert log.durable_high_watermark == length * 10 + newer
        assert requests(faulty) == {"get": 1 + behind + (1 if behind else 0), "list": 1}
        assert sum(requests(faulty).values()) <= 3 + behind


def put_manifest(objects: MemoryStore, paths: PartitionPaths, length: int) -> None:
    """As if `length` segments of ten records had been written, one after the other."""
    table = SegmentTable()
    columns = (
        range(length),
        range(length),
        range(0, length * 10, 10),
        range(10, length * 10 + 1, 10),
        [1000] * length,
        range(length),
        range(length),
    )
    for column, values in zip(table.columns(), columns, strict=True):
        column.extend(values)
    manifest = Manifest(1, length, 1, WriterMode.EXCLUSIVE, 0, length * 10, length * 10, -1, table)
    objects.put(paths.manifest, manifest.pack())


@pytest.mark.usefixtures("own_chain")
def test_L21_a_log_that_is_written_to_stays_cheap_to_open() -> None:
    """The manifest comes by itself: whatever the length, few segments lie behind the last one."""
    objects = MemoryStore()
    for _ in range(3):
        with running(objects) as store:
            log = partition(store)
            for number in range(checkpoint.EVERY_SEGMENTS + 5):
                log.append(b"%d" % number)
        faulty = FaultyStore(objects)
        with open_store(faulty, writer="read_only") as store:
            log = store.topic("t").partition(0)
            faulty.forget_calls()
            _ = log.durable_high_watermark
            assert sum(requests(faulty).values()) <= 3 + 2 * checkpoint.EVERY_SEGMENTS
    assert len(list(objects.list(log._internal.paths.prefix))) > 3 * checkpoint.EVERY_SEGMENTS


@pytest.mark.usefixtures("own_chain")
def test_L21_taking_the_partition_over_costs_one_put_and_a_look_at_the_horizon() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"x")
    faulty = FaultyStore(objects)
    with running(faulty) as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.forget_calls()
        log.open_writer()
        assert requests(faulty) == {"put": 1, "get": 1, "list": 1}, "without a manifest a listing tells"
        faulty.forget_calls()
        log.append(b"y")
        assert requests(faulty) == {"put": 1}


@pytest.mark.parametrize("newer", [1, 7, 30])
def test_L21_N08_opening_costs_a_few_requests_and_one_for_each_entry_since_the_lanes_checkpoint(
    newer: int,
) -> None:
    """Of the partition the manifest, a listing, its claim and a look at the horizon; the same of the lane."""
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        for _ in range(newer):
            log.append(b"x")
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only") as store:
        log = store.topic("t").partition(0)
        faulty.forget_calls()
        assert log.durable_high_watermark == newer
        assert sum(requests(faulty).values()) <= 9 + newer


@pytest.mark.parametrize(("begins", "puts"), [("in a lane", 1), ("in its own chain", 2)])
def test_L21_N04_taking_over_from_a_lane_that_has_ended_puts_a_transfer_or_a_seal_and_a_claim(
    begins: str, puts: int, request: pytest.FixtureRequest
) -> None:
    if begins == "in its own chain":
        request.getfixturevalue("begin_in_own_chains")
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"x")
    faulty = FaultyStore(objects)
    with running(faulty) as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.forget_calls()
        log.open_writer()
        assert faulty.count("put") == puts
        assert sum(requests(faulty).values()) <= 12
        faulty.forget_calls()
        log.append(b"y")
        assert requests(faulty) == {"put": 1}


def has_checkpoint(log: PartitionLog) -> bool:
    """None is due any more because of the lanes of others."""
    checkpointer = log._internal._checkpointer
    return checkpointer is not None and checkpointer._lanes_behind < checkpoint.LANES_MAX


def test_L21_opening_stays_cheap_where_processes_come_and_go() -> None:
    """Each leaves a lane of its own. After a few of them a manifest holds all that the partition has in lanes."""
    objects, worst = MemoryStore(), 0
    with running(objects) as store:
        partition(store).append(b"0")
    for life in range(1, 30):
        faulty = FaultyStore(objects)
        with running(faulty) as store:
            log = store.topic("t").partition(0)
            log.open_writer()
            worst = max(worst, len(faulty.calls))
            assert log.append(b"%d" % life).offset == life
            until(partial(has_checkpoint, log))
    assert worst <= 11 * checkpoint.LANES_MAX
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == [(life, b"%d" % life) for life in range(30)]


def test_C02_N08_an_idle_poll_in_a_lane_costs_two_requests() -> None:
    """The lane's next place, and whether what was there was emptied."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(objects) as store, open_store(faulty, writer="read_only") as reader:
        partition(store).append(b"x")
        log = reader.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.forget_calls()
        log.refresh()
        assert requests(faulty) == {"get": 2}


# L22


def test_L22_a_thousand_appends_in_one_flush_interval_are_at_most_two_puts() -> None:
    """One for the fence of a writer that was not open yet, one for all the records."""
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with running(faulty, clock, flush_interval=1.0) as store:
        topic = store.create_topic("t")
        faulty.forget_calls()
        receipts = [topic.append(b"%d" % number, ack="buffered") for number in range(1000)]
        assert faulty.count("put") == 1
        drive(clock, background(receipts[-1].wait_durable, PATIENCE_S))
        puts = [call.key for call in faulty.calls if call.operation == "put"]
        assert len([key for key in puts if not key.endswith("/checkpoint")]) == 2
        assert len(puts) <= 3, "what is in the lane where the topic begins is said once more"
        assert [value for _, value in pairs(topic.partition(0), visibility="durable")] == [
            b"%d" % number for number in range(1000)
        ]


def test_L22_a_thousand_durable_appends_at_once_share_their_puts() -> None:
    faulty = FaultyStore(MemoryStore())
    gated = GatedStore(faulty)
    with running(gated) as store:
        log = partition(store)
        log.append(b"opens the writer")
        faulty.forget_calls()
        with gated.hold("put", suffix=".seg") as gate:
            futures = [log.submit(b"%d" % number) for number in range(1000)]
            gate.wait_held()
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(1, 1001))
        assert faulty.count("put") <= 2


def test_L22_an_idle_store_makes_no_request_at_all() -> None:
    """Written to, read from, followed by a tail reader, and then left alone for a year."""
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with running(faulty, clock, flush_interval=1.0) as store:
        topic = store.create_topic("t", partitions=3)
        for number in range(9):
            topic.append(b"%d" % number, partition=number % 3, ack="buffered")
        drive(clock, background(store.flush))
        log = topic.partition(0)
        waiting = background(log.read, 3, wait=400 * 86_400.0)
        until(lambda: log._internal.state._readers_waiting > 0)
        faulty.forget_calls()
        for _ in range(365):
            clock.advance(86_400.0)
        assert not waiting.done()
        assert faulty.calls == []
        topic.append(b"wakes it", partition=0, ack="buffered")
        (record,) = waiting.result(PATIENCE_S).records()
        assert (record.offset, record.value) == (3, b"wakes it")


def test_L22_reading_what_is_buffered_or_cached_costs_nothing() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        log = partition(store)
        log.append([b"stored"] * 10)
        pairs(log)  # from here on it is in the cache
        log.append([b"buffered"] * 10, ack="buffered")
        faulty.forget_calls()
        assert len(pairs(log)) == 20
        assert log._internal.read_cached(0) is not None
        assert faulty.calls == []


# What safety costs: the table in docs/protocol.md


@pytest.mark.parametrize(("writer", "gets"), [("exclusive", 2), ("shared", 1)])
@pytest.mark.usefixtures("own_chain")
def test_C02_an_idle_poll_costs_one_request_and_a_look_at_the_horizon_behind_an_exclusive_writer(
    writer: str, gets: int
) -> None:
    objects = MemoryStore()
    with running(objects, writer=writer) as store:
        partition(store).append(b"x")
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert log.durable_high_watermark == 1
        faulty.forget_calls()
        log.refresh()
        assert requests(faulty) == {"get": gets}


@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_commit_is_one_put_and_the_first_behind_an_exclusive_writer_two_and_a_look() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"x")
    faulty = FaultyStore(objects)
    with running(faulty, writer="shared") as store:
        log = store.topic("t").partition(0)
        log.open_writer()
        faulty.forget_calls()
        log.append(b"y")
        assert requests(faulty) == {"put": 2, "get": 1, "list": 1}, "without a manifest a listing tells"
        faulty.forget_calls()
        log.append(b"z")
        assert requests(faulty) == {"put": 1}


@pytest.mark.parametrize("writer", ["exclusive", "shared"])
@pytest.mark.usefixtures("own_chain")
def test_C04_collecting_costs_two_manifests_a_listing_and_two_requests_for_each_segment(writer: str) -> None:
    objects = MemoryStore()
    with running(objects, writer=writer) as store:
        log = partition(store)
        for _ in range(2):  # the first manifest of all says that anything may have been emptied
            for _ in range(20):
                log.append(b"x")
            log._internal.maintenance.compact(log._internal.now_ms, bytes(16))
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only", delete_grace=0.0) as store:
        maintenance = store.topic("t").partition(0)._internal.maintenance
        faulty.forget_calls()
        gone = len(maintenance.collect(2**62))
        assert gone >= 30
        asked = requests(faulty)
        assert asked["list"] == 2, "one for the segments, one for merged objects"
        # Each segment and the one behind the last are looked at; one manifest says the horizon, one forgets what went.
        assert asked["delete"] + asked["put"] == gone + 2
        assert asked["get"] <= gone + 1 + 3
        assert asked["head"] == 2
        assert asked["delete"] == (gone if writer == "exclusive" else 1), (
            "a merged object goes, a shared place stays"
        )
