"""What a deleted topic has in a lane goes: with the lane's owner at work, and after its end."""

from __future__ import annotations

import pytest

import logstore
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import open_store, pairs, running
from tests.support.patience import PATIENCE_S

LARGE = b"\x07" + bytes(range(256)) * 40


def bytes_in_lanes(objects: MemoryStore) -> int:
    return sum(info.size for info in objects.list("lanes/"))


def bytes_of(objects: MemoryStore) -> int:
    return sum(info.size for info in objects.list(""))


@pytest.mark.parametrize("who", ["owner", "after its end"])
def test_N06_the_bytes_of_a_deleted_topic_leave_the_lane_after_the_grace(who: str) -> None:
    """Entries hold records of both topics. What the living one has in them becomes an object of its own."""
    objects, clock = MemoryStore(), ManualClock()
    store = open_store(objects, clock, delete_grace=60.0, compression="none", lanes=1)
    kept, gone = store.create_topic("kept").partition(0), store.create_topic("gone").partition(0)
    for turn in range(20):
        waiting = [kept.submit(b"%d" % turn), gone.submit(LARGE)]
        store.flush()
        assert [future.result(0).offset for future in waiting] == [turn, turn]
    kept.append(b"20")
    full = bytes_in_lanes(objects)
    assert full > 20 * len(LARGE)
    store.delete_topic("gone")
    keeper = store
    if who != "owner":
        store.close()
        keeper = open_store(objects, clock, delete_grace=60.0, lanes=1)
        keeper.topic("kept").partition(0).append(b"21")  # its claim in the old lane ends
    keeper.collect_garbage()
    assert bytes_in_lanes(objects) > 20 * len(LARGE), "a reader with an old reference may be at work"
    clock.advance(61.0)
    keeper.collect_garbage()
    assert bytes_in_lanes(objects) < 2 * len(LARGE), "the newest entry stays"
    assert bytes_of(objects) < 3 * len(LARGE)
    last = 21 if who == "owner" else 22
    log = keeper.topic("kept").partition(0)
    assert log.append(b"on").offset == last
    assert [value for _, value in pairs(log)][:21] == [b"%d" % turn for turn in range(21)]
    keeper.close()
    with running(objects, writer="read_only") as reader:
        assert len(pairs(reader.topic("kept").partition(0))) == last + 1
        with pytest.raises(logstore.UnknownTopic):
            reader.topic("gone")


def test_N06_collecting_leaves_a_lane_alone_in_which_nothing_was_deleted() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        for turn in range(5):
            log.append(b"%d" % turn)
        before = [info.key for info in objects.list("")]
        store.collect_garbage()
        assert [info.key for info in objects.list("")] == before


@pytest.mark.parametrize("deleter", ["owner", "another"])
def test_N06_a_topic_of_many_partitions_is_deleted_with_one_seal_in_each_lane(deleter: str) -> None:
    """A seal stays for good, so it is one for all: in the lane that has records of some, and where the others begin."""
    objects = FaultyStore(MemoryStore())
    with running(objects, lanes=1) as owner, running(objects, lanes=1) as other:
        wide, kept = owner.create_topic("wide", 100), owner.create_topic("kept").partition(0)
        waiting = [wide.partition(number).submit(b"x") for number in range(50)]
        assert {future.result(PATIENCE_S).offset for future in waiting} == {0}
        assert kept.append(b"0").offset == 0
        logs = [wide.partition(number) for number in range(50)]
        objects.forget_calls()
        (owner if deleter == "owner" else other).delete_topic("wide")
        assert objects.count("put", prefix="lanes/", suffix=".seg") == 2
        assert len(objects.calls) < 20 * 100
        for log in logs:
            with pytest.raises(logstore.UnknownTopic):
                log.append(b"late", timeout=PATIENCE_S)
        assert kept.append(b"1").offset == 1
        assert owner.create_topic("wide", 2).append(b"new", partition=0).offset == 0
