"""L20: a lane without its checkpoint, or with a damaged one, is read, goes on, and gets another."""

from __future__ import annotations

import pytest

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.whole_lane import lanes_of
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from tests.support.engine.harness import crash, open_store, running
from tests.support.lanes.damage import (
    LOSSES,
    VALUES,
    Damage,
    deleted,
    emptied,
    flipped,
    is_damage,
    keys,
    killed,
    offsets_of_next,
    read,
    readable,
    spoil,
)


def test_L20_what_a_checkpoint_knows_of_a_last_entry_that_is_gone_is_missed() -> None:
    objects = MemoryStore()
    killed(objects, lane="x")
    with running(objects, lane="x") as store:
        store.topic("t").partition(2).append(b"b2")
    key = keys(objects)[-1]
    objects.delete(key)
    found = readable(objects)
    assert found[0] == VALUES[0]
    assert found[1] == VALUES[1]
    assert found[2][0] == b"a2"
    assert is_damage(found[2][1], key)
    assert offsets_of_next(objects, lane="x") == [3, 2, 2]


# The checkpoint


def split_lane(objects: ObjectStore) -> dict[int, list[bytes]]:
    """A lane that has a checkpoint, whose first entries were split and are gone, and seals among those that stay."""
    expected: dict[int, list[bytes]] = {number: [] for number in range(3)}
    store = open_store(objects, lanes=1, delete_grace=0.0)
    topic = store.create_topic("t", 3)
    for turn in range(12):
        for number in range(2 if turn > 3 else 3):  # the third is quiet later on
            topic.partition(number).append(b"%d" % turn)
            expected[number].append(b"%d" % turn)
        if turn == 5:
            with running(objects, lanes=1) as other:
                other.topic("t").partition(1).append(b"taken")
            expected[1].append(b"taken")
            topic.partition(1).reopen()
    lane = store._lanes.of(topic.partition(0)._internal.paths)
    assert lane is not None
    lane.checkpoints.write()
    for number in range(2):
        topic.partition(number).append(b"last")
        expected[number].append(b"last")
    crash(store)
    return expected


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["body", "front", "cut", "emptied", "deleted"])
def test_L20_a_lane_is_read_and_goes_on_without_its_checkpoint(damage: str) -> None:
    objects = MemoryStore()
    expected = split_lane(objects)
    (key,) = (key for key in keys(objects, "checkpoint") if len(keys(objects)) and _is_split(objects, key))
    kinds: dict[str, Damage] = {
        "body": flipped(-20),
        "front": flipped(40),
        "cut": lambda data: data[: len(data) // 2],
        "emptied": emptied,
        "deleted": deleted,
    }
    spoil(objects, key, kinds[damage])
    assert {number: read(objects, number) for number in expected} == expected
    with open_store(objects, writer="read_only") as store:
        assert store.topic("t").to_arrow().num_rows == sum(map(len, expected.values()))
    with running(objects, lanes=1) as store:
        for number, values in expected.items():
            assert store.topic("t").partition(number).append(b"next").offset == len(values)
            values.append(b"next")
    assert {number: read(objects, number) for number in expected} == expected
    with running(objects, writer="read_only", delete_grace=0.0) as keeper:
        keeper.collect_garbage()
    assert {number: read(objects, number) for number in expected} == expected
    for lane in lanes_of(objects):
        assert LaneLog(objects, LanePaths(lane)).checkpoint() is not None, "it was written again"


def _is_split(objects: ObjectStore, key: str) -> bool:
    found = LaneLog(objects, LanePaths(key.split("/")[1])).checkpoint()
    return found is not None and found.split_until > 0


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["garbage", "deleted"])
def test_L20_an_owner_writes_a_damaged_checkpoint_again(damage: str) -> None:
    objects = MemoryStore()
    with running(objects, lanes=1, delete_grace=0.0) as store:
        topic = store.create_topic("t", 2)
        for turn in range(12):
            for number in range(2):
                topic.partition(number).append(b"%d" % turn)
        lane = store._lanes.of(topic.partition(0)._internal.paths)
        assert lane is not None
        lane.checkpoints.write()
        (key,) = keys(objects, "checkpoint")
        spoil(objects, key, LOSSES[damage])
        with running(objects, lanes=1) as other:  # a seal is met while it is damaged
            assert other.topic("t").partition(1).append(b"taken").offset == 12
        assert topic.partition(0).append(b"on").offset == 12
        lane.checkpoints.write()
        found = LaneLog(objects, LanePaths(lane.name)).checkpoint()
        assert found is not None
        assert found.split_until > 0
        for turn in range(12):
            topic.partition(0).append(b"%d" % turn)
    assert len(read(objects, 0)) == 25
    assert read(objects, 1) == [*(b"%d" % turn for turn in range(12)), b"taken"]
