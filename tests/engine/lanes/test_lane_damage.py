"""L20 on lanes: whatever object of a lane is damaged, only what was in the damaged bytes is out of reach, and that is said.

Each kind of object of a lane (entry, seal, adoption, fence, checkpoint, the claim in a partition's chain) is flipped, cut,
emptied and deleted in turn. Then the partitions are read, planned and written by processes that were not there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.cli import main
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.many_chains import load_all
from logstore.engine.lanes.lane_log import LaneLog, LostEntry
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.lanes.whole_lane import lanes_of, whole_state
from logstore.errors import CorruptData
from logstore.format.stored.entry import (
    ClaimKey,
    Entry,
    EntryHeader,
    EntryKind,
    Part,
    check_whole,
    tail_needed,
)
from logstore.layout.paths import LanePaths
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore
from tests.support.engine.harness import crash, open_store, running

Damage = Callable[[bytes], bytes | None]

VALUES = {0: [b"a0", b"b0", b"c0"], 1: [b"a1", b"b1"], 2: [b"a2"]}


def killed(objects: ObjectStore, **settings: Any) -> None:
    """Six entries: of partitions 0, 1, 2, and then 0, 1, 0. Nobody has closed anything."""
    store = open_store(objects, **(settings or {"lanes": 1}))
    topic = store.create_topic("t", 3)
    for turn in range(3):
        for number, values in VALUES.items():
            if turn < len(values):
                topic.partition(number).append(values[turn])
    crash(store)


def keys(objects: ObjectStore, suffix: str = ".seg") -> list[str]:
    return [info.key for info in objects.list("lanes/") if info.key.endswith(suffix)]


def spoil(objects: ObjectStore, key: str, damage: Damage) -> None:
    data = damage(objects.get(key))
    if data is None:
        objects.delete(key)
    else:
        objects.put(key, data)


def flipped(position: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        made = bytearray(data)
        made[position] ^= 0x10
        return bytes(made)

    return flip


def garbage(data: bytes) -> bytes:
    return b"nothing that we know " * (len(data) // 20 + 1)


def emptied(data: bytes) -> bytes:
    return b""


def deleted(data: bytes) -> None:
    return None


def cut(size: int) -> Damage:
    return lambda data: data[:size]


LOSSES: dict[str, Damage] = {"garbage": garbage, "cut": cut(10), "emptied": emptied, "deleted": deleted}


def read(objects: ObjectStore, number: int) -> list[bytes | CorruptData]:
    """What a process that was not there reads, and what it is told at the end."""
    found: list[bytes | CorruptData] = []
    with open_store(objects, writer="read_only") as store:
        try:
            found.extend(record.value or b"" for record in store.topic("t").partition(number).records())
        except CorruptData as damage:
            found.append(damage)
    return found


def readable(objects: ObjectStore) -> dict[int, list[bytes | CorruptData]]:
    return {number: read(objects, number) for number in VALUES}


def offsets_of_next(objects: ObjectStore, **settings: Any) -> list[int | CorruptData]:
    """Of an append to each by a new owner."""
    store = open_store(objects, **(settings or {"lanes": 1}))
    found: list[int | CorruptData] = []
    for number in VALUES:
        try:
            found.append(store.topic("t").partition(number).append(b"next").offset)
        except CorruptData as damage:
            found.append(damage)
    crash(store)
    return found


def is_damage(found: object, key: str) -> bool:
    return isinstance(found, CorruptData) and found.key.split("@")[0] == key


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


# Seals, adoptions, fences


@pytest.mark.parametrize("kind", ["seal", "adoption", "fence"])
def test_L20_a_damaged_seal_adoption_or_fence_means_what_it_meant(kind: str) -> None:
    objects = MemoryStore()
    killed(objects, **({"lane": "x"} if kind == "adoption" else {"lanes": 1}))
    if kind == "fence":
        with running(objects, lanes=1) as store:
            for number in VALUES:
                store.topic("t").partition(number).append(b"next")
    elif kind == "seal":
        assert offsets_of_next(objects) == [3, 2, 1]
    else:
        assert offsets_of_next(objects, lane="x") == [3, 2, 1]
    names = {"seal": EntryKind.SEAL, "adoption": EntryKind.ADOPTION, "fence": EntryKind.FENCE}
    chosen = [key for key in keys(objects) if Entry.parse(objects.get(key)).header.kind is names[kind]]
    key = chosen[-1]
    sound = objects.get(key)
    expected = {number: [*values, b"next"] for number, values in VALUES.items()}
    for position in range(0, len(sound), 11):
        objects.put(key, flipped(position)(sound))
        assert readable(objects) == expected, position
    for size in range(len(sound) - tail_needed(sound), len(sound), 19):
        objects.put(key, sound[:size])
        assert readable(objects) == expected, size
    with running(objects, **({"lane": "x"} if kind == "adoption" else {"lanes": 1})) as store:
        for number, values in expected.items():
            assert store.topic("t").partition(number).append(b"on").offset == len(values)
    assert readable(objects) == {number: [*values, b"on"] for number, values in expected.items()}


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
        assert LaneLog(objects, LanePaths(lane)).checkpoint() is not None, "it was written anew"


def _is_split(objects: ObjectStore, key: str) -> bool:
    found = LaneLog(objects, LanePaths(key.split("/")[1])).checkpoint()
    return found is not None and found.split_until > 0


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["garbage", "deleted"])
def test_L20_an_owner_writes_a_damaged_checkpoint_anew(damage: str) -> None:
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


# The claim in a partition's own chain


def claims(objects: ObjectStore, number: int) -> list[str]:
    return [
        info.key
        for info in objects.list("topics/")
        if info.key.endswith(".seg") and f"/{number}/" in info.key
    ]


def test_L20_a_damaged_claim_is_known_by_its_lane() -> None:
    objects = MemoryStore()
    killed(objects)
    (key,) = claims(objects, 0)
    sound = objects.get(key)
    for position in range(0, len(sound), 11):
        objects.put(key, flipped(position)(sound))
        assert read(objects, 0) == VALUES[0], position
    for size in range(0, len(sound), 23):
        objects.put(key, sound[:size])
        assert read(objects, 0) == VALUES[0], size
    assert offsets_of_next(objects) == [3, 2, 1]
    assert readable(objects) == {number: [*values, b"next"] for number, values in VALUES.items()}


def test_L20_a_cut_fence_that_was_no_claim_is_damage_and_no_end() -> None:
    """It says that there is more to say, and what that is cannot be read: nobody may go on behind it."""
    objects = MemoryStore()
    killed(objects)
    (key,) = claims(objects, 0)
    spoil(objects, key, lambda data: data[: len(data) // 2])
    for lane in keys(objects):
        objects.delete(lane)
    found = read(objects, 0)
    assert is_damage(found[0], key)
    assert is_damage(offsets_of_next(objects)[0], key)


# An object of no bytes


@pytest.mark.parametrize("who", ["owner", "taker"])
def test_L28_a_place_with_an_object_of_no_bytes_is_used_all_the_same(who: str) -> None:
    """A server was killed in the middle of a put. Nobody was told anything, and nobody could go past it."""
    objects = MemoryStore()
    store = open_store(objects, lanes=1, probe_interval=0.001)
    topic = store.create_topic("t", 3)
    topic.partition(0).append(b"a")
    objects.put(keys(objects)[0].replace("0.seg", "1.seg"), b"")
    if who == "owner":
        assert topic.partition(0).append(b"b").offset == 1
        crash(store)
    else:
        crash(store)
        with running(objects, lanes=1) as again:
            assert again.topic("t").partition(0).append(b"b").offset == 1
    assert read(objects, 0) == [b"a", b"b"]


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


# verify


def test_L20_verify_names_what_is_damaged_in_lanes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = LocalStore(str(tmp_path))
    killed(objects, lane="x")
    with running(objects, lane="x") as store:
        store.topic("t").partition(2).append(b"b2")
    assert main(["verify", "--store", str(tmp_path)]) == 0
    capsys.readouterr()
    entry, lost, (checkpoint,) = keys(objects)[1], keys(objects)[3], keys(objects, "checkpoint")
    (claim,) = claims(objects, 1)
    spoil(objects, entry, flipped(20))
    spoil(objects, lost, garbage)
    objects.delete(claim)
    spoil(objects, checkpoint, flipped(-20))
    assert main(["verify", "--store", str(tmp_path)]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DAMAGED")]
    for key in (entry, lost, claim, checkpoint):
        assert any(f"DAMAGED {key}" in line for line in said), key


# What counts behind a place that is lost


class _Owner:
    """A lane as its owner and takers make it, with several uploads in flight: entries by place, and which of them count."""

    def __init__(self, rng: random.Random, claims: int) -> None:
        self._rng = rng
        self.entries: list[Entry] = []
        self.counts: list[bool] = []
        self.edge = bytes(16)
        self.open = {ClaimKey(f"topics/t/i/{number}/", 1): 1 for number in range(claims)}

    def data(self, seq: int, prev: bytes, keys: list[ClaimKey], at: dict[ClaimKey, int], known: int) -> Entry:
        parts = tuple(Part(key, at[key], 0, at[key], at[key] + 1, at[key] + 1, 0, 1, 1, 0, 0) for key in keys)
        return Entry(EntryHeader(EntryKind.DATA, seq, self._rng.randbytes(16), prev, 0, known), parts)

    def _add(self, entry: Entry, counts: bool) -> None:
        self.entries.append(entry)
        self.counts.append(counts)
        if counts:
            self.edge = entry.header.id
            for part in entry.parts:
                self.open[part.claim] = part.seq + 1
            for key in entry.seals:
                self.open.pop(key, None)

    def burst(self) -> None:
        """Some uploads at once; perhaps a taker's seal comes between, and those behind it are void."""
        depth, known = self._rng.randint(1, 3), len(self.entries)
        flight, prev, at = [], self.edge, dict(self.open)
        for place in range(depth):
            chosen = [key for key in at if self._rng.random() < 0.6]
            entry = self.data(known + place, prev, chosen, at, known)
            for key in chosen:
                at[key] += 1
            prev = entry.header.id
            flight.append(entry)
        seal_at = self._rng.randrange(depth) if self.open and self._rng.random() < 0.4 else None
        for place, entry in enumerate(flight):
            if place == seal_at:
                header = EntryHeader(
                    EntryKind.SEAL,
                    len(self.entries),
                    self._rng.randbytes(16),
                    self.edge,
                    0,
                    len(self.entries),
                )
                self._add(Entry(header, (), (self._rng.choice(list(self.open)),)), True)
            elif seal_at is None or place < seal_at:
                self._add(entry, True)
            elif self._rng.random() < 0.7:
                self._add(entry, False)
            else:
                return


@pytest.mark.parametrize("seed", range(150))
def test_L20_behind_a_lost_place_nothing_counts_that_did_not_and_what_may_be_lost_is_in_doubt(
    seed: int,
) -> None:
    rng = random.Random(seed)
    lane = _Owner(rng, 3)
    everyone = list(lane.open)
    for _ in range(rng.randint(2, 7)):
        lane.burst()
    truth = LaneState()
    for entry, counts in zip(lane.entries, lane.counts, strict=True):
        assert truth.take(entry) == counts
    lost = rng.randrange(len(lane.entries))
    state = LaneState()
    for place, entry in enumerate(lane.entries):
        state.take(LostEntry(place, CorruptData("it", None)) if place == lost else entry)
    assert state.next_seq == truth.next_seq
    for key in everyone:
        known, real = state.claims.get(key), truth.claims.get(key)
        expected = {one.part.seq: one.entry for one in real.parts} if real is not None else {}
        found = {one.part.seq: one.entry for one in known.parts} if known is not None else {}
        assert found.items() <= expected.items(), "what did not count counts"
        # Of a claim that was left, the place of its successor in the partition's own chain tells how many parts it had.
        is_doubted = (
            state.first_lost(0) is not None if known is None else known.is_left or known.lost_at is not None
        )
        for seq in expected.keys() - found.keys():
            assert is_doubted or seq < max(found, default=0), (
                "it is missing, no later part tells, and nobody is told"
            )


def test_L20_the_two_directories_of_an_entry_say_the_same() -> None:
    objects = MemoryStore()
    killed(objects)
    for key in keys(objects):
        data = objects.get(key)
        assert check_whole(data) == Entry.parse(data)
        assert Entry.parse_front(data).parts == Entry.parse(data).parts
    (lane,) = lanes_of(objects)
    assert whole_state(LaneLog(objects, LanePaths(lane))).next_seq == 6
