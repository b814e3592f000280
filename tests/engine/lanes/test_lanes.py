"""Lanes: one PUT for all partitions of a process, in order, and each partition can move alone."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

import logstore
from logstore.engine.lanes.lane_log import LostEntry
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.write.lanes import lane_queue
from logstore.errors import CorruptData, Fenced
from logstore.format.stored.entry import Entry
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore
from tests.support.engine.harness import background, crash, disk_of, open_store, pairs, running, until
from tests.support.lanes.entries import entries, place, seen, store_lane, values
from tests.support.patience import PATIENCE_S


def test_N01_a_flush_is_one_put_whatever_the_number_of_partitions() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lanes=1, flush_interval=3600.0, ack="buffered") as store:
        topic = store.create_topic("t", 64)
        logs = [topic.partition(number) for number in range(64)]
        for log in logs:
            log.append(b"opened")
        store.flush()
        before = faulty.count("put")
        for turn in range(10):
            for log in logs:
                log.append(b"%d" % turn)
            store.flush()
        assert faulty.count("put") - before <= 12
        for log in logs:
            assert values(log) == [b"opened", *(b"%d" % turn for turn in range(10))]
    for number in (0, 31, 63):
        assert [offset for offset, _ in seen(faulty, number)] == list(range(11))


def test_N01_a_durable_ack_is_one_put() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"opened")
        faulty.forget_calls()
        log.append(b"a")
        assert [call.operation for call in faulty.calls] == ["put"]


def test_N02_a_lost_answer_leaves_one_copy_at_its_offset(any_home: ObjectStore) -> None:
    faulty = FaultyStore(any_home)
    with running(faulty, lanes=1, probe_interval=0.001) as store:
        log = store.create_topic("t", 2).partition(0)
        log.append(b"a")
        faulty.fail("put", prefix="lanes/", times=2, with_=Fault.LOSE_ANSWER)
        assert log.append(b"b").offset == 1
        assert log.append(b"c").offset == 2
    assert seen(any_home, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_N02_several_uploads_are_in_flight_and_acked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    gated = GatedStore(MemoryStore())
    acked: list[int] = []
    with running(gated, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"0")
        with place(gated, 1) as first, place(gated, 2) as second, place(gated, 3) as third:
            waiting: list[Future[logstore.Receipt]] = []
            for number, gate in enumerate((first, second, third), 1):
                future = log.submit(b"%d" % number)
                future.add_done_callback(lambda done: acked.append(done.result().offset))
                waiting.append(future)
                gate.wait_held()
            third.open()
            second.open()
            until(lambda: len(entries(gated)) == 3)
            assert not any(future.done() for future in waiting), "the first is not there yet"
            assert [record.value for record in log.records(visibility="durable")] == [b"0"]
            first.open()
            for future in waiting:
                future.result(PATIENCE_S)
    assert acked == [1, 2, 3]
    assert seen(gated, 0) == [(number, b"%d" % number) for number in range(4)]


def behind_a_seal(patch: pytest.MonkeyPatch) -> MemoryStore:
    """Another process takes partition 1 over while three uploads of partition 0 are under way, and the later two land."""
    patch.setattr(lane_queue, "ENTRY_BYTES", 1)
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    topic = store.create_topic("t", 2)
    mine, moved = topic.partition(0), topic.partition(1)
    mine.append(b"0")
    moved.append(b"m")
    with place(gated, 2) as first, place(gated, 3) as second, place(gated, 4) as third:
        waiting = []
        for number, gate in enumerate((first, second, third), 1):
            waiting.append(mine.submit(b"%d" % number))
            gate.wait_held()
        with running(objects, lanes=1) as other:
            assert other.topic("t").partition(1).append(b"taken").offset == 1
            third.open()
            second.open()
            until(lambda: sum(key.startswith("lanes/" + store_lane(store)) for key in entries(objects)) == 5)
            first.open()
            assert [future.result(PATIENCE_S).offset for future in waiting] == [1, 2, 3]
            with pytest.raises(Fenced):
                moved.append(b"no")
            assert mine.append(b"4").offset == 4
    store.close()
    return objects


def test_N02_what_was_in_flight_behind_a_seal_is_void_and_committed_again_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = behind_a_seal(monkeypatch)
    assert seen(objects, 0) == [(number, b"%d" % number) for number in range(5)]
    assert seen(objects, 1) == [(0, b"m"), (1, b"taken")]


def test_N05_contrast_who_ignores_the_link_takes_void_entries_for_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = behind_a_seal(monkeypatch)
    for info in [info for info in objects.list("lanes/") if info.key.endswith("checkpoint")]:
        objects.delete(info.key)  # which says what was judged before
    take = LaneState.take

    def takes_all(self: LaneState, entry: Entry | LostEntry) -> bool:
        if isinstance(entry, Entry):
            self.edge = entry.header.prev
        return take(self, entry)

    monkeypatch.setattr(LaneState, "take", takes_all)
    try:
        found = seen(objects, 0)
    except (CorruptData, AssertionError):
        return
    assert found != [(number, b"%d" % number) for number in range(5)]


@pytest.mark.parametrize("writer", ["exclusive", "shared"])
def test_N10_own_chain_and_lane_follow_each_other(writer: str, any_home: ObjectStore) -> None:
    """A store from before is taken over by a lane, and what a lane holds is continued in the partition's own chain."""
    expected: list[tuple[int, bytes]] = []
    for turn in range(3):
        for lanes, kind in ((1, "exclusive"), (0, writer)):
            with running(any_home, lanes=lanes, writer=kind) as store:
                log = store.create_topic("t", exist_ok=True).partition(0)
                value = b"%d %d" % (turn, lanes)
                assert log.append(value).offset == len(expected)
                expected.append((len(expected), value))
                assert pairs(log) == expected
    assert seen(any_home, 0) == expected


def test_N10_replicated_writers_go_on_behind_a_lane() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("t").partition(0).append(b"a")
    with running(objects) as store:
        writer = store.topic("t").partition(0).replicated("one")
        writer.submit([b"b"], 0, 1).result(PATIENCE_S)
    assert seen(objects, 0) == [(0, b"a"), (1, b"b")]


def test_N07_damage_raises_for_its_partition_and_for_no_other() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1, ack="buffered") as store:
        topic = store.create_topic("t", 3)
        for number in range(3):
            topic.partition(number).append(b"record of %d" % number)
        store.flush()
    with running(objects, writer="read_only") as reader:
        ref = reader.topic("t").partition(1).segments()[0]
        key, where = ref.key.split("@")
        data = bytearray(objects.get(key))
        data[int(where.split("+")[0]) + 200] ^= 1
        objects.put(key, bytes(data))
    with running(objects, writer="read_only") as reader:
        for number in (0, 2):
            assert pairs(reader.topic("t").partition(number)) == [(0, b"record of %d" % number)]
        with pytest.raises(CorruptData):
            list(reader.topic("t").partition(1).records())


def test_L04_buffered_acks_are_never_given_to_another_record_after_a_crash() -> None:
    objects = MemoryStore()
    store = open_store(objects, lanes=1, ack="buffered")
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    log.flush()
    shown = log.append(b"b").offset
    crash(store)
    with running(objects, lanes=1) as again:
        receipt = again.topic("t").partition(0).append(b"c")
        assert receipt.offset > shown
        assert again.topic("t").partition(0).lost_ranges() == [(shown, receipt.offset)]


def test_N01_local_acks_survive_in_the_wal_of_a_lane_partition(tmp_path: Path) -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1, ack="local", wal_dir=tmp_path / "wal")
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    log.flush()
    with gated.hold("put", prefix="lanes/"):
        assert log.append(b"b").offset == 1
        crash(store, hanging=True)
    left = disk_of(tmp_path / "wal", tmp_path / "copy")
    with running(objects, lanes=1, wal_dir=left) as again:
        again.topic("t").partition(0).append(b"c")
    assert [value for _, value in seen(objects, 0)] == [b"a", b"b", b"c"]


def test_N10_a_store_with_lanes_on_a_folder_is_read_from_another_process(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path))
    with running(objects, lanes=2) as store:
        topic = store.create_topic("t", 8)
        for number in range(8):
            background(topic.partition(number).append, b"%d" % number).result(PATIENCE_S)
    for number in range(8):
        assert seen(LocalStore(str(tmp_path)), number) == [(0, b"%d" % number)]


@pytest.mark.usefixtures("begin_in_own_chains")
def test_N10_the_release_before_lanes_meets_a_newer_format_first() -> None:
    """It reads segments of format 1 and manifests up to 3, and refuses what is newer: in the chain of a partition that is in
    a lane, the claim; where a manifest stands, that one. It never sees an end where the chain goes on in a lane. A topic
    that begins in one it refuses by its descriptor."""
    objects = MemoryStore()
    with running(objects) as store:
        log = store.create_topic("t").partition(0)
        for value in (b"a", b"b"):
            log.append(value)
        paths = log._internal.paths
        assert version_at(objects, paths.segment(0)) > 1, "the claim"
        assert log._internal._checkpointer is not None
        assert log._internal._checkpointer.write() is not None
        assert version_at(objects, paths.manifest) > 3
    assert seen(objects, 0) == [(0, b"a"), (1, b"b")]


def version_at(objects: ObjectStore, key: str) -> int:
    """Of the format, behind the magic."""
    return int.from_bytes(objects.get(key)[8:10], "little")
