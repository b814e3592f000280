"""What a group costs, in requests: it grows with its members, and not with partitions."""

from __future__ import annotations

import pytest

from logstore.engine.partition.many_partitions import LOOKS
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import open_store

SESSION_S = 30.0
LOOK_S = 5.0


def requests(faulty: FaultyStore, prefix: str) -> int:
    return sum(call.key.startswith(prefix) for call in faulty.calls)


@pytest.mark.parametrize("partitions", [10, 1000])
def test_P04_an_idle_group_costs_requests_for_each_member_and_none_for_a_partition(partitions: int) -> None:
    objects, members = MemoryStore(), 3
    with open_store(objects, ManualClock()) as writer:
        writer.create_topic("t", partitions=partitions)
    clocks = [ManualClock() for _ in range(members)]
    counted = [FaultyStore(objects) for _ in range(members)]
    stores = [open_store(each, clock) for each, clock in zip(counted, clocks, strict=True)]
    groups = [store.group("g", "t", session_timeout=SESSION_S) for store in stores]
    for _ in range(3):
        for group in groups:
            group._membership.look()
            group.poll(0)
    assert sorted(len(group.assignment) for group in groups)[0] >= partitions // members
    for each in counted:
        each.forget_calls()
    intervals = 12
    for _ in range(intervals):
        for clock in clocks:
            clock.advance(LOOK_S)
        for group in groups:
            group._membership.tick()
            assert group.poll(0) == []
    for each in counted:
        listings, saves = each.count("list", prefix="groups/"), each.count("put", prefix="groups/")
        assert listings <= intervals
        assert saves <= intervals / 2
        assert requests(each, "groups/") == listings + saves, "and nothing else while nothing happens"
        assert requests(each, "topics/") <= 2 * LOOKS * intervals, "the same for any number of partitions"
        assert requests(each, "catalog/") <= 4
    for store in stores:
        store.close()


def test_P04_a_commit_is_one_request_for_all_partitions() -> None:
    objects, clock = MemoryStore(), ManualClock()
    counted = FaultyStore(objects)
    with open_store(counted, clock) as store:
        topic = store.create_topic("t", partitions=100)
        for number in range(100):
            topic.append(b"x", partition=number)
        with store.group("g", "t") as group:
            assert len(group.poll(0)) == 100
            counted.forget_calls()
            group.commit()
            assert [(call.operation, call.key) for call in counted.calls] == [("put", "groups/g/slots/00000")]
            group.commit()
            assert len(counted.calls) == 1, "nothing new, no request"


def test_P04_partitions_of_one_lane_are_asked_for_together() -> None:
    objects, clock = MemoryStore(), ManualClock()
    counted = FaultyStore(objects)
    with open_store(objects, ManualClock(), lanes=1) as writer, open_store(counted, clock) as reader:
        topic = writer.create_topic("t", partitions=50)
        for number in range(50):
            topic.append(b"x", partition=number)
        with reader.group("g", "t") as group:
            assert len(group.poll(0)) == 50
            counted.forget_calls()
            for _ in range(4):
                clock.advance(0.5)
                assert group.poll(0) == []
            assert requests(counted, "topics/") + requests(counted, "lanes/") <= 4 * 2


def test_P04_where_this_process_writes_waiting_for_records_costs_nothing() -> None:
    objects, clock = MemoryStore(), ManualClock()
    counted = FaultyStore(objects)
    with open_store(counted, clock) as store:
        topic = store.create_topic("t", partitions=50)
        for number in range(50):
            topic.append(b"x", partition=number)
        with store.group("g", "t") as group:
            group.poll(0)
            counted.forget_calls()
            for _ in range(20):
                clock.advance(0.1)
                assert group.poll(0) == []
            assert requests(counted, "topics/") == 0
