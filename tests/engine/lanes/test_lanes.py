"""Lanes: one PUT for all partitions of a process, in order, and each partition can move alone."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import logstore
from logstore.engine.lanes.lane_log import LostEntry
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.write.lanes import lane as lane_module
from logstore.errors import CorruptData, Fenced, UnknownTopic
from logstore.format.stored.entry import Entry
from logstore.layout.paths import is_birth_lane
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, Gate, GatedStore
from tests.support.engine.harness import background, crash, disk_of, open_store, pairs, running, until
from tests.support.patience import PATIENCE_S


def entries(objects: ObjectStore) -> list[str]:
    """Of lanes that somebody owns."""
    stored = [info.key for info in objects.list("lanes/") if info.key.endswith(".seg")]
    return [key for key in stored if not is_birth_lane(key.split("/")[1])]


def entries_of(objects: ObjectStore, lane: str) -> list[str]:
    return [key for key in entries(objects) if key.startswith(f"lanes/{lane}/")]


def place(gated: GatedStore, seq: int) -> AbstractContextManager[Gate]:
    """Holds what is put there."""
    return gated.hold("put", prefix="lanes/", suffix=f"{seq:020d}.seg")


def store_lane(store: logstore.Store) -> str:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane.name


def values(log: logstore.PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def seen(objects: ObjectStore, number: int) -> list[tuple[int, bytes]]:
    """What a process that was not there sees of a partition."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic("t").partition(number))


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
    monkeypatch.setattr(lane_module, "ENTRY_BYTES", 1)
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
    patch.setattr(lane_module, "ENTRY_BYTES", 1)
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


def test_N03_one_partition_moves_and_no_ack_fails_in_the_others(any_home: ObjectStore) -> None:
    faulty = FaultyStore(any_home)
    with running(faulty, lanes=1) as store, running(any_home, lanes=1) as other:
        topic = store.create_topic("t", 3)
        logs = [topic.partition(number) for number in range(3)]
        for log in logs:
            log.append(b"mine")
        assert other.topic("t").partition(1).append(b"taken").offset == 1
        before = faulty.count("put", prefix="lanes/")
        assert [logs[0].append(b"x").offset, logs[2].append(b"y").offset] == [1, 1]
        assert faulty.count("put", prefix="lanes/") - before == 3, (
            "one of them met the seal, and its window went one place further"
        )
        with pytest.raises(Fenced, match=rf"epoch 2 \(.*{os.getpid()}.*\) took the partition over"):
            logs[1].append(b"no")
        assert values(logs[1].reopen()) == [b"mine", b"taken"]
    assert seen(any_home, 1) == [(0, b"mine"), (1, b"taken")]


def test_N03_what_an_owner_asks_at_anothers_seal_it_asks_at_once() -> None:
    """Every ack of the lane waits for it: what stands there, and whether it is of the past, side by side."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store, running(objects, lanes=1) as other:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"mine")
        other.topic("t").partition(1).append(b"taken")
        seal = entries_of(objects, store_lane(store))[-1]
        with gated.hold("get", prefix=f"lanes/{store_lane(store)}/") as asked:
            ack = topic.partition(0).submit(b"x")
            (whose,) = asked.wait_held(PATIENCE_S)
            asked.release()
            both = asked.wait_held(PATIENCE_S, count=2)
            asked.open()
            assert ack.result(PATIENCE_S).offset == 1
    assert whose.key == seal
    assert {call.key.rpartition("/")[2] for call in both} == {"checkpoint", seal.rpartition("/")[2]}


def test_N03_a_partition_that_is_taken_back_and_forth_has_every_record_once() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as a, running(objects, lanes=2) as b:
        a.create_topic("t", 2)
        for turn in range(6):
            store = (a, b)[turn % 2]
            log = store.topic("t").partition(0)
            if log._internal.stopped is not None:
                log = log.reopen()
            try:
                log.append(b"%d" % turn)
            except Fenced:
                log = log.reopen()
                log.append(b"%d" % turn)
    assert seen(objects, 0) == [(turn, b"%d" % turn) for turn in range(6)]


def test_N04_what_a_killed_process_wrote_goes_on_in_the_next(any_home: ObjectStore) -> None:
    store = open_store(any_home, lanes=1)
    topic = store.create_topic("t", 4)
    for number in range(4):
        topic.partition(number).append([b"%d" % number, b"more"])
    crash(store)
    with running(any_home, lanes=1) as again:
        for number in range(4):
            assert again.topic("t").partition(number).append(b"next").offset == 2
    for number in range(4):
        assert seen(any_home, number) == [(0, b"%d" % number), (1, b"more"), (2, b"next")]


def test_N04_a_sealed_partition_that_nobody_claimed_is_claimed_by_whoever_wants_it() -> None:
    """The taker dies between its seal and its fence."""
    objects = MemoryStore()
    store = open_store(objects, lanes=1)
    store.create_topic("t").partition(0).append(b"a")
    faulty = FaultyStore(objects)
    faulty.fail("put", prefix="topics/", times=None)
    taker = open_store(faulty, lanes=0, append_timeout=0.2, probe_interval=0.01)
    with pytest.raises(logstore.StoreUnavailable):
        taker.topic("t").partition(0).append(b"no")
    crash(taker)
    with pytest.raises(Fenced):
        store.topic("t").partition(0).append(b"sealed")
    with running(objects, lanes=1) as third:
        assert third.topic("t").partition(0).append(b"b").offset == 1
    assert seen(objects, 0) == [(0, b"a"), (1, b"b")]
    crash(store)


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


@pytest.mark.usefixtures("often")
def test_N06_splits_keep_every_record_readable_and_delete_the_entries(any_home: ObjectStore) -> None:
    expected: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(3)}
    with (
        running(any_home, lanes=1, delete_grace=0.0) as store,
        running(any_home, writer="read_only") as reader,
    ):
        topic = store.create_topic("t", 3)
        for turn in range(40):
            for number in range(3):
                log = topic.partition(number)
                receipt = log.append(b"%d" % turn)
                expected[number].append((receipt.offset, b"%d" % turn))
                if turn % 10 == 9:
                    other = reader.topic("t").partition(number)
                    other.refresh()
                    assert pairs(other) == pairs(log) == expected[number]
        store._lanes.of(topic.partition(0)._internal.paths).checkpoints.write()  # type: ignore[union-attr]
        assert len(entries(any_home)) < 60, "of 120"
        for number in range(3):
            assert seen(any_home, number) == expected[number]
    with running(any_home, lanes=1) as again:
        for number in range(3):
            assert again.topic("t").partition(number).append(b"on").offset == 40
            assert pairs(again.topic("t").partition(number))[:40] == expected[number]


@pytest.mark.usefixtures("often")
def test_N06_the_entries_of_an_ended_lane_are_collected_by_anybody() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        for turn in range(3):
            for number in range(2):
                topic.partition(number).append(b"%d" % turn)
    with running(objects, writer="read_only", delete_grace=0.0) as keeper:
        gone = [item.key for item in keeper.collect_garbage()]
        assert len([key for key in gone if key.startswith("lanes/")]) == 6
    assert len(entries(objects)) == 1, "the fence stays"
    for number in range(2):
        assert seen(objects, number) == [(turn, b"%d" % turn) for turn in range(3)]


def test_N06_deleting_a_topic_ends_its_claims_and_leaves_the_others() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store, running(objects) as other:
        kept, gone = store.create_topic("kept").partition(0), store.create_topic("gone").partition(0)
        kept.append(b"a")
        gone.append(b"b")
        other.delete_topic("gone")
        with pytest.raises((Fenced, UnknownTopic)):
            gone.append(b"no")
        assert kept.append(b"c").offset == 1
        assert values(kept) == [b"a", b"c"]


def test_N06_delete_before_reaches_into_a_lane() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        for number in range(6):
            log.append(b"%d" % number)
        assert log.delete_before(4) == 4
        assert pairs(log) == [(4, b"4"), (5, b"5")]
        assert log.append(b"6").offset == 6
    assert seen(objects, 0) == [(4, b"4"), (5, b"5"), (6, b"6")]


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


def test_N03_a_callback_may_append_to_another_partition_and_wait_for_it() -> None:
    """Acks come in the order of the entries; one that waits for a later ack must not hold that up."""
    objects = MemoryStore()
    done = threading.Event()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"opened")

        def then(_: Future[logstore.Receipt]) -> None:
            topic.partition(1).append(b"from the callback")
            done.set()

        topic.partition(0).submit(b"first").add_done_callback(then)
        assert done.wait(PATIENCE_S)
    assert seen(objects, 1)[-1] == (1, b"from the callback")


def test_N10_a_store_with_lanes_on_a_folder_is_read_from_another_process(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path))
    with running(objects, lanes=2) as store:
        topic = store.create_topic("t", 8)
        for number in range(8):
            background(topic.partition(number).append, b"%d" % number).result(PATIENCE_S)
    for number in range(8):
        assert seen(LocalStore(str(tmp_path)), number) == [(0, b"%d" % number)]


def test_N06_a_merged_object_of_a_claim_that_has_ended_tells_that_more_of_it_is_in_the_lane() -> None:
    """The claim ends with a part that holds no records, and another chain follows. The split stores its object and dies
    before the manifest: whoever loads the chain without one must look for that part in the lane."""
    faulty = FaultyStore(MemoryStore())
    store = open_store(faulty, lanes=1)
    log = store.create_topic("t").partition(0)
    log.append(b"a")
    log.append(b"shown", ack="buffered")  # behind a part that reserves offsets, and holds nothing
    crash(store)
    with running(faulty, lanes=0) as store:
        offset = store.topic("t").partition(0).append(b"b").offset
        assert offset > 1
    with running(faulty, lanes=0) as keeper:
        internal = keeper.topic("t").partition(0)._internal
        rule = faulty.fail("put", suffix="manifest", times=None)
        with pytest.raises(logstore.LogStoreError):
            internal.maintenance.split(internal._chain.load(), 0)
        faulty.remove(rule)
    assert any("/merged/" in info.key for info in faulty.list("topics/"))
    assert seen(faulty, 0) == [(0, b"a"), (offset, b"b")]


def test_N03_a_partition_that_its_owner_gives_up_moves_and_nobody_is_late() -> None:
    """The owner's own entry carries the seal: the taker puts nothing into its lane, and no upload is in vain."""
    objects = MemoryStore()
    faulty, taking = FaultyStore(objects), FaultyStore(objects)
    with running(faulty, lanes=1) as owner, running(taking, lanes=1) as taker:
        topic = owner.create_topic("t", 3)
        for number in range(3):
            topic.partition(number).append(b"a")
        topic.partition(0).reopen()
        assert taker.topic("t").partition(0).append(b"b").offset == 1
        assert not taking.count("put", prefix=f"lanes/{store_lane(owner)}/")
        faulty.forget_calls()
        for number in (1, 2):
            assert topic.partition(number).append(b"c").offset == 1
        assert [(call.operation, call.outcome) for call in faulty.calls] == [("put", "ok")] * 2
        # It can be given back in the same way.
        taker.topic("t").partition(0).reopen()
        assert owner.topic("t").partition(0).append(b"d").offset == 2
    assert seen(objects, 0) == [(0, b"a"), (1, b"b"), (2, b"d")]


def test_N03_a_partition_is_given_up_although_a_seal_of_another_one_comes_first() -> None:
    """The entry that gives it up is void, and is made anew behind the seal."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as owner, running(objects, lanes=1) as taker:
        topic = owner.create_topic("t", 3)
        for number in range(3):
            topic.partition(number).append(b"a")
        with place(gated, 3) as gate:
            giving = background(topic.partition(0).reopen)
            gate.wait_held(PATIENCE_S)
            assert taker.topic("t").partition(1).append(b"b").offset == 1
            gate.release()
            giving.result(PATIENCE_S)
        assert taker.topic("t").partition(0).append(b"b").offset == 1
        assert topic.partition(2).append(b"c").offset == 1
    assert [seen(objects, number) for number in (0, 1)] == [[(0, b"a"), (1, b"b")]] * 2


def test_N03_what_a_partition_holds_when_it_is_given_up_is_stored_with_the_seal() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lanes=1) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"a")
        log.append(b"b", ack="buffered")
        log.reopen()
        state = owner._runtime.lanes.snapshot(store_lane(owner))
        assert state.has_ended_whole
        assert owner.topic("t").partition(0).append(b"c").offset == 2, "nothing stays reserved"
    assert seen(faulty, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_N10_the_release_before_lanes_meets_a_newer_format_first() -> None:
    """It reads segments of format 1 and manifests up to 3, and refuses what is newer: in the chain of a partition that is in
    a lane, the claim; where a manifest stands, that one. It never sees an end where the chain goes on in a lane."""
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
