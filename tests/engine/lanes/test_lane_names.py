"""A lane with a name: the next life of a process goes on with all its partitions, by one entry."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.write.lanes.lane import Lane
from logstore.errors import Fenced, PartitionInUse
from logstore.format.stored.entry import Entry, EntryKind
from logstore.layout.paths import LANES_PREFIX, LanePaths, is_birth_lane
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore
from tests.support.engine.harness import background, crash, disk_of, open_store, pairs, running, until
from tests.support.engine.other_process import OtherProcess
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S

COUNT = 64


def append_to_all(store: logstore.Store, count: int, value: bytes) -> list[int]:
    """One record to each partition, in one entry. Returns their offsets."""
    topic = store.create_topic("t", count, exist_ok=True)
    with store._lanes.held():
        futures = [topic.partition(number).submit(value) for number in range(count)]
        for number in range(count):
            topic.partition(number).open_writer()  # it may have been opened ahead of its claim
    return [future.result(PATIENCE_S).offset for future in futures]


def fences(objects: ObjectStore) -> int:
    """How many claims were made: segments in the partitions' own chains, and fences in transfers."""
    own = sum(1 for info in objects.list("topics/") if info.key.endswith(".seg"))
    lanes = {info.key.split("/")[1] for info in objects.list(LANES_PREFIX)}
    entries = [entry for lane in lanes for entry in LaneLog(objects, LanePaths(lane)).entries_from(0)]
    return own + sum(
        len(entry.parts)
        for entry in entries
        if isinstance(entry, Entry) and entry.header.kind is EntryKind.TRANSFER
    )


def lane_of(store: logstore.Store) -> Lane:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane


def test_N04_the_next_life_adopts_all_partitions_with_one_entry() -> None:
    """Nothing is asked about a partition, and nothing is put into its chain."""
    faulty = FaultyStore(MemoryStore())
    first = open_store(faulty, lane="orders")
    assert append_to_all(first, COUNT, b"first") == [0] * COUNT
    crash(first)
    before = fences(faulty)
    faulty.forget_calls()
    with running(faulty, lane="orders") as store:
        assert append_to_all(store, COUNT, b"second") == [1] * COUNT
        assert not [call for call in faulty.calls if call.key.startswith("topics/")]
        assert len(faulty.calls) <= 16
        assert fences(faulty) == before
        for number in (0, 17, 63):
            assert pairs(store.topic("t").partition(number)) == [(0, b"first"), (1, b"second")]
            assert store.topic("t").partition(number).marks() == (0, 2, 2)
    for number in (0, 17, 63):
        assert seen(faulty, number) == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize("ends", ["crash", "close"])
def test_N04_a_life_after_a_life_after_a_life(any_home: ObjectStore, ends: str) -> None:
    for life in range(4):
        store = open_store(any_home, lane="orders")
        assert append_to_all(store, 3, b"%d" % life) == [life] * 3
        if ends == "close":
            store.close()
        else:
            crash(store)
    expected = [(life, b"%d" % life) for life in range(4)]
    assert [seen(any_home, number) for number in range(3)] == [expected] * 3
    assert fences(any_home) == 3, "each partition was claimed once"


def test_N04_after_a_close_the_next_life_reads_a_checkpoint_and_no_entry() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lane="orders") as store:
        for turn in range(10):
            append_to_all(store, 8, b"%d" % turn)
    faulty.forget_calls()
    with running(faulty, lane="orders") as store:
        assert append_to_all(store, 8, b"more") == [10] * 8
        entries = [c for c in faulty.calls if c.operation == "get" and c.key.endswith(".seg")]
        assert len(entries) <= 1, "the empty place"
    assert [value for _, value in seen(faulty, 5)] == [b"%d" % turn for turn in range(10)] + [b"more"]


def test_N04_it_goes_on_past_what_was_reserved_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects = MemoryStore()
    first = open_store(objects, lane="orders", ack="buffered")
    log = first.create_topic("t", 2).partition(0)
    log.append(b"a")
    first.flush()
    log.append(b"shown, and never stored")
    assert log.buffered_high_watermark == 2
    crash(first)
    with running(objects, lane="orders") as store:
        log = store.topic("t").partition(0)
        offset = log.append(b"b").offset
        assert offset > 1, "an offset that was shown is not used again"
        assert pairs(log) == [(0, b"a"), (offset, b"b")]
        assert log.lost_ranges() == [(1, offset)]
    assert "offsets 1 to" in caplog.text
    assert seen(objects, 0) == [(0, b"a"), (offset, b"b")]


def test_N04_a_life_that_only_slept_is_stopped_whatever_it_had_under_way() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    former = open_store(gated, lane="orders")
    assert append_to_all(former, 2, b"a") == [0, 0]
    place = f"{2:020d}.seg"
    with gated.hold("put", prefix="lanes/orders.0/", suffix=place) as gate:
        late = background(former.topic("t").partition(0).append, b"late")
        gate.wait_held(PATIENCE_S)
        with running(objects, lane="orders") as store:
            assert append_to_all(store, 2, b"b") == [1, 1]
            gate.release()
            with pytest.raises(Fenced, match=r"the next life of the lane .*has begun"):
                late.result(PATIENCE_S)
            with pytest.raises(Fenced):
                former.topic("t").partition(1).append(b"no")
            assert append_to_all(store, 2, b"c") == [2, 2]
    assert [seen(objects, number) for number in range(2)] == [[(0, b"a"), (1, b"b"), (2, b"c")]] * 2
    # It may be the next one again, in the same process.
    again = former.topic("t").partition(0).reopen()
    assert again.append(b"d").offset == 3
    former.close()
    assert seen(objects, 0)[-1] == (3, b"d")


def test_N04_a_partition_that_somebody_took_over_is_not_adopted() -> None:
    objects = MemoryStore()
    first = open_store(objects, lane="orders")
    append_to_all(first, 2, b"a")
    with running(objects, lanes=1) as other:
        assert other.topic("t").partition(0).append(b"other").offset == 1
        crash(first)
        with running(objects, lane="orders") as store:
            assert store.topic("t").partition(1).append(b"b").offset == 1
            assert other.topic("t").partition(0).append(b"still").offset == 2
            assert store.topic("t").partition(0).append(b"back").offset == 3
            with pytest.raises(Fenced):
                other.topic("t").partition(0).append(b"no")
    assert seen(objects, 0) == [(0, b"a"), (1, b"other"), (2, b"still"), (3, b"back")]
    assert seen(objects, 1) == [(0, b"a"), (1, b"b")]


def test_N04_a_partition_that_was_sealed_and_not_claimed_is_claimed_by_the_next_life() -> None:
    """The taker died between its seal and its claim."""
    objects = MemoryStore()
    first = open_store(objects, lane="orders")
    append_to_all(first, 2, b"a")
    faulty = FaultyStore(objects)
    taker = open_store(faulty, lanes=0, append_timeout=0.2)
    taker.topic("t").partition(0).marks()
    faulty.fail("put", prefix="topics/", times=None)
    with pytest.raises(logstore.errors.StoreUnavailable):
        taker.topic("t").partition(0).append(b"no")
    crash(taker)
    crash(first)
    with running(objects, lane="orders") as store:
        assert append_to_all(store, 2, b"b") == [1, 1]
    assert [seen(objects, number) for number in range(2)] == [[(0, b"a"), (1, b"b")]] * 2


def test_N04_a_claim_of_which_the_lane_has_nothing_goes_on_when_somebody_opens_it() -> None:
    faulty = FaultyStore(MemoryStore())
    first = open_store(faulty, lane="orders")
    first.create_topic("t", 2).partition(0).open_writer()
    crash(first)
    with running(faulty, lane="orders") as store:
        assert append_to_all(store, 2, b"a") == [0, 0]
        assert fences(faulty) == 2, "the claim of the life before will do"
    assert [seen(faulty, number) for number in range(2)] == [[(0, b"a")]] * 2


def test_N04_a_claim_that_was_noted_and_never_made_is_not_adopted(often: None) -> None:
    """A checkpoint names claims before their fences stand. Whether they do, the partition's own chain says."""
    objects = MemoryStore()
    with running(objects, lanes=0) as creator:
        creator.create_topic("t", 2)
    faulty = FaultyStore(objects)
    first = open_store(faulty, lane="orders", append_timeout=0.2)
    topic = first.topic("t")
    faulty.fail("put", prefix=topic.partition(1)._internal.paths.prefix, times=None)
    with pytest.raises(logstore.errors.StoreUnavailable):
        topic.partition(1).append(b"no")
    for turn in range(8):
        topic.partition(0).append(b"%d" % turn)
    lane_of(first).checkpoints.write()
    crash(first)
    with running(objects, lanes=0) as other:
        assert other.topic("t").partition(1).append(b"other").offset == 0
    with running(objects, lane="orders") as store:
        assert store.topic("t").partition(1).append(b"ours").offset == 1
        assert store.topic("t").partition(0).append(b"8").offset == 8
    assert seen(objects, 1) == [(0, b"other"), (1, b"ours")]


def test_N04_shared_writers_come_between_two_lives() -> None:
    objects = MemoryStore()
    first = open_store(objects, lane="orders")
    append_to_all(first, 2, b"a")
    crash(first)
    with running(objects, writer="shared") as other:
        assert other.topic("t").partition(0).append(b"shared").offset == 1
    with running(objects, lane="orders", take_over=True) as store:
        assert append_to_all(store, 2, b"b") == [2, 1]
    assert seen(objects, 0) == [(0, b"a"), (1, b"shared"), (2, b"b")]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.REFUSE])
def test_C03_an_adoption_whose_answer_is_lost_stands_once(fault: Fault) -> None:
    objects = MemoryStore()
    first = open_store(objects, lane="orders")
    append_to_all(first, 2, b"a")
    crash(first)
    faulty = FaultyStore(objects)
    faulty.fail("put", prefix="lanes/", times=2, with_=fault)
    with running(faulty, lane="orders", probe_interval=0.001) as store:
        assert append_to_all(store, 2, b"b") == [1, 1]
        state = store._runtime.lanes.snapshot("orders.0")
        adoptions = [
            seq
            for seq in state.kept
            if (entry := lane_of(store)._book.log.entry_at(seq)) and entry.header.kind is EntryKind.ADOPTION
        ]
        assert len(adoptions) == 2, "one for each life"
    assert [seen(objects, number) for number in range(2)] == [[(0, b"a"), (1, b"b")]] * 2


def test_N06_entries_are_split_and_deleted_over_the_lives_of_a_lane(often: None) -> None:
    objects = MemoryStore()
    for life in range(6):
        store = open_store(objects, lane="orders", delete_grace=0.0)
        for turn in range(5):
            append_to_all(store, 2, b"%d.%d" % (life, turn))
        if life % 2:
            store.close()
        else:
            crash(store)
        expected = [b"%d.%d" % (past, turn) for past in range(life + 1) for turn in range(5)]
        for number in range(2):
            assert seen(objects, number) == list(enumerate(expected))
    with running(objects, writer="read_only", delete_grace=0.0) as keeper:
        assert keeper.collect_garbage() is not None
    assert seen(objects, 1) == list(enumerate(expected))
    stored = [info for info in objects.list("lanes/orders.0/") if info.key.endswith(".seg")]
    assert len(stored) < 36, "some of it was deleted"


def test_W17_a_name_is_refused_while_another_process_has_it(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with OtherProcess(home, lane="orders") as service, logstore.open(home, lane="orders") as late:
        assert service.append("first") == [0, 0]
        with pytest.raises(
            PartitionInUse, match=r"the lane orders\.0 belongs to .*take_over=True"
        ) as refused:
            late.topic("t").append(b"late")
        assert f"process {service.pid} " in str(refused.value)
        assert service.append("second") == [0, 1], "it was not stopped"
        with logstore.open(home, lane="orders", take_over=True) as successor:
            assert successor.topic("t").append(b"third").offset == 2
            told = service.append("late")
            assert told["error"] == "Fenced"
            assert "the next life of the lane" in told["text"]
            assert f"(process {os.getpid()} " in told["text"]


def test_W17_who_adopted_a_partition_is_its_owner_not_who_claimed_it(tmp_path: Path) -> None:
    """The fence in the partition's chain names a process that is dead; the one that lives is named in the lane."""
    home = tmp_path / "store"
    first = open_store(LocalStore(home), lane="orders")
    first.create_topic("t", 1).append(b"first")
    crash(first)
    first._runtime.presence.hide()
    with OtherProcess(home, lane="orders") as service, logstore.open(home) as late:
        assert service.append("second") == [0, 1]
        with pytest.raises(PartitionInUse) as refused:
            late.topic("t").append(b"late")
        assert f"process {service.pid} " in str(refused.value)
        assert service.append("third") == [0, 2], "it was not stopped"


def test_N04_kill_9_of_a_process_with_many_partitions(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with OtherProcess(home, lane="orders", partitions=COUNT) as service:
        assert service.append_to_all("first") == [0] * COUNT
        service.kill()
    faulty = FaultyStore(LocalStore(home))
    with running(faulty, lane="orders") as store:
        assert append_to_all(store, COUNT, b"second") == [1] * COUNT
        assert not [call for call in faulty.calls if call.key.startswith("topics/")]
        assert len([call for call in faulty.calls if call.operation == "put"]) <= 4
    assert seen(faulty, 63) == [(0, b"first"), (1, b"second")]


def test_a_lane_has_a_name_that_can_be_a_key() -> None:
    for wrong in ("", "a/b", "a.b", "ü", 7, "x" * 101):
        with pytest.raises(ValueError, match="lane="):
            logstore.StoreConfig(lane=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exclusive"):
        logstore.StoreConfig(lane="orders", writer="shared")
    settings: dict[str, Any] = {"lane": "orders", "lanes": 2}
    with running(MemoryStore(), **settings) as store:
        assert append_to_all(store, 8, b"a") == [0] * 8
        lanes = {info.key.split("/")[1] for info in store.objects.list("lanes/")}
        assert {lane for lane in lanes if not is_birth_lane(lane)} == {"orders.0", "orders.1"}


def test_N04_killed_at_any_request_of_an_adoption_the_next_life_goes_on() -> None:
    """Each life dies at its k-th request; what it acked is there afterwards, once, at its offset."""
    objects = MemoryStore()
    with running(objects, lane="orders") as store:
        append_to_all(store, 3, b"first")
    acked: dict[int, dict[int, bytes]] = {number: {0: b"first"} for number in range(3)}

    def live(store: logstore.Store, life: bytes) -> None:
        topic = store.topic("t")
        for turn in range(2):
            for number in range(3):
                value = b"%s.%d" % (life, turn)
                acked[number][topic.partition(number).append(value).offset] = value

    for last in range(2, 22):
        lifeline = FaultyStore(objects)
        lifeline.fail("*", skip=last, times=None)
        store = open_store(lifeline, lane="orders", append_timeout=0.5, probe_interval=0.01)
        living = background(live, store, b"%d" % last)
        until(lambda: living.done() or len(lifeline.calls) > last)  # noqa: B023
        crash(store, lifeline)
        living.exception(PATIENCE_S)
        for number in range(3):
            found = dict(seen(objects, number))
            assert acked[number].items() <= found.items()
            assert len(set(found.values())) == len(found), "nothing is stored twice"
    with running(objects, lane="orders") as store:
        live(store, b"last")
    for number in range(3):
        found = dict(seen(objects, number))
        assert acked[number].items() <= found.items()
        assert sorted(found) == list(range(len(found))), "nothing was reserved, so there is no hole"


def test_N04_a_life_that_is_over_sends_nothing_before_its_writers_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has read the adoption and has not told its writers yet: an append asks for an upload in between. What was in flight
    would go into that one, and name the adoption: it would count."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    former = open_store(gated, lane="orders")
    append_to_all(former, 2, b"a")
    lane, told, asked = lane_of(former), threading.Event(), threading.Event()
    end = lane._teller._end

    def slowly(*args: Any) -> None:
        asked.set()
        assert told.wait(PATIENCE_S)
        end(*args)

    monkeypatch.setattr(lane._teller, "_end", slowly)
    with gated.hold("put", prefix="lanes/orders.0/", suffix=f"{2:020d}.seg") as gate:
        late = background(former.topic("t").partition(0).append, b"late")
        gate.wait_held(PATIENCE_S)
        with running(objects, lane="orders") as store:
            store.topic("t").partition(0).open_writer()
            gate.release()
            assert asked.wait(PATIENCE_S)
            beside = background(former.topic("t").partition(1).append, b"beside")
            until(lambda: not lane._queue.again)  # a sender has taken what was in flight
            told.set()
            for lost in (late, beside):
                with pytest.raises(Fenced):
                    lost.result(PATIENCE_S)
            assert append_to_all(store, 2, b"b") == [1, 1]
    assert [seen(objects, number) for number in range(2)] == [[(0, b"a"), (1, b"b")]] * 2
    former.close()


@pytest.mark.parametrize("knows", [False, True])
def test_N04_a_life_that_is_over_does_not_replace_the_checkpoint_of_the_next(
    often: None, knows: bool
) -> None:
    """It slept, and what it knows of the lane is old. It would say that entries are there which were split since."""
    objects = MemoryStore()
    former = open_store(objects, lane="orders")
    append_to_all(former, 2, b"a")
    lane_of(former).checkpoints.write()
    with running(objects, lane="orders", delete_grace=0.0) as store:
        for turn in range(20):
            assert append_to_all(store, 2, b"%d" % turn) == [turn + 1] * 2
        lane = lane_of(store)
        lane.checkpoints.write()
        before = lane._book.log.checkpoint()
        assert before is not None
        assert before.split_until > lane_of(former)._book.known.next_seq, "the test is about that"
        if knows:
            with pytest.raises(Fenced):
                former.topic("t").partition(0).append(b"no")
        for _ in range(3):
            lane_of(former).checkpoints.write()
        former.close()
        after = lane._book.log.checkpoint()
        assert after is not None
        # Not "the same": one of the next life's own may have been on its way.
        assert (after.next_seq, after.split_until) >= (before.next_seq, before.split_until)
        assert len(after.kept) >= len(before.kept)
    assert seen(objects, 1) == [(0, b"a"), *((turn + 1, b"%d" % turn) for turn in range(20))]


def test_N04_what_the_wal_kept_is_stored_again_at_its_offsets_by_the_next_life(tmp_path: Path) -> None:
    """Partition 0 has records that were acked `local` and never stored; partition 1 has none, and simply goes on."""
    objects = MemoryStore()
    first = open_store(objects, lane="orders", wal_dir=tmp_path / "wal")
    topic = first.create_topic("t", 2)
    for number in range(2):
        topic.partition(number).append(b"a")
    for turn in range(3):
        assert topic.partition(0).append(b"local %d" % turn, ack="local").offset == turn + 1
    crash(first)
    left = disk_of(tmp_path / "wal", tmp_path / "copy")
    with running(objects, lane="orders", wal_dir=left) as store:
        assert store.topic("t").partition(0).append(b"b").offset >= 4
        assert store.topic("t").partition(1).append(b"b").offset == 1
    found = seen(objects, 0)
    assert found[:4] == [(0, b"a"), *((turn + 1, b"local %d" % turn) for turn in range(3))]
    assert found[4][1] == b"b"
    assert seen(objects, 1) == [(0, b"a"), (1, b"b")]
    with running(objects, lane="orders") as store:
        assert store.topic("t").partition(0).append(b"c").offset == found[4][0] + 1


def test_N04_W06_a_writer_of_one_life_stores_nothing_in_the_next_one_of_the_same_process() -> None:
    """Two writers meet an adoption with one upload. One of them has gone on, by adopting the lane back, before the other is
    told: what that one is given must not be stored, because the life in between may have written there."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lane="orders", take_over=True) as first:
        assert append_to_all(first, 2, b"a") == [0, 0]
        logs = [first.topic("t").partition(number) for number in range(2)]
        with running(objects, lane="orders", take_over=True) as second:
            assert append_to_all(second, 2, b"b") == [1, 1]
        with gated.hold("get", prefix=logs[1]._internal.paths.prefix) as gate:
            with first._lanes.held():
                waiting = [log.submit(b"no") for log in logs]
            gate.wait_held()  # to say to the other why it has stopped
            with pytest.raises(Fenced):
                waiting[0].result(PATIENCE_S)
            fresh = logs[0].reopen()
            assert fresh.append(b"c").offset == 2
            waiting.append(logs[1].submit(b"no"))
            assert fresh.append(b"d").offset == 3
        for future in waiting[1:]:
            with pytest.raises(Fenced):
                future.result(PATIENCE_S)
        assert logs[1].reopen().append(b"c").offset == 2
    assert seen(objects, 1) == [(0, b"a"), (1, b"b"), (2, b"c")]
