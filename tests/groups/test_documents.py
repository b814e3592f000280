"""A group's objects as values: who should own what, and what survives being written down."""

from __future__ import annotations

import pytest

from logstore.errors import CorruptData, UnsupportedStore
from logstore.format.stored.document import pack_document
from logstore.groups.documents import Document, Member, Owner, Partition, Place, Saved, Slot


def member(*topics: str) -> Member:
    return Member("life", "name", topics, 30.0)


def document(partitions: dict[str, int], members: dict[int, Member]) -> Document:
    found = {name: ("0" * 16, count) for name, count in partitions.items()}
    made = Document(members=members).covering(found)
    return made.next("x").shared_out()


def counts(doc: Document) -> dict[int, int]:
    return {slot: len(doc.owned_by(slot)) for slot in doc.members}


def settled(doc: Document) -> Document:
    """After everybody has given up what should be another's."""
    for _ in range(10):
        for slot in doc.members:
            moves = doc.to_give(slot)
            if moves:
                doc = doc.next("x").given(moves, Slot(1, "life"))
    return doc


def test_P02_partitions_are_shared_out_evenly() -> None:
    assert counts(document({"t": 10}, {slot: member("t") for slot in range(3)})) == {0: 4, 1: 3, 2: 3}


def test_P02_many_small_topics_are_shared_out_evenly_too() -> None:
    topics = {f"t{number}": 1 for number in range(9)}
    assert counts(document(topics, {slot: member(*topics) for slot in range(3)})) == {0: 3, 1: 3, 2: 3}


def test_P02_who_reads_another_topic_gets_nothing_of_this_one() -> None:
    doc = document({"a": 4, "b": 4}, {0: member("a"), 1: member("a", "b"), 2: member("b")})
    assert {topic for topic, _ in doc.owned_by(0)} == {"a"}
    assert {topic for topic, _ in doc.owned_by(2)} == {"b"}
    assert sorted(counts(doc).values()) == [2, 3, 3]


def test_P02_a_newcomer_gets_its_share_and_nothing_else_moves() -> None:
    before = document({"t": 12}, {slot: member("t") for slot in range(3)})
    after = settled(before.joined(3, member("t")))
    assert counts(after) == {0: 3, 1: 3, 2: 3, 3: 3}
    for slot in range(3):
        assert after.owned_by(slot).keys() < before.owned_by(slot).keys()
    assert settled(after) == after, "once it is even, nothing moves"


def test_a_partition_that_moves_takes_the_saved_position_along() -> None:
    doc = document({"t": 2}, {0: member("t")}).joined(1, member("t"))
    ((place, taker),) = doc.to_give(0).items()
    since = doc.owned_by(0)[place].since
    moved = doc.next("x").given({place: taker}, Slot(2, "life", {place: Saved(since, 17)}))
    assert moved.topics["t"][place[1]] == Partition(Owner(1, moved.generation), 17)


def test_a_position_of_an_earlier_ownership_does_not_count() -> None:
    doc = document({"t": 1}, {0: member("t")})
    place: Place = ("t", 0)
    since = doc.owned_by(0)[place].since
    assert doc.position(place, Slot(1, "life", {place: Saved(since, 5)})) == 5
    assert doc.position(place, Slot(1, "life", {place: Saved(since - 1, 5)})) is None


def test_a_topic_that_was_recreated_begins_again() -> None:
    doc = document({"t": 2}, {0: member("t")})
    folded = doc.folded(0, Slot(1, "life", {("t", 0): Saved(doc.generation, 9)}))
    assert folded.topics["t"][0].position == 9
    same = folded.covering({"t": ("0" * 16, 3)})
    assert [each.position for each in same.topics["t"]] == [9, None, None]
    again = folded.covering({"t": ("1" * 16, 1)})
    assert again.topics["t"] == (Partition(),)


def test_twenty_thousand_partitions_are_shared_out() -> None:
    doc = document({"t": 20_000}, {0: member("t")})
    assert counts(settled(doc.joined(1, member("t")))) == {0: 10_000, 1: 10_000}


def test_both_objects_are_read_back() -> None:
    doc = document({"a": 3, "b": 1}, {0: member("a", "b"), 7: member("a")})
    assert Document.parse("k", doc.pack()) == doc
    slot = Slot(9, None, {("a", 2): Saved(4, 17), ("b", 0): Saved(5, 0)})
    assert Slot.parse("k", slot.pack()) == slot


WRITTEN_DOCUMENT = b"""{"by": "aa", "crc32c": "bc019624", "deleted": false, "format": 1, "generation": 3,
"members": {"0": {"life": "aa", "name": "w1", "session_timeout": 30.0, "topics": ["t"]}}, "topics": {"t": {"incarnation":
"0123456789abcdef", "owners": [0, -1], "positions": [17, null], "since": [2, 0]}}}"""
WRITTEN_SLOT = b"""{"count": 9, "crc32c": "3b1db464", "format": 1, "life": null, "mark": "aa-8",
"saved": {"t": {"0": [2, 40]}}}"""


def test_what_this_release_has_written_every_later_one_reads() -> None:
    """Not to be changed: it stands for what is in somebody's bucket."""
    assert Document.parse("k", WRITTEN_DOCUMENT) == Document(
        3,
        "aa",
        {0: Member("aa", "w1", ("t",), 30.0)},
        {"t": "0123456789abcdef"},
        {"t": (Partition(Owner(0, 2), 17), Partition())},
    )
    assert Slot.parse("k", WRITTEN_SLOT) == Slot(9, None, {("t", 0): Saved(2, 40)}, "aa-8")


@pytest.mark.parametrize("parse", [Document.parse, Slot.parse])
def test_damage_and_the_future_are_told_apart(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(CorruptData, match="groups/g/group"):
        parse("groups/g/group", b"{}")
    with pytest.raises(CorruptData, match="cannot be read"):
        parse("k", pack_document({"format": 1}))
    with pytest.raises(UnsupportedStore, match="format 2"):
        parse("k", pack_document({"format": 2}))
