"""Topics of one partition, of a few and of many are opened, planned and followed with requests for lanes (N08); and what may
go wrong while one is opened that was created a moment ago."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.arrow.plan.log_partitions import load
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.engine.partition.many_partitions import ManyPartitions
from logstore.errors import Fenced, LogStoreError, PartitionInUse, UnknownTopic
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import LaneCheckpoint
from logstore.layout.paths import LANES_PREFIX, LanePaths
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.objects.wrappers.slices import SlicedStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, running
from tests.support.engine.other_process import OtherProcess
from tests.support.lanes.entries import entries, seen
from tests.support.patience import PATIENCE_S

SHAPES = [(1, 64), (64, 1), (16, 4)]
shapes = pytest.mark.parametrize(
    ("topics", "partitions"), SHAPES, ids=[f"{topics}x{each}" for topics, each in SHAPES]
)


def logs_of(store: logstore.Store, topics: int, partitions: int) -> list[logstore.PartitionLog]:
    """Of all topics, which are created if they are not there."""
    found = [store.create_topic(f"t{number}", partitions, exist_ok=True) for number in range(topics)]
    return [topic.partition(number) for topic in found for number in range(partitions)]


def appended(logs: list[logstore.PartitionLog], gated: GatedStore, value: bytes) -> set[int]:
    """One durable record to each, and its offset. No claim is answered before all are asked for but the first: how many are
    asked for meanwhile depends on how fast this machine is."""
    first = logs[0].submit(value)
    with gated.hold("put", prefix=LANES_PREFIX) as gate:
        futures = [first, *(log.submit(value) for log in logs[1:])]
        gate.open()
        return {future.result(PATIENCE_S).offset for future in futures}


def spent(counted: FaultyStore) -> int:
    made = len(counted.calls)
    counted.forget_calls()
    return made


@shapes
def test_N08_opening_new_and_closed_topics_costs_requests_for_lanes(topics: int, partitions: int) -> None:
    """Of a new topic a claim, in the lane in which it begins, and a look behind it. After that all partitions of all topics
    are in the one lane of the process before: a few requests, however many topics they are of."""
    objects = MemoryStore()
    for life in range(3):
        counted = FaultyStore(objects)
        gated = GatedStore(counted)
        with running(gated, ManualClock(), lanes=1) as store:
            logs = logs_of(store, topics, partitions)
            spent(counted)
            assert appended(logs, gated, b"%d" % life) == {life}
            assert spent(counted) <= (2 * topics + 24 if life == 0 else 32)
        assert spent(counted) <= (topics + 4 if life == 0 else 4), "to close it"
    assert not list(objects.list("topics/")), "nothing is put into a partition's own chain"
    for number in (0, topics - 1):
        with open_store(objects, writer="read_only") as store:
            found = pairs(store.topic(f"t{number}").partition(partitions - 1))
        assert found == [(life, b"%d" % life) for life in range(3)]


@shapes
def test_N08_opening_what_a_killed_process_wrote_costs_requests_for_lanes(
    tmp_path: Path, topics: int, partitions: int
) -> None:
    with OtherProcess(tmp_path / "store", topics=topics, partitions=partitions, lanes=1) as other:
        assert set(other.append_to_all("a")) == {0}
        other.kill()
    counted = FaultyStore(LocalStore(tmp_path / "store"))
    gated = GatedStore(counted)
    with running(gated, ManualClock(), lanes=1) as store:
        names = ["t", *(f"t{number}" for number in range(1, topics))]
        logs = [store.topic(name).partition(number) for name in names for number in range(partitions)]
        before = len(entries(counted))
        spent(counted)
        assert appended(logs, gated, b"b") == {1}
        assert spent(counted) <= 32 + before, (
            "each entry of the lane is looked at once: it has no checkpoint yet"
        )


@shapes
def test_N08_planning_costs_requests_for_lanes(topics: int, partitions: int) -> None:
    """While the writer lives, and after it has closed."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, ManualClock(), lanes=1) as store:
        logs = logs_of(store, topics, partitions)
        appended(logs, gated, b"a")
        wanted = [log._internal.paths for log in logs]
        _plan(objects, wanted)
    _plan(objects, wanted)


def _plan(objects: ObjectStore, wanted: list[Any]) -> None:
    counted = FaultyStore(objects)
    found = load(SlicedStore(counted), wanted)
    assert [partition.end for partition in found] == [1] * len(wanted)
    assert len(counted.calls) <= 20 + len(entries(objects))


@shapes
def test_N08_following_costs_requests_for_lanes(topics: int, partitions: int) -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with running(gated, ManualClock(), lanes=1) as writer:
        written = logs_of(writer, topics, partitions)
        appended(written, gated, b"a")
        counted = FaultyStore(objects)
        with running(counted, clock, writer="read_only", follow_interval=0.5) as reader:
            names = [f"t{number}" for number in range(topics)]
            cursors = [
                reader.topic(name)._internal.cursor(number, None)
                for name in names
                for number in range(partitions)
            ]
            spent(counted)
            many = ManyPartitions(clock, 0.5, "durable")
            many.put(cursors)
            assert many.take(0) == []
            assert spent(counted) <= 20 + len(entries(objects)), "to open them all"
            assert sum(len(taken.records) for taken in many.take(1000)) == topics * partitions
            for turn in range(3):
                clock.advance(0.5)
                spent(counted)
                assert many.take(1000) == []
                assert spent(counted) <= 2
                written[-1].append(b"%d" % turn)
                clock.advance(0.5)
                assert [taken.records[0].value for taken in many.take(1000)] == [b"%d" % turn]
            many.close()


def test_N08_the_first_append_to_a_new_topic_waits_for_three_requests() -> None:
    """Its claim, a look behind that, and the entry that holds the record."""
    counted = FaultyStore(MemoryStore())
    with running(counted, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        spent(counted)
        log.append(b"a")
        assert [call.operation for call in counted.calls] == ["put", "get", "put"]


def test_N08_each_life_costs_the_next_one_a_request() -> None:
    """The checkpoint of its lane, which says that the partition went on elsewhere; until a manifest holds all of it."""
    objects = MemoryStore()
    costs: list[int] = []
    for life in range(12):
        counted = FaultyStore(objects)
        with running(counted, lanes=1) as store:
            log = store.create_topic("t", exist_ok=True).partition(0)
            spent(counted)
            assert log.append(b"%d" % life).offset == life
            costs.append(spent(counted))
    assert all(after - before <= 1 for before, after in itertools.pairwise(costs[1:7])), costs
    assert max(costs) <= 32, costs
    assert seen(objects) == [(life, b"%d" % life) for life in range(12)]


def test_N08_topics_that_nobody_has_written_cost_four_requests_each_to_plan() -> None:
    """Each begins in a lane of its own: its checkpoint, and a listing that shows nothing."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        wanted = [log._internal.paths for log in logs_of(store, 16, 1)]
    counted = FaultyStore(objects)
    assert [partition.end for partition in load(SlicedStore(counted), wanted)] == [0] * 16
    assert len(counted.calls) <= 4 * 16


def test_N06_a_lane_that_was_empty_is_not_taken_for_empty_once_its_first_entries_are_gone() -> None:
    objects = MemoryStore()
    lanes, paths = LaneReader(objects), LanePaths("x.0")
    assert lanes.snapshot("x.0").next_seq == 0
    with running(objects, lane="x") as store:
        for number in range(3):
            store.create_topic("t", exist_ok=True).partition(0).append(b"%d" % number)
    said = LaneCheckpoint.parse(objects.get(paths.checkpoint))
    objects.put(paths.checkpoint, replace(said, split_until=said.next_seq).pack())
    for seq in range(said.next_seq):
        objects.delete(paths.entry(seq))
    assert lanes.snapshot("x.0").next_seq == said.next_seq > 2


# A topic that was created a moment ago


def test_N04_who_claimed_a_new_topic_before_its_creator_is_gone_on_behind() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1, take_over=True) as creator, running(objects, lanes=1) as other:
        log = creator.create_topic("t").partition(0)
        assert other.topic("t").partition(0).append(b"first").offset == 0
        assert log.submit(b"second").result(PATIENCE_S).offset == 1
        assert log.append(b"third").offset == 2
        with pytest.raises(Fenced):
            other.topic("t").partition(0).append(b"no")
    assert seen(objects) == [(0, b"first"), (1, b"second"), (2, b"third")]


def test_N04_who_claimed_a_new_topic_before_its_creator_and_lives_is_not_stopped(tmp_path: Path) -> None:
    where = tmp_path / "store"
    with running(LocalStore(where), ManualClock(), lanes=1) as creator:
        log = creator.create_topic("t").partition(0)
        with OtherProcess(where, lanes=1) as other:
            assert other.append("first") == [0, 0]
            with pytest.raises(PartitionInUse):
                log.append(b"no")
            assert other.append("second") == [0, 1]
    assert seen(LocalStore(where)) == [(0, b"first"), (1, b"second")]


def test_L20_a_claim_that_is_gone_is_known_by_the_checkpoint_of_the_lane() -> None:
    """The creator of the topic finds the place empty in which another's claim was. It does not write beside that one."""
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=1) as creator:
        log = creator.create_topic("t").partition(0)
        with running(objects, ManualClock(), lanes=1) as other:
            other.topic("t").partition(0).append(b"first")
        assert log._internal.paths.birth_lane is not None
        objects.delete(LanePaths(log._internal.paths.birth_lane).entry(0))
        assert log.append(b"second").offset == 1
    assert seen(objects) == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize("kind", ["no lane", "shared"])
def test_L20_who_remembers_a_new_topic_does_not_seal_where_a_claim_is_gone(kind: str) -> None:
    """It read the topic when nobody had written it, and goes on in the partition's own chain: not beside the other."""
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=1) as creator:
        creator.create_topic("t")
    late = WRITERS[kind](objects)
    log = late.topic("t").partition(0)
    assert log.durable_high_watermark == 0
    with running(objects, ManualClock(), lanes=1) as other:
        other.topic("t").partition(0).append(b"first")
    assert log._internal.paths.birth_lane is not None
    objects.delete(LanePaths(log._internal.paths.birth_lane).entry(0))
    if kind == "shared":
        with pytest.raises(Fenced):  # as behind every exclusive writer
            log.append(b"no")
        log = log.reopen()
    assert log.append(b"second").offset == 1
    late.close()
    assert seen(objects) == [(0, b"first"), (1, b"second")]


def test_L20_who_remembers_a_lane_does_not_adopt_it_where_a_transfer_is_gone() -> None:
    """The checkpoint knows of one: the partition is elsewhere, and an adoption before it would count for nothing."""
    objects = MemoryStore()
    lanes, paths = LaneReader(objects), LanePaths("x.0")
    first = open_store(objects, lane="x")
    first.create_topic("t").partition(0).append(b"first")
    assert lanes.snapshot("x.0").carried_on()
    end = lanes.snapshot("x.0").next_seq
    with running(objects, ManualClock(), lanes=1, take_over=True) as other:
        assert other.topic("t").partition(0).append(b"second").offset == 1
    crash(first)
    objects.delete(paths.entry(end))
    state = lanes.adopt("x.0", lambda: bytes(16), 0, b"me", lambda owner: None)
    assert not state.carried_on()
    assert state.next_seq > end + 1
    assert seen(objects) == [(0, b"first"), (1, b"second")]


def test_N06_a_new_topic_that_another_process_has_deleted_takes_no_record() -> None:
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=1) as creator, running(objects, lanes=1) as other:
        log = creator.create_topic("t").partition(0)
        other.delete_topic("t")
        with pytest.raises((UnknownTopic, Fenced)):
            log.append(b"no")
        assert creator.create_topic("t").partition(0).append(b"again").offset == 0
    assert seen(objects) == [(0, b"again")]


def test_N08_what_a_lane_told_a_moment_ago_is_not_kept_for_longer_by_those_who_go_on_claiming() -> None:
    """Another process has written a partition meanwhile: it is not opened as if nobody had."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with running(gated, clock, lanes=1) as store, running(objects, ManualClock(), lanes=1) as other:
        topic = store.create_topic("t", 5)
        topic.partition(0).append(b"ours")
        other.topic("t").partition(4).append(b"theirs")
        for number in range(1, 4):
            clock.advance(0.5)
            assert topic.partition(number).append(b"ours").offset == 0
        log = topic.partition(4)
        with gated.hold("*") as gate:
            ack = background(log.append, b"behind theirs")
            gate.wait_held(PATIENCE_S)
            (told,) = [each for each in store.health()["partitions"] if each["partition"] == 4]
            assert told["state"] == "not loaded"
            gate.open()
        assert ack.result(PATIENCE_S).offset == 1


@pytest.mark.parametrize("records", [1, 3])
def test_N04_a_writer_that_is_opened_ahead_goes_on_where_somebody_has_sealed_and_died(records: int) -> None:
    """Its claim is refused, and the fence that it puts into the partition's own chain is of the very epoch that the claim
    would have been."""
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=1) as store:
        log = store.create_topic("t").partition(0)
        paths = log._internal.paths
        assert paths.birth_lane is not None
        LaneReader(objects).end_claim(
            Claim(paths.birth_lane, 0), ClaimKey(paths.prefix, 0), lambda: bytes(16), 0
        )
        waiting = [log.submit(b"%d" % number) for number in range(records)]
        assert [ack.result(PATIENCE_S).offset for ack in waiting] == list(range(records))
        assert log.append(b"more").offset == records
    assert len(seen(objects)) == records + 1


@pytest.mark.parametrize("opens_together", [True, False], ids=["at once", "one by one"])
def test_N04_C01_fifty_processes_that_open_one_new_topic_lose_nothing(opens_together: bool) -> None:
    """Each stops the one before it. What was acked is there, at its offset, once."""
    objects = MemoryStore()
    with running(objects, lanes=1) as creator:
        creator.create_topic("t")
    stores = [open_store(objects, lanes=1, take_over=True) for _ in range(50)]
    acked: dict[int, bytes] = {}

    def write(number: int) -> None:
        value = b"%d" % number
        with suppress(LogStoreError):
            offset = stores[number].topic("t").partition(0).append(value, timeout=PATIENCE_S).offset
            assert acked.setdefault(offset, value) == value

    if opens_together:
        for done in [background(write, number) for number in range(50)]:
            done.result(PATIENCE_S)
    else:
        for number in range(50):
            write(number)
        assert len(acked) == 50
    for store in stores:
        crash(store)
    found = dict(seen(objects))
    assert acked
    assert acked.items() <= found.items()
    assert len(set(found.values())) == len(found), "nothing is stored twice"
    with running(objects, lanes=1, take_over=True) as last:
        assert last.topic("t").partition(0).append(b"last").offset >= len(found)


Opening = Callable[[ObjectStore], logstore.Store]
WRITERS: dict[str, Opening] = {
    "a lane": lambda objects: open_store(objects, lanes=1, take_over=True),
    "no lane": lambda objects: open_store(objects, lanes=0, take_over=True),
    "shared": lambda objects: open_store(objects, writer="shared", take_over=True),
}


@pytest.mark.parametrize("first", WRITERS)
@pytest.mark.parametrize("second", WRITERS)
def test_N04_N10_writers_of_all_kinds_go_on_behind_each_other(first: str, second: str) -> None:
    """A small topic that begins in a lane, and is written by each in turn."""
    objects = MemoryStore()
    with running(objects, lanes=1) as creator:
        assert creator.create_topic("t").partition(0)._internal.paths.birth_lane is not None
    for turn, kind in enumerate([first, second, first, second]):
        store = WRITERS[kind](objects)
        assert store.topic("t").partition(0).append(b"%d" % turn).offset == turn
        crash(store)
    assert seen(objects) == [(turn, b"%d" % turn) for turn in range(4)]
