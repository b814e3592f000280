"""L20: damaged seals, adoptions, fences and claims mean what they meant; `verify` names them.

Of topics that begin in chains of their own, so that there are claims and seals. Of others there are transfers:
`test_lost_transfers.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.cli import main
from logstore.format.stored.entry import (
    Entry,
    EntryKind,
    tail_needed,
)
from logstore.objects import LocalStore, MemoryStore
from tests.support.engine.harness import crash, open_store, running
from tests.support.lanes.damage import (
    VALUES,
    claims,
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

pytestmark = pytest.mark.usefixtures("begin_in_own_chains")

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
