"""The two kinds of objects of a group, as values: what they say, and what follows from it. No I/O and no clock.

The document says who is a member, who owns which partition since which generation, and the position at that moment. A
member's slot says what it has saved since: each position with the generation since which the member owns the partition. It
counts as long as the document says the same. `tests/model/groups.py` has the rules and what breaks without each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from logstore.format.stored.document import pack_document
from logstore.layout.documents import read_document

FORMAT_VERSION = 1
_NOBODY = -1

Place = tuple[str, int]
"""A topic's name and a partition's number."""


class Saved(NamedTuple):
    """A position in a slot. `since`: the generation since which its member owns the partition."""

    since: int
    offset: int


class Owner(NamedTuple):
    """Who owns a partition, and since which generation."""

    slot: int
    since: int


class Member(NamedTuple):
    """`life` is new each time that somebody joins; `name` is what the user calls it. `topics` are those it reads."""

    life: str
    name: str
    topics: tuple[str, ...]
    session_timeout: float


class Partition(NamedTuple):
    """What the document says of one partition. `position` None: nothing was ever saved."""

    owner: Owner | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """`count` grows with each write, so no two versions are the same. `life` None: it is free. `mark` is that of the last
    save, and stays when another takes the slot: so its former member sees whether that save came."""

    count: int
    life: str | None
    saved: Mapping[Place, Saved] = field(default_factory=dict)
    mark: str = ""

    def pack(self) -> bytes:
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), saved in self.saved.items():
            topics.setdefault(topic, {})[str(partition)] = list(saved)
        return pack_document(
            {
                "format": FORMAT_VERSION,
                "count": self.count,
                "life": self.life,
                "saved": topics,
                "mark": self.mark,
            }
        )

    @classmethod
    def parse(cls, key: str, data: bytes) -> Slot:
        def build(content: dict[str, Any]) -> Slot:
            saved = {
                (topic, int(partition)): Saved(*map(int, each))
                for topic, partitions in content["saved"].items()
                for partition, each in partitions.items()
            }
            return cls(int(content["count"]), content["life"], saved, content["mark"])

        return read_document(key, data, "a member's slot", (FORMAT_VERSION,), build)

    def taken(self, life: str | None) -> Slot:
        """By another, or by nobody. What it holds stays in it until it is folded into the document."""
        return Slot(self.count + 1, life, self.saved, self.mark)

    def saving(self, life: str, saved: Mapping[Place, Saved]) -> Slot:
        """The next version, by its own member."""
        return Slot(self.count + 1, life, saved, f"{life}-{self.count + 1}")


@dataclass(frozen=True, slots=True)
class Document:
    """A group at one generation. `topics` are those that somebody reads or has read: incarnation and partitions.
    `by` makes each version unlike any other's of the same generation."""

    generation: int = 0
    by: str = ""
    members: Mapping[int, Member] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, tuple[Partition, ...]] = field(default_factory=dict)
    deleted: bool = False

    def pack(self) -> bytes:
        topics = {
            name: {
                "incarnation": self.incarnations[name],
                "owners": [_NOBODY if each.owner is None else each.owner.slot for each in partitions],
                "since": [0 if each.owner is None else each.owner.since for each in partitions],
                "positions": [each.position for each in partitions],
            }
            for name, partitions in self.topics.items()
        }
        members = {str(slot): member._asdict() for slot, member in self.members.items()}
        return pack_document(
            {
                "format": FORMAT_VERSION,
                "generation": self.generation,
                "by": self.by,
                "members": members,
                "topics": topics,
                "deleted": self.deleted,
            }
        )

    @classmethod
    def parse(cls, key: str, data: bytes) -> Document:
        def build(content: dict[str, Any]) -> Document:
            members = {
                int(slot): Member(each["life"], each["name"], tuple(each["topics"]), each["session_timeout"])
                for slot, each in content["members"].items()
            }
            topics = {
                name: tuple(
                    Partition(None if slot == _NOBODY else Owner(slot, since), position)
                    for slot, since, position in zip(
                        each["owners"], each["since"], each["positions"], strict=True
                    )
                )
                for name, each in content["topics"].items()
            }
            incarnations = {name: each["incarnation"] for name, each in content["topics"].items()}
            return cls(
                content["generation"], content["by"], members, incarnations, topics, content["deleted"]
            )

        return read_document(key, data, "a group's document", (FORMAT_VERSION,), build)

    # Looking

    def places(self) -> Iterator[tuple[Place, Partition]]:
        for name in sorted(self.topics):
            for number, partition in enumerate(self.topics[name]):
                yield (name, number), partition

    def owned_by(self, slot: int) -> dict[Place, Owner]:
        return {
            place: partition.owner
            for place, partition in self.places()
            if partition.owner is not None and partition.owner.slot == slot
        }

    def position(self, place: Place, slot: Slot | None) -> int | None:
        """What counts, if `slot` is what its owner's slot holds."""
        partition = self.topics[place[0]][place[1]]
        saved = None if slot is None else slot.saved.get(place)
        if saved is not None and partition.owner is not None and saved.since == partition.owner.since:
            return saved.offset
        return partition.position

    def to_give(self, slot: int) -> dict[Place, int]:
        """What it owns and another should: with the slot of that one."""
        goals = self.wanted()
        return {place: goals[place] for place in self.owned_by(slot) if goals.get(place, slot) != slot}

    def wanted(self) -> dict[Place, int]:
        """Who should own what: as evenly as subscriptions allow, and nothing moves that need not. Everybody computes the
        same. What no member reads is not in it."""
        shares: dict[int, list[Place]] = {slot: [] for slot in sorted(self.members)}
        homeless = []
        for place, partition in self.places():
            owner = partition.owner
            if owner is not None and owner.slot in shares and place[0] in self.members[owner.slot].topics:
                shares[owner.slot].append(place)
            else:
                homeless.append(place)
        for place in homeless:
            readers = [slot for slot in shares if place[0] in self.members[slot].topics]
            if readers:
                shares[min(readers, key=lambda slot: (len(shares[slot]), slot))].append(place)
        while (move := self._uneven(shares)) is not None:
            index, giver, taker = move
            shares[taker].append(shares[giver].pop(index))
        return {place: slot for slot, places in shares.items() for place in places}

    def _uneven(self, shares: Mapping[int, list[Place]]) -> tuple[int, int, int] | None:
        """One partition, by its number among the giver's, that should move: so that two members come closer to each
        other."""
        by_load = sorted(shares, key=lambda slot: (len(shares[slot]), slot))
        for giver in reversed(by_load):
            for taker in by_load:
                if len(shares[giver]) - len(shares[taker]) < 2:
                    break
                for index in reversed(range(len(shares[giver]))):
                    if shares[giver][index][0] in self.members[taker].topics:
                        return index, giver, taker
        return None

    # The next version. Each is swapped in as a whole, or not at all

    def next(self, by: str) -> Document:
        return replace(self, generation=self.generation + 1, by=by)

    def folded(self, slot: int, held: Slot | None) -> Document:
        """Without the member of that slot: what it had saved, which must be final, is now said here, and nobody owns it."""
        topics = dict(self.topics)
        for name, number in self.owned_by(slot):
            partitions = list(topics[name])
            partitions[number] = Partition(None, self.position((name, number), held))
            topics[name] = tuple(partitions)
        members = {each: member for each, member in self.members.items() if each != slot}
        return replace(self, members=members, topics=topics)

    def joined(self, slot: int, member: Member) -> Document:
        return replace(self, members={**self.members, slot: member}, deleted=False)

    def covering(self, found: Mapping[str, tuple[str, int]]) -> Document:
        """With these topics as they are now: incarnation and number of partitions. One that was recreated begins again;
        partitions that were added belong to nobody yet."""
        incarnations, topics = dict(self.incarnations), dict(self.topics)
        for name, (incarnation, count) in found.items():
            known = topics.get(name, ()) if incarnations.get(name) == incarnation else ()
            incarnations[name] = incarnation
            topics[name] = (*known, *[Partition()] * (count - len(known)))
        return replace(self, incarnations=incarnations, topics=topics)

    def shared_out(self) -> Document:
        """What nobody owns goes to whom it should belong to, from this generation on."""
        goals = self.wanted()
        topics = {
            name: tuple(
                Partition(Owner(goals[name, number], self.generation), each.position)
                if each.owner is None and (name, number) in goals
                else each
                for number, each in enumerate(partitions)
            )
            for name, partitions in self.topics.items()
        }
        return replace(self, topics=topics)

    def given(self, moves: Mapping[Place, int], held: Slot) -> Document:
        """These partitions, which the member with that slot owns, are others' from this generation on, with the position
        that it has saved last."""
        topics = {name: list(partitions) for name, partitions in self.topics.items()}
        for place, taker in moves.items():
            topics[place[0]][place[1]] = Partition(Owner(taker, self.generation), self.position(place, held))
        return replace(self, topics={name: tuple(partitions) for name, partitions in topics.items()})


class Plan(NamedTuple):
    """What a document means for one member. `to_give`: what it owns and another should. `is_hungry`: others have to give
    something up for it."""

    document: Document
    life: str
    owned: Mapping[Place, Owner] = MappingProxyType({})
    to_give: frozenset[Place] = frozenset()
    is_hungry: bool = False

    @classmethod
    def of(cls, document: Document, life: str, slot: int) -> Plan:
        owned, goals = document.owned_by(slot), document.wanted()
        to_give = frozenset(place for place in owned if goals.get(place, slot) != slot)
        is_hungry = any(goal == slot and place not in owned for place, goal in goals.items())
        return cls(document, life, owned, to_give, is_hungry)
