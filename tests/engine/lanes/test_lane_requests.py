"""What reading through lanes costs: the lane is asked once for all partitions, and what came along is not fetched again."""

from __future__ import annotations

import threading

import pytest

from logstore.arrow.plan.log_partitions import load
from logstore.engine.lanes import lane_log
from logstore.engine.lanes.lane_log import LaneLog
from logstore.format.stored.entry import Entry
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects import MemoryStore
from logstore.objects.wrappers.slices import SlicedStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import crash, open_store, pairs, running
from tests.support.lanes.entries import store_lane

PARTITIONS = 50


def written(objects: MemoryStore) -> list[PartitionPaths]:
    """A topic whose partitions are all in one lane, of a process that is still there."""
    store = open_store(objects, lanes=1, ack="buffered")
    topic = store.create_topic("t", PARTITIONS)
    for number in range(PARTITIONS):
        topic.partition(number).append(b"%d" % number)
    store.flush()
    paths = [topic.partition(number)._internal.paths for number in range(PARTITIONS)]
    crash(store)
    return paths


def test_N08_following_the_idle_partitions_of_a_lane_asks_for_one_place(clock: ManualClock) -> None:
    objects = MemoryStore()
    written(objects)
    faulty = FaultyStore(objects)
    with running(faulty, clock, writer="read_only", follow_interval=0.5) as reader:
        logs = [reader.topic("t").partition(number) for number in range(PARTITIONS)]
        for number, log in enumerate(logs):
            assert pairs(log) == [(0, b"%d" % number)]
        for _ in range(4):
            clock.advance(1.0)
            faulty.forget_calls()
            for log in logs:
                log._internal._load()[2].refresh(0.5)  # what a reader that waits does every interval
            assert faulty.count("get", prefix="lanes/") == 2
            assert len(faulty.calls) == 2


def test_N08_a_plan_reads_a_lane_once_for_all_partitions() -> None:
    objects = MemoryStore()
    wanted = written(objects)
    faulty = FaultyStore(objects)
    found = load(SlicedStore(faulty), wanted)
    assert [part.end for part in found] == [1] * PARTITIONS
    entries = len(list(objects.list("lanes/")))
    assert faulty.count("get", prefix="lanes/") <= entries + 6
    assert faulty.count("list", prefix="lanes/") == 1, (
        "that of the writer: of the one where the topic begins, the checkpoint says enough"
    )


def test_L18_a_small_segment_that_came_with_a_look_is_not_fetched_again() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(objects) as writer, running(faulty, writer="read_only") as reader:
        log = writer.create_topic("t").partition(0)
        log.append(b"first")
        follower = reader.topic("t").partition(0)
        assert pairs(follower) == [(0, b"first")]
        for number in range(1, 4):
            log.append(b"%d" % number)
            faulty.forget_calls()
            follower.refresh()
            assert next(follower.read(number).records()).value == b"%d" % number
            segments = [call.key for call in faulty.calls if call.key.endswith(".seg")]
            assert len(segments) == len(set(segments)), "each object once"


def test_N01_a_small_entry_that_came_with_a_look_is_not_fetched_again() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(objects, lanes=1) as writer, running(faulty, writer="read_only") as reader:
        log = writer.create_topic("t").partition(0)
        log.append(b"first")
        follower = reader.topic("t").partition(0)
        assert pairs(follower) == [(0, b"first")]
        for number in range(1, 4):
            log.append(b"%d" % number)
            faulty.forget_calls()
            follower.refresh()
            assert next(follower.read(number).records()).value == b"%d" % number
            assert faulty.count("get", prefix="lanes/") == 3, (
                "the entry, the empty place behind it, the checkpoint"
            )


def test_L18_the_owner_of_a_lane_keeps_an_entry_once_and_reads_every_part_from_it() -> None:
    faulty = FaultyStore(MemoryStore())
    with open_store(faulty, lanes=1, ack="buffered", flush_interval=3600) as store:
        topic = store.create_topic("t", PARTITIONS)
        logs = [topic.partition(number) for number in range(PARTITIONS)]
        for log in logs:
            log.append(b"open")
        store.flush()
        cache = store._runtime.reader._cache
        cache.clear()
        for number, log in enumerate(logs):
            log.append(b"%d" % number)
        store.flush()
        assert len(cache._pieces) == 1
        faulty.forget_calls()
        for number, log in enumerate(logs):
            assert [record.value for record in log.records(1)] == [b"%d" % number]
        assert not faulty.calls


def test_L18_the_parts_of_a_large_entry_are_kept_one_by_one() -> None:
    faulty = FaultyStore(MemoryStore())
    with open_store(
        faulty, lanes=1, ack="buffered", flush_interval=3600, compression="none", max_batch_bytes=4 << 20
    ) as store:
        topic = store.create_topic("t", 2)
        values = [b"small", bytes(2 << 20)]
        for number in range(2):
            topic.partition(number).append(b"open")
        store.flush()
        for number, value in enumerate(values):
            topic.partition(number).append(value)
        store.flush()
        faulty.forget_calls()
        assert pairs(topic.partition(0)) == [(0, b"open"), (1, b"small")]
        assert not faulty.calls
        assert pairs(topic.partition(1)) == [(0, b"open"), (1, values[1])]
        assert faulty.count("get", prefix="lanes/") > 0, "what is large is fetched again"


class Crowd(FaultyStore):
    """Answers no look at an entry before so many are under way."""

    def __init__(self, inner: MemoryStore, looks: int) -> None:
        super().__init__(inner)
        self._together = threading.Barrier(looks, timeout=10)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key.endswith(".seg"):
            self._together.wait()
        return super().get(key, start, end)


def test_N08_the_entries_of_a_lane_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with them the place behind the last one, so that reading a lane waits for three requests, however many it makes:
    a listing, the looks, and the checkpoint's front."""
    objects = MemoryStore()
    with running(objects, lanes=1) as writer:
        log = writer.create_topic("t").partition(0)
        for number in range(5):
            log.append(b"%d" % number)
        lane = store_lane(writer)
        monkeypatch.setattr(lane_log, "timed", lambda call: (call(), True))  # a listing takes long
        found = LaneLog(Crowd(objects, 6), LanePaths(lane)).entries_from(0)
    assert [entry.header.seq for entry in found if isinstance(entry, Entry)] == list(range(5))
