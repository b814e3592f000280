"""L21, L22, L30: what the log costs in requests, counted."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest

from logstore.engine.chain import segment_reader
from logstore.engine.chain.chain import Chain
from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import StoreUnavailable
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import WriterMode
from logstore.layout.paths import PartitionPaths
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock, SlowStore
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


def test_L21_N04_taking_over_from_a_lane_that_has_ended_puts_a_seal_and_a_claim() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"x")
    faulty = FaultyStore(objects)
    with running(faulty) as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.forget_calls()
        log.open_writer()
        assert faulty.count("put") == 2
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
        assert faulty.count("put") == 2
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


# L30


@pytest.mark.parametrize("size", ["whole", "by blocks"])
def test_L30_ten_concurrent_readers_of_one_cold_segment_make_one_get(
    monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Of a segment that comes whole: one. Of a large one: one for its index and one for the block that all of them want."""
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append([b"value-%d" % number for number in range(100)])
    if size == "by blocks":
        monkeypatch.setattr(segment_reader, "WHOLE_BYTES", 0)
        monkeypatch.setattr(segment_reader, "SCAN_WHOLE_BYTES", 0)
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    with open_store(gated, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        store._runtime.cache.clear()  # what came with the look at where the log ends
        faulty.forget_calls()
        started = threading.Barrier(11)

        def read(offset: int) -> bytes | None:
            started.wait()
            return next(record for record in log.read(offset).records() if record.offset == offset).value

        with gated.hold("get", suffix=".seg") as gate:
            readers = [background(read, offset) for offset in range(10)]
            started.wait()
            gate.wait_held()
            until(lambda: store._runtime.cache.misses == 1 and len(gate.held) == 1)
        assert [reader.result(PATIENCE_S) for reader in readers] == [
            b"value-%d" % number for number in range(10)
        ]
        assert faulty.count("get", suffix=".seg") == (1 if size == "whole" else 2)


@pytest.mark.usefixtures("own_chain")
def test_L30_a_segment_that_a_scan_has_loaded_whole_serves_the_readers_of_its_blocks() -> None:
    """One reader wants a block of it, a scan comes and loads all of it, and then a reader wants what is behind that block:
    it gets that, with no other request."""
    objects = MemoryStore()
    values = [b"%d" % number + bytes(600_000) for number in range(9)]
    with running(objects, compression="none") as store:
        log = partition(store)
        for value in values:
            log.append(value, ack="buffered")
        log.flush()
        assert [ref.end_offset for ref in log.segments()] == [9], "one segment, of more than one block"
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert [record.value for record in log.read(1, 0).records()] == [values[1]]
        assert [record.value for record in log.read(0, 0).records()] == [values[0]]
        faulty.forget_calls()
        assert [record.value for record in log.read(8, 0).records()] == [values[8]]
        assert faulty.count("get") == 0


@pytest.mark.usefixtures("own_chain")
def test_L30_a_failed_get_is_not_remembered() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"value")
    gated = GatedStore(objects)
    with open_store(gated, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        with gated.hold("get", suffix=".seg") as gate:
            reader = background(log.read, 0)
            gate.wait_held()
            refused = StoreUnavailable("not today")
            refused.retriable = False
            gate.fail(refused)
            with pytest.raises(StoreUnavailable):
                reader.result(PATIENCE_S)
        assert pairs(log) == [(0, b"value")]


def a_segment_each(count: int) -> MemoryStore:
    """`value-0`, `value-1`, …: each in a segment of its own."""
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        for number in range(count):
            log.append(b"value-%d" % number)
    return objects


def far_away(objects: MemoryStore, clock: ManualClock) -> SlowStore:
    """On this clock, so far away that reading ahead is worth it."""
    return SlowStore(objects, get=0.020, sleep=clock.advance)


@pytest.mark.usefixtures("own_chain")
def test_L30_a_sequential_read_prefetches_the_next_segment() -> None:
    """When the reader has come to a segment, the one behind it is on its way."""
    objects = a_segment_each(6)
    gated = GatedStore(objects)
    with open_store(gated, writer="read_only") as store:
        log = store.topic("t").partition(0)
        chain = Chain(objects, log._internal.paths)
        _ = log.durable_high_watermark
        with gated.hold("get", prefix=chain.paths.segment(2)) as gate:
            first = log.read(0, 1)
            assert [record.value for record in first.records()] == [b"value-0"]
            (held,) = gate.wait_held()
            assert held.key == chain.paths.segment(2), "nobody has asked for its records yet"
        assert [value for _, value in pairs(log)] == [b"value-%d" % number for number in range(6)]


@pytest.mark.usefixtures("own_chain")
def test_L30_a_scan_that_goes_on_reads_further_ahead(clock: ManualClock) -> None:
    """One segment ahead for a single read; four, once reads follow on each other. A read elsewhere starts over."""
    objects = a_segment_each(12)
    gated = GatedStore(far_away(objects, clock))
    with open_store(gated, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        chain = Chain(objects, log._internal.paths)
        keys = [chain.paths.segment(number) for number in range(1, 13)]
        _ = log.durable_high_watermark
        cache = store._runtime.cache
        assert log.read(0, 1).next_offset == 1
        until(lambda: cache.is_known((keys[1], "all")))
        assert not cache.is_known((keys[2], "all"))
        for offset in (1, 2, 3):
            assert [record.offset for record in log.read(offset, 1).records()] == [offset]
        until(lambda: all(cache.peek((key, "all")) for key in keys[4:8]))
        with gated.hold("get", prefix=chain.paths.prefix) as gate:
            assert [record.value for record in log.read(4, 1).records()] == [b"value-4"]
            (held,) = gate.wait_held()
            assert held.key == keys[8]
            assert not cache.is_known((keys[9], "all"))
        assert [record.value for record in log.read(10, 1).records()] == [b"value-10"]
        assert [value for _, value in pairs(log)] == [b"value-%d" % number for number in range(12)]


@pytest.mark.usefixtures("own_chain")
def test_L30_two_scans_of_a_partition_each_read_ahead(clock: ManualClock) -> None:
    """In turns: each goes on where it was itself, and not where the other one is."""
    objects = a_segment_each(16)
    with open_store(far_away(objects, clock), clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        keys = [Chain(objects, log._internal.paths).paths.segment(number) for number in range(1, 17)]
        for step in range(4):
            for begin in (0, 8):
                assert [record.offset for record in log.read(begin + step, 1).records()] == [begin + step]
        known = store._runtime.cache.is_known
        until(lambda: all(known((keys[begin + 3 + ahead], "all")) for begin in (0, 8) for ahead in range(5)))


@pytest.mark.usefixtures("own_chain")
def test_L30_what_is_read_ahead_leaves_most_of_the_cache_alone(clock: ManualClock) -> None:
    objects = MemoryStore()
    with running(objects, compression="none") as store:
        log = partition(store)
        for _ in range(8):
            log.append(b"x" * 100_000)
    with open_store(far_away(objects, clock), clock, writer="read_only", cache_bytes=700_000) as store:
        log = store.topic("t").partition(0)
        chain = Chain(objects, log._internal.paths)
        for offset in range(3):
            log.read(offset, 1)
        known = store._runtime.cache.is_known
        until(lambda: known((chain.paths.segment(5), "all")))
        assert not known((chain.paths.segment(6), "all")), (
            "two segments ahead are all that fit a third of the cache"
        )
        assert [offset for offset, _ in pairs(log)] == list(range(8))


@pytest.mark.usefixtures("own_chain")
def test_L30_segments_that_are_there_at_once_are_not_read_ahead(clock: ManualClock) -> None:
    """A hand-over to another thread would take longer than they do. Those of a store that becomes slow are."""
    objects = a_segment_each(8)
    slow = SlowStore(objects, get=0.0, sleep=clock.advance)
    with open_store(slow, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        keys = [Chain(objects, log._internal.paths).paths.segment(number) for number in range(1, 9)]
        known = store._runtime.cache.is_known
        assert log.read(0, 1).next_offset == 1  # the first look cannot know, and reads one ahead
        until(lambda: known((keys[1], "all")))
        for offset in (1, 2, 3):
            assert [record.offset for record in log.read(offset, 1).records()] == [offset]
        assert not known((keys[4], "all"))
        slow._latency["get"] = 0.020
        for offset in (4, 5):
            assert [record.offset for record in log.read(offset, 1).records()] == [offset]
        until(lambda: known((keys[7], "all")))


@pytest.mark.usefixtures("own_chain")
def test_L30_every_segment_is_fetched_once_in_a_scan_with_prefetch(clock: ManualClock) -> None:
    objects = a_segment_each(20)
    faulty = FaultyStore(far_away(objects, clock))
    with open_store(faulty, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.forget_calls()
        assert len(pairs(log)) == 20
        fetched = Counter(call.key for call in faulty.calls if call.operation == "get")
        refs = log._internal.state.segments.all()
        # At the end a follower asks once for the segment behind the last one.
        assert {key: count for key, count in fetched.items() if count > 1} == {}
        assert {ref.key for ref in refs} <= set(fetched)


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
