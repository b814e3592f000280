"""L30: what reading costs in requests: one GET for many readers, and segments that are read ahead."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from logstore.engine.chain import segment_reader
from logstore.engine.chain.chain import Chain
from logstore.errors import StoreUnavailable
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock, SlowStore
from tests.support.engine.harness import background, open_store, pairs, partition, running, until
from tests.support.patience import PATIENCE_S

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
