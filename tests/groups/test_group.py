"""A member as users hold it. Clocks stand still unless a test moves them; nothing waits for a thread of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import logstore
import logstore.aio
from logstore.errors import Closed, Fenced, ObjectNotFound, OffsetOutOfRange, ReadOnly, UnknownTopic
from logstore.groups import Group, PartitionLag, delete, describe, lag, names
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, open_store
from tests.support.patience import PATIENCE_S


class Place:
    """A store with a topic, and a clock for each member that is opened: each in a store of its own, as in a process."""

    def __init__(self, partitions: int = 4) -> None:
        self.objects = MemoryStore()
        self.clock = ManualClock()
        self.store = open_store(self.objects, self.clock)
        self.topic = self.store.create_topic("t", partitions=partitions)
        self.others: list[logstore.Store] = []

    def fill(self, count: int) -> None:
        for number in range(count):
            self.topic.append(b"%d" % number)

    def member(self, clock: ManualClock | None = None, **how: object) -> Group:
        store = open_store(self.objects, clock or ManualClock())
        self.others.append(store)
        return store.group("g", "t", **how)  # type: ignore[arg-type]

    def close(self) -> None:
        for store in [*self.others, self.store]:
            store.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def drained(group: Group) -> list[bytes]:
    """What it hands out until there is no more."""
    values = []
    while records := group.poll(0):
        values += [record.value or b"" for record in records]
    return values


def test_P01_a_worker_resumes_behind_what_it_committed(place: Place) -> None:
    place.fill(20)
    with place.member() as group:
        first = group.poll(0, max_records=7)
        assert len(first) == 7
        group.commit()
        group.poll(0, max_records=5)  # handed out and never committed
    with place.member() as group:
        rest = drained(group)
    assert {record.value for record in first} | {*rest} == {b"%d" % number for number in range(20)}
    assert len(rest) == 13


def test_P01_iterating_hands_out_one_by_one_and_commit_covers_the_last(place: Place) -> None:
    place.fill(12)
    seen = []
    with place.member() as group:
        for record in group:
            seen.append((record.topic, record.partition, record.offset))
            group.commit()
            if len(seen) == 5:
                break
    with place.member() as group:
        assert len(drained(group)) == 7


def test_records_know_their_place_and_keep_their_order(place: Place) -> None:
    place.fill(40)
    with place.member() as group:
        records = group.poll(0)
        assert len(records) == 40
        for number in range(4):
            mine = [record.offset for record in records if record.partition == number]
            assert mine == list(range(10))
        assert {record.topic for record in records} == {"t"}


def test_P02_two_members_share_and_hand_over_what_was_committed(place: Place) -> None:
    place.fill(40)
    a = place.member()
    got = a.poll(0, max_records=15)
    a.commit()
    b = place.member()
    assert b.assignment == []
    a._membership.look()
    rest = [record for _ in range(3) for record in a.poll(0)]
    assert len(a.assignment) == 2, "nothing was handed out uncommitted, so it gave up two at once"
    a.commit()
    b._membership.look()
    theirs = drained(b)
    assert len(b.assignment) == 2
    values = [record.value for record in [*got, *rest]] + theirs
    assert sorted(values, key=lambda value: int(value or 0)) == [b"%d" % number for number in range(40)]


def test_P02_a_partition_stays_until_what_was_handed_out_of_it_is_committed(place: Place) -> None:
    place.fill(40)
    clock = ManualClock()
    a = place.member(clock)
    assert len(a.poll(0)) == 40
    b = place.member()
    a._membership.look()
    place.fill(8)
    clock.advance(1)
    more = a.poll(0)
    assert len(a.assignment) == 4
    assert len({record.partition for record in more}) == 2, "no more of what is to go"
    a.commit()
    assert len(a.assignment) == 2
    b._membership.look()
    assert len(drained(b)) == 4


def test_P02_who_never_commits_gives_up_after_a_session_time_out_and_is_told(place: Place) -> None:
    place.fill(40)
    clock = ManualClock()
    a = place.member(clock)
    a.poll(0)
    b = place.member()
    a._membership.look()
    a.poll(0)
    clock.advance(30)
    a.poll(0)
    assert len(a.assignment) == 2
    b._membership.look()
    assert len(drained(b)) == 20, "it gets them again"
    with pytest.raises(Fenced, match=r"t/\d, t/\d went to other members"):
        a.commit()
    a.commit()
    assert sum(each.records for each in lag(place.store, "g")) == 20, "what it kept is saved"


def test_P02_a_replaced_member_is_told_at_its_commit_and_joins_again(place: Place) -> None:
    place.fill(20)
    clock = ManualClock()
    a = place.member()
    b = place.member(clock)
    share_out_before = a.poll(0)
    assert share_out_before
    b._membership.look()
    clock.advance(30)
    b._membership.look()
    assert len(b.assignment) == 4
    with pytest.raises(Fenced, match="refused"):
        a.commit()
    assert a.poll(0) == []
    a.commit()
    assert a.assignment == []
    b._membership.look()
    b.poll(0)
    b.commit()
    a._membership.look()
    assert len(a.assignment) == 2


def test_P02_a_member_whose_program_hangs_shows_no_life(place: Place) -> None:
    clock, counted = ManualClock(), FaultyStore(place.objects)
    with open_store(counted, clock) as store, store.group("g", "t", max_poll_interval=100.0) as group:
        clock.advance(60)
        group._show_life()
        assert counted.count("put", prefix="groups/g/slots/") >= 2, "it joined, and has shown life since"
        clock.advance(60)
        counted.forget_calls()
        for _ in range(5):
            clock.advance(30)
            group._show_life()
        assert counted.calls == []
        group.commit()
        group._show_life()
        assert counted.count("put", prefix="groups/g/slots/") == 1


def test_seek_and_pause(place: Place) -> None:
    place.fill(40)
    with place.member() as group:
        assert len(drained(group)) == 40
        group.seek({0: 5, ("t", 1): "beginning"})
        records = group.poll(0)
        assert sorted((record.partition, record.offset) for record in records) == [
            *((0, offset) for offset in range(5, 10)),
            *((1, offset) for offset in range(10)),
        ]
        group.seek("beginning")
        group.pause([0, 1])
        group.pause(2)
        assert {record.partition for record in group.poll(0)} == {3}
        group.resume(0)
        assert {record.partition for record in group.poll(0)} == {0}
        group.resume()
        assert {record.partition for record in group.poll(0)} == {1, 2}
        group.seek("end")
        assert group.poll(0) == []
        group.seek(datetime.fromtimestamp(place.clock.now_ms() / 1000, UTC))
        assert len(drained(group)) == 40
        group.seek({3: 2})
        group.commit()
        with pytest.raises(ValueError, match="not this member's"):
            group.seek({9: 0})
    with place.member() as group:
        assert len(drained(group)) == 8, "the position that it went back to is saved"


def test_what_was_read_ahead_is_not_lost_when_a_partition_is_paused(place: Place) -> None:
    place.fill(40)
    with place.member() as group:
        first = group.poll(0, max_records=3)
        group.pause()
        assert group.poll(0) == []
        group.resume()
        assert len(drained(group)) + len(first) == 40


def test_start_at_the_end_is_saved_at_once(place: Place) -> None:
    place.fill(8)
    group = place.member(start="end")
    assert group.poll(0) == []
    place.topic.append(b"new")
    group.close()
    with place.member(start="end") as group:
        assert drained(group) == [b"new"], "the next member does not begin at a later end"


def test_retention_is_not_stepped_over_in_silence(place: Place) -> None:
    place.fill(40)
    with place.member() as group:
        group.poll(0, max_records=4)
        group.commit()
    for number in range(4):
        place.topic.partition(number).delete_before(8)
    with place.member() as group:
        with pytest.raises(OffsetOutOfRange):
            group.poll(0)
        group.seek("beginning")
        assert len(drained(group)) == 8


def test_P03_lag_in_records_and_seconds(place: Place) -> None:
    place.fill(8)
    with place.member() as group:
        group.poll(0, max_records=500)
        group.commit()
        place.clock.advance(100)
        place.topic.append(b"x", partition=2)
        place.clock.advance(5)
        place.topic.append(b"y", partition=2)
        place.clock.advance(2)
        found = {each.partition: each for each in lag(place.store, "g")}
        assert found[2] == PartitionLag("t", 2, 2, 4, 2, 7.0, group.member)
        assert found[0] == PartitionLag("t", 0, 2, 2, 0, 0.0, group.member)
        assert [each.records for each in group.lag()] == [0, 0, 2, 0]
    assert {each.member for each in lag(place.store, "g")} == {None}


def test_P03_lag_of_a_group_that_has_saved_nothing_is_all_there_is(place: Place) -> None:
    place.fill(8)
    with place.member():
        assert [(each.position, each.records) for each in lag(place.store, "g")] == [(None, 2)] * 4


def test_groups_are_listed_described_and_deleted(place: Place) -> None:
    assert names(place.store) == []
    with place.member(member="w1") as group:
        assert names(place.store) == ["g"]
        info = describe(place.store, "g")
        assert (info.members, info.topics) == ({"w1": [("t", number) for number in range(4)]}, ["t"])
        assert group.member == "w1"
        with pytest.raises(ValueError, match="has members: w1"):
            delete(place.store, "g")
    delete(place.store, "g")
    assert names(place.store) == []
    with pytest.raises(ObjectNotFound, match="no group 'g'"):
        lag(place.store, "g")
    place.fill(4)
    with place.member() as group:
        assert len(drained(group)) == 4, "a group of that name begins again"


def test_partitions_that_are_added_and_topics_recreated_are_found(place: Place) -> None:
    place.fill(8)
    clock = ManualClock()
    with place.member(clock) as group:
        drained(group)
        group.commit()
        place.store.add_partitions("t", 6)
        place.store.topic("t").append(b"new", partition=5)
        clock.advance(30)
        group._membership.look()
        assert drained(group) == [b"new"]
        group.commit()
        place.store.delete_topic("t")
        place.store.create_topic("t", partitions=1).append(b"again")
        clock.advance(30)
        group._membership.look()
        assert drained(group) == [b"again"]
        assert group.assignment == [("t", 0)]


def test_garbage_collection_leaves_groups_alone_and_a_deleted_topic_has_no_lag(place: Place) -> None:
    place.fill(8)
    with place.member() as group:
        drained(group)
        group.commit()
    before = {info.key: place.objects.get(info.key) for info in place.objects.list("groups/")}
    place.clock.advance(10 * 24 * 3600)
    assert [item.key for item in place.store.collect_garbage(dry_run=True)] == []
    place.store.collect_garbage()
    place.store.delete_topic("t")
    place.store.collect_garbage()
    assert {info.key: place.objects.get(info.key) for info in place.objects.list("groups/")} == before
    assert lag(place.store, "g") == []
    place.store.create_topic("t", partitions=4)
    assert lag(place.store, "g") == [], "positions of a topic that is gone count for no other of its name"


def test_a_deleted_topic_is_said(place: Place) -> None:
    clock = ManualClock()
    with place.member(clock) as group:
        place.fill(1)
        drained(group)
        place.store.delete_topic("t")
        clock.advance(1)
        with pytest.raises(UnknownTopic):
            for _ in range(2):  # the first one may be who finds out
                group.poll(0)


def test_several_topics_and_a_wrong_name(place: Place) -> None:
    place.store.create_topic("u", partitions=1).append(b"u")
    place.topic.append(b"t")
    with place.store.group("g", ["t", "u"]) as group:
        assert sorted(drained(group)) == [b"t", b"u"]
        group.seek({("u", 0): 0})
        with pytest.raises(ValueError, match="reads 2 topics"):
            group.seek({0: 0})
        assert drained(group) == [b"u"]
    with pytest.raises(UnknownTopic):
        place.store.group("g2", "nothing")
    assert names(place.store) == ["g"], "nothing was written for it"
    with pytest.raises(ValueError, match="no name for a group"):
        place.store.group("a/b", "t")
    with pytest.raises(ValueError, match="at least one topic"):
        place.store.group("g", [])
    with pytest.raises(ValueError, match="session_timeout"):
        place.store.group("g", "t", session_timeout=0)


def test_a_read_only_store_may_look_and_not_join(place: Place) -> None:
    with place.member():
        with open_store(place.objects, writer="read_only") as store:
            assert names(store) == ["g"]
            assert len(lag(store, "g")) == 4
            with pytest.raises(ReadOnly):
                store.group("g", "t")


def test_a_closed_group_says_so_and_ends_its_loops(place: Place) -> None:
    group = place.member()
    loop = background(lambda: list(group))
    group.close()
    group.close()
    assert loop.result(PATIENCE_S) == []
    for call in (group.poll, group.commit, group.lag, group.pause):
        with pytest.raises(Closed):
            call()
    assert describe(place.store, "g").members == {}


def test_closing_the_store_leaves_its_groups(place: Place) -> None:
    group = place.member()
    place.others[0].close()
    assert describe(place.store, "g").members == {}
    with pytest.raises(Closed):
        group.poll(0)


def test_C11_a_store_that_hangs_does_not_hold_up_the_end(place: Place) -> None:
    gated = GatedStore(place.objects)
    store = open_store(gated)
    group = store.group("g", "t")
    with gated.hold("*", prefix="groups/") as gate:
        closing = background(store.close, 0.05)
        gate.wait_held()
        closing.result(PATIENCE_S)
        with pytest.raises(Closed):
            group.poll(0)


def test_a_group_is_not_the_forked_childs(place: Place) -> None:
    group = place.member()
    group._pid = os.getpid() + 1  # as in a child
    with pytest.raises(Closed, match="forked"):
        group.poll(0)
    group._pid = os.getpid()
    assert group.poll(0) == []


def test_an_outage_is_told_and_nothing_is_skipped() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with open_store(objects) as writer, open_store(faulty, ManualClock()) as reader:
        topic = writer.create_topic("t")
        topic.append(b"1")
        with reader.group("g", "t") as group:
            assert drained(group) == [b"1"]
            faulty.down()
            with pytest.raises(logstore.StoreUnavailable):
                group.commit()
            faulty.heal()
            group.commit()
            assert [each.position for each in lag(writer, "g")] == [1]


def test_the_same_for_asyncio() -> None:
    async def run() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            topic = await store.create_topic("t", partitions=2)
            async with await store.group("g", "t") as group:
                polling = asyncio.create_task(group.poll(PATIENCE_S))
                await asyncio.sleep(0)
                await topic.append(b"1")
                assert [record.value for record in await polling] == [b"1"]
                await group.commit()
                late = asyncio.create_task(group.poll(PATIENCE_S))
                await asyncio.sleep(0)
                late.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await late
                await topic.append(b"2")
                async for record in group:
                    assert (record.value, record.topic) == (b"2", "t")
                    break
                await group.pause()
                assert await group.poll(0) == []
                await group.resume()
                await group.seek("beginning")
                found: list[bytes | None] = []
                while len(found) < 2:
                    found += [record.value for record in await group.poll(PATIENCE_S)]
                assert sorted(found, key=str) == [b"1", b"2"]
                assert sum(each.records for each in await group.lag()) == 1
                assert len(group.assignment) == 2
                assert group.name == "g"
                assert group.member in repr(group)

    asyncio.run(run())
