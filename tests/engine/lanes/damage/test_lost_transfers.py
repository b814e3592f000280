"""L20 for transfers: the entry by which partitions went on in another lane is damaged, or lost.

Its model is `tests/model/lost_transfers.py`. One damage of it hides nothing, because it says everything twice. If nothing is
left of it, the lane that has the partitions tells; those of which no lane tells anything are in doubt, and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.cli import main
from logstore.engine.lanes.whole_lane import lanes_of
from logstore.errors import CorruptData
from logstore.format.stored.entry import Entry, EntryKind
from logstore.layout.paths import LanePaths, is_birth_lane
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from tests.support.engine.harness import crash, open_store, pairs, running

PARTITIONS = 3
JUNK = b"nothing that we know " * 40
LOSSES: dict[str, Callable[[ObjectStore, str], object]] = {
    "junk": lambda objects, key: objects.put(key, JUNK),
    "cut": lambda objects, key: objects.put(key, objects.get(key)[:10]),
    "deleted": lambda objects, key: objects.delete(key),
}


def written(objects: ObjectStore, *values: bytes) -> logstore.Store:
    """An owner of all partitions, whose lane holds an entry for each record."""
    store = open_store(objects, lanes=1)
    topic = store.create_topic("t", PARTITIONS)
    for value in values:
        for number in range(PARTITIONS):
            topic.partition(number).append(value)
    return store


def taken(objects: ObjectStore, number: int, value: bytes) -> logstore.Store:
    """Another process has taken one of them over."""
    store = open_store(objects, lanes=1, take_over=True)
    store.topic("t").partition(number).append(value)
    return store


def transfers(objects: ObjectStore, *, is_born: bool) -> list[str]:
    """Their keys: in lanes where topics begin, or in those that somebody owns."""
    keys: list[str] = []
    for lane in lanes_of(objects):
        paths = LanePaths(lane)
        entries = [info.key for info in objects.list(paths.prefix) if paths.seq_of(info.key) is not None]
        keys += [key for key in entries if is_birth_lane(lane) is is_born and _is_transfer(objects.get(key))]
    return keys


def _is_transfer(data: bytes) -> bool:
    return Entry.parse(data).header.kind is EntryKind.TRANSFER


def seen(objects: ObjectStore, number: int) -> list[bytes | None]:
    """What a process that was not there reads; with None at the end if it is told of a damage."""
    found: list[bytes | None] = []
    with open_store(objects, writer="read_only") as store:
        try:
            found.extend(record.value for record in store.topic("t").partition(number).records())
        except CorruptData:
            found.append(None)
    return found


def appended(objects: ObjectStore) -> list[int | None]:
    """The offset of the next record of each partition, by a new owner; None if it is refused."""
    store = open_store(objects, lanes=1, take_over=True)
    found: list[int | None] = []
    for number in range(PARTITIONS):
        try:
            found.append(store.topic("t").partition(number).append(b"next").offset)
        except CorruptData:
            found.append(None)
    crash(store)
    return found


@pytest.mark.parametrize("is_born", [True, False], ids=["of a new topic", "of one that has an owner"])
def test_L20_a_flipped_byte_of_a_transfer_hides_nothing(is_born: bool) -> None:
    objects = MemoryStore()
    first = written(objects, b"a")
    second = taken(objects, 1, b"b")
    crash(first)
    crash(second)
    for key in transfers(objects, is_born=is_born):
        whole = objects.get(key)
        for place in range(0, len(whole), 29):
            spoilt = bytearray(whole)
            spoilt[place] ^= 0x10
            objects.put(key, bytes(spoilt))
            assert [seen(objects, number) for number in range(PARTITIONS)] == [[b"a"], [b"a", b"b"], [b"a"]]
        objects.put(key, bytes(spoilt))
    assert appended(objects) == [1, 2, 1]


@pytest.mark.parametrize("loss", LOSSES)
def test_L20_a_lost_transfer_is_told_by_the_lane_that_the_partition_is_in(loss: str) -> None:
    """Its former owner goes on with the others, which shows that they were not in it."""
    objects = MemoryStore()
    first = written(objects, b"a")
    second = taken(objects, 1, b"b")
    for number in (0, 2):
        first.topic("t").partition(number).append(b"c")
    crash(first)
    crash(second)
    (key,) = transfers(objects, is_born=False)
    LOSSES[loss](objects, key)
    expected = [[b"a", b"c"], [b"a", b"b"], [b"a", b"c"]]
    assert [seen(objects, number) for number in range(PARTITIONS)] == expected
    assert appended(objects) == [2, 2, 2]
    assert [seen(objects, number) for number in range(PARTITIONS)] == [[*row, b"next"] for row in expected]


def moved_by_a_lost_transfer(objects: MemoryStore) -> tuple[logstore.Store, logstore.Store, str, bytes]:
    """One partition went from the first store to the second; nothing is left of the entry that says so. It comes too."""
    first = written(objects, b"a")
    second = open_store(objects, lanes=1, take_over=True)
    second.topic("t").partition(1).open_writer(ack="buffered")
    (key,) = transfers(objects, is_born=False)
    whole = objects.get(key)
    objects.put(key, JUNK)
    return first, second, key, whole


def test_L20_a_partition_of_which_nothing_came_after_a_lost_transfer_is_in_doubt() -> None:
    """Whoever has it may not have written yet: nobody takes it, until the object is restored."""
    objects = MemoryStore()
    first, second, key, whole = moved_by_a_lost_transfer(objects)
    crash(first)
    assert [seen(objects, number) for number in range(PARTITIONS)] == [[b"a", None]] * PARTITIONS
    assert appended(objects) == [None] * PARTITIONS
    assert second.topic("t").partition(1).append(b"b").offset >= 1, "its owner goes on"
    assert seen(objects, 1) == [b"a", b"b"], "and shows it by that"
    objects.put(key, whole)
    crash(second)
    assert None not in appended(objects)
    assert [seen(objects, number)[:1] for number in range(PARTITIONS)] == [[b"a"]] * PARTITIONS


def test_N07_an_owner_that_meets_a_damaged_transfer_does_not_write_beside_the_taker() -> None:
    objects = MemoryStore()
    first, second, key, whole = moved_by_a_lost_transfer(objects)
    for number in range(PARTITIONS):
        with pytest.raises(CorruptData):
            first.topic("t").partition(number).append(b"never acked")
        with pytest.raises(CorruptData, match=key):
            first.topic("t").partition(number).reopen().append(b"nor this")
    second.topic("t").partition(1).append(b"b")
    assert [value for _, value in pairs(second.topic("t").partition(1))] == [b"a", b"b"]
    objects.put(key, whole)
    first.close()
    with running(objects, lanes=1, take_over=True) as third:
        assert third.topic("t").partition(0).append(b"c").offset == 1, "once it can be read again"
    assert second.topic("t").partition(1).append(b"d").offset > 1
    second.close()
    assert [seen(objects, number) for number in range(PARTITIONS)] == [
        [b"a", b"c"],
        [b"a", b"b", b"d"],
        [b"a"],
    ]


@pytest.mark.parametrize("loss", LOSSES)
def test_L20_what_a_lane_says_where_topics_begin_is_said_twice(loss: str) -> None:
    """Its last entry is all that leads to the partitions of a new topic. The checkpoint says the same."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", PARTITIONS)
        for number in range(PARTITIONS):
            topic.partition(number).append(b"a")
    for key in transfers(objects, is_born=True):
        LOSSES[loss](objects, key)
    assert [seen(objects, number) for number in range(PARTITIONS)] == [[b"a"]] * PARTITIONS
    assert appended(objects) == [1] * PARTITIONS


def test_L20_a_new_topic_is_found_without_the_checkpoint_and_without_its_transfers() -> None:
    """Two damages: the records are there, and nobody takes the partitions for new ones that have records."""
    objects = MemoryStore()
    store = written(objects, b"a")
    crash(store)
    for key in transfers(objects, is_born=True):
        objects.put(key, JUNK)
    for lane in filter(is_birth_lane, lanes_of(objects)):
        objects.delete(LanePaths(lane).checkpoint)
    assert [seen(objects, number) for number in range(PARTITIONS)] == [[b"a"]] * PARTITIONS
    assert appended(objects) == [1] * PARTITIONS


def test_L20_verify_says_nothing_of_transfers_and_names_one_that_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = LocalStore(tmp_path / "store")
    first = written(objects, b"a")
    second = taken(objects, 1, b"b")
    first.topic("t").partition(0).append(b"c")
    first.topic("t").partition(2).append(b"c")
    crash(first)
    crash(second)
    assert main(["verify", "--store", str(tmp_path / "store")]) == 0
    (key,) = transfers(objects, is_born=False)
    objects.put(key, JUNK)
    capsys.readouterr()
    assert main(["verify", "--store", str(tmp_path / "store")]) == 1
    assert key in capsys.readouterr().out
