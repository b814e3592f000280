"""L20: an entry of a lane is flipped, cut, emptied or deleted. Only those partitions meet it whose bytes were hit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.many_chains import load_all
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.whole_lane import whole_state
from logstore.errors import CorruptData
from logstore.format.stored.entry import (
    Entry,
    check_whole,
    tail_needed,
)
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
from tests.support.engine.harness import crash, open_store, running
from tests.support.lanes.damage import (
    LOSSES,
    VALUES,
    flipped,
    garbage,
    is_damage,
    keys,
    killed,
    offsets_of_next,
    read,
    readable,
    spoil,
)

# An entry


def _places(data: bytes) -> Iterator[int]:
    """Some of each structure: header, second directory, part, directory, footer."""
    yield from range(0, len(data), 13)


@pytest.mark.parametrize("place", [2, 5])
def test_L20_a_flipped_byte_of_an_entry_is_met_by_those_alone_whose_part_it_is_in(place: int) -> None:
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[place]
    sound = objects.get(key)
    (part,) = Entry.parse(sound).parts
    whose = int(part.claim.prefix.split("/")[-2])
    refused = 0
    for position in _places(sound):
        objects.put(key, flipped(position)(sound))
        for number, values in VALUES.items():
            found = read(objects, number)
            if found != values:
                assert number == whose, (position, found)
                assert part.position <= position < part.position + part.size, position
                assert found[:-1] == values[:-1], position
                assert is_damage(found[-1], key), (position, found)
                refused += 1
    assert refused, "no flip was met by anybody"


@pytest.mark.parametrize("where", ["header", "copy", "part", "directory", "footer"])
def test_L20_a_new_owner_goes_on_behind_a_damaged_last_entry(where: str) -> None:
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[-1]
    sound = objects.get(key)
    (part,) = Entry.parse(sound).parts
    tail = len(sound) - tail_needed(sound)
    at = {
        "header": 20,
        "copy": part.position - 9,
        "part": part.position + 140,
        "directory": tail + 9,
        "footer": -9,
    }
    spoil(objects, key, flipped(at[where]))
    assert offsets_of_next(objects) == [3, 2, 1]
    for number in (1, 2):
        assert read(objects, number) == [*VALUES[number], b"next"]
    found = read(objects, 0)
    if where == "part":
        assert found[:2] == [b"a0", b"b0"]
        assert is_damage(found[2], key)
    else:
        assert found == [*VALUES[0], b"next"]


@pytest.mark.parametrize("place", [2, 5])
def test_L20_an_entry_that_was_cut_off_is_met_by_those_alone_whose_part_is_missing(place: int) -> None:
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[place]
    sound = objects.get(key)
    (part,) = Entry.parse(sound).parts
    whose = int(part.claim.prefix.split("/")[-2])
    for size in range(part.position, len(sound), 17):
        objects.put(key, sound[:size])
        for number, values in VALUES.items():
            found = read(objects, number)
            if number != whose or size >= part.position + part.size:
                assert found == values, size
            elif found != values:  # an index can be rebuilt
                assert is_damage(found[-1], key), size
    assert offsets_of_next(objects) == [3, 2, 1]


@pytest.mark.parametrize("loss", LOSSES)
def test_L20_an_entry_that_is_lost_is_known_by_the_ones_behind_it(loss: str) -> None:
    """Partition 1 has no record there, and one behind it: nothing of it is in doubt. Partition 2 has none behind it."""
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[3]
    spoil(objects, key, LOSSES[loss])
    found = readable(objects)
    assert found[0][0] == b"a0"
    assert is_damage(found[0][1], key)
    assert found[1] == VALUES[1]
    assert found[2][0] == b"a2"
    assert is_damage(found[2][1], key), "it may have lost its end"
    with open_store(objects, writer="read_only") as store:
        assert next(iter(store.topic("t").partition(0).read(2).records())).value == b"c0", (
            "what is behind it is readable"
        )
        assert store.topic("t").partition(0).durable_high_watermark == 3
    first, second, third = offsets_of_next(objects)
    assert (first, second) == (3, 2)
    assert is_damage(third, key), "where it ended is not known"
    assert readable(objects)[1] == [*VALUES[1], b"next"]


@pytest.mark.parametrize("loss", ["garbage", "cut"])
def test_L20_a_last_entry_of_which_nothing_is_left_stops_appends_and_not_what_is_before_it(loss: str) -> None:
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[-1]
    spoil(objects, key, LOSSES[loss])
    for number, values in readable(objects).items():
        assert values[:-1] == VALUES[number][:2], number
        assert is_damage(values[-1], key), number
    assert all(is_damage(found, key) for found in offsets_of_next(objects))
    objects.delete(key)  # the operator's decision: it is lost
    assert offsets_of_next(objects) == [2, 2, 1]


@pytest.mark.parametrize("loss", ["emptied", "deleted"])
def test_L20_a_last_entry_that_is_gone_is_one_that_never_came_as_in_a_chain_of_its_own(loss: str) -> None:
    for lanes in (1, 0):
        objects = MemoryStore()
        store = open_store(objects, lanes=lanes)
        log = store.create_topic("t").partition(0)
        log.append(b"a")
        log.append(b"b")
        crash(store)
        last = [info.key for info in objects.list("") if info.key.endswith(".seg") and "topics/" in info.key]
        spoil(objects, (keys(objects) or last)[-1], LOSSES[loss])
        assert read(objects, 0) == [b"a"]
        with running(objects, lanes=lanes) as again:
            assert again.topic("t").partition(0).append(b"c").offset == 1
        assert read(objects, 0) == [b"a", b"c"]


def test_L20_partitions_that_are_planned_together_are_damaged_alone() -> None:
    objects = MemoryStore()
    killed(objects)
    key = keys(objects)[3]
    spoil(objects, key, garbage)
    with open_store(objects, writer="read_only") as store:
        paths = [store.topic("t").partition(number)._internal.paths for number in VALUES]
        lanes = store._runtime.lanes
        views = load_all([Chain(store._runtime.store, one, lanes=lanes) for one in paths], lanes)
    assert [view.tail.end_offset for view in views] == [3, 2, 2]
    assert [view.segments.is_complete for view in views] == [False, True, False]
    with open_store(objects, writer="read_only") as store:
        with pytest.raises(CorruptData, match=key):
            store.topic("t").to_arrow()
    with open_store(objects, writer="read_only") as store:
        rows = store.topic("t").to_arrow(columns=["value"], start={0: 2, 1: 0, 2: 0}, stop={0: 3, 1: 2, 2: 1})
        assert sorted(rows.column("value").to_pylist()) == [b"a1", b"a2", b"b1", b"c0"]


@pytest.mark.parametrize("named", [False, True])
def test_L20_a_next_life_takes_what_is_in_no_doubt_along(named: bool) -> None:
    objects = MemoryStore()
    settings: dict[str, Any] = {"lane": "x"} if named else {"lanes": 1}
    killed(objects, **settings)
    key = keys(objects)[4 if named else 3]  # behind the adoption
    spoil(objects, key, garbage)
    for turn in range(2):
        first, second, third = offsets_of_next(objects, **settings)
        assert (first, second) == (3 + turn, 2 + turn)
        assert is_damage(third, key)
        if named:
            with running(objects, **settings) as store:
                store.topic("t").partition(0).append(b"x")
            assert keys(objects, "checkpoint")
            assert is_damage(offsets_of_next(objects, **settings)[2], key), "and behind a checkpoint, too"
            break


def test_L20_a_lost_answer_about_an_entry_whose_header_is_damaged_is_settled_by_its_end() -> None:
    objects = MemoryStore()

    class Flipping(FaultyStore):
        """Damages what is put, and then says nothing."""

        def put(self, key: str, data: Any, **conditions: Any) -> Any:
            if key.endswith("1.seg") and key.startswith("lanes/"):
                data = flipped(20)(bytes(data))
            return super().put(key, data, **conditions)

    flipping = Flipping(objects)
    with running(flipping, lanes=1, probe_interval=0.001) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"a")
        flipping.fail("put", prefix="lanes/", times=1, with_=Fault.LOSE_ANSWER)
        assert log.append(b"b").offset == 1
    assert read(objects, 0) == [b"a", b"b"]


def test_L20_the_two_directories_of_an_entry_say_the_same() -> None:
    objects = MemoryStore()
    killed(objects)
    for key in keys(objects):
        data = objects.get(key)
        assert check_whole(data) == Entry.parse(data)
        assert Entry.parse_front(data).parts == Entry.parse(data).parts
    (lane,) = {key.split("/")[1] for key in keys(objects)}
    assert whole_state(LaneLog(objects, LanePaths(lane))).next_seq == 6
