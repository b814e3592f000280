"""Who reads what in a group of the consumer protocol: Kafka's two assignors on the broker's side, as pure functions.

* `range`: of each topic, neighbouring partitions for each member, members in order: equal numbers go together.
* `uniform`: as many partitions for each as for the others, and as few moves as that allows.

Every partition of a subscribed topic goes to exactly one member that subscribes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

Partition = tuple[UUID, int]
"""A topic's id and a number."""


class TopicInfo(NamedTuple):
    topic_id: UUID
    partitions: int


Topics = Mapping[str, TopicInfo]
"""By name."""
Wanted = Mapping[str, frozenset[str]]
"""The topics that each member subscribes to, by its id."""
Shares = dict[str, frozenset[Partition]]
Assignor = Callable[[Wanted, Topics, Mapping[str, frozenset[Partition]]], Shares]


def range_assignor(
    wanted: Wanted, topics: Topics, before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    shares: dict[str, set[Partition]] = {member: set() for member in wanted}
    for name, topic in sorted(topics.items()):
        members = sorted(member for member, names in wanted.items() if name in names)
        start = 0
        for place, member in enumerate(members):
            count = topic.partitions // len(members) + (place < topic.partitions % len(members))
            shares[member].update((topic.topic_id, index) for index in range(start, start + count))
            start += count
    return {member: frozenset(share) for member, share in shares.items()}


def uniform_assignor(
    wanted: Wanted, topics: Topics, before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    if len(set(wanted.values())) <= 1:
        return _equal_shares(wanted, topics, before)
    return _fair_shares(wanted, topics, before)


def _all(topics: Topics) -> dict[Partition, str]:
    """Every partition, in order, and its topic's name."""
    return {
        (topic.topic_id, index): name
        for name, topic in sorted(topics.items())
        for index in range(topic.partitions)
    }


def _equal_shares(
    wanted: Wanted, topics: Topics, before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    """All want the same: each keeps what it has up to its share, and gets what is free up to it."""
    if not wanted:
        return {}
    names = next(iter(wanted.values()))
    free = _all({name: topic for name, topic in topics.items() if name in names})
    least, larger = divmod(len(free), len(wanted))
    shares: dict[str, list[Partition]] = {}
    # Who has most keeps most: the larger shares go where they are.
    for member in sorted(wanted, key=lambda each: (-len(before.get(each, ())), each)):
        kept = sorted(partition for partition in before.get(member, ()) if partition in free)
        room = least + (larger > 0)
        shares[member] = kept[:room]
        larger -= len(shares[member]) > least
        for partition in shares[member]:
            del free[partition]
    left = list(free)
    for share in shares.values():
        short = max(least - len(share), 0)
        share += left[:short]
        left = left[short:]
    for share in shares.values():
        if left and len(share) == least:
            share.append(left.pop())
    assert not left, "the shares add up to all partitions"
    return {member: frozenset(share) for member, share in shares.items()}


def _fair_shares(
    wanted: Wanted, topics: Topics, before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    """They want different things: what is free goes to who has least, then partitions move while that evens out."""
    names = _all(topics)
    readers = {name: sorted(m for m, each in wanted.items() if name in each) for name in topics}
    shares: dict[str, set[Partition]] = {member: set() for member in sorted(wanted)}
    owners: dict[Partition, str] = {}
    for member in shares:
        for partition in sorted(before.get(member, ())):
            name = names.get(partition)
            if name is not None and partition not in owners and member in readers[name]:
                owners[partition] = member
                shares[member].add(partition)

    def least(name: str) -> str:
        return min(readers[name], key=lambda member: (len(shares[member]), member))

    # Topics that few want go first: the others have more choice.
    for partition, name in sorted(names.items(), key=lambda each: (len(readers[each[1]]), each[0])):
        if partition not in owners and readers[name]:
            owners[partition] = member = least(name)
            shares[member].add(partition)
    moved = True
    while moved:  # each move brings two shares nearer to each other: it ends
        moved = False
        for partition, name in names.items():
            if partition not in owners:
                continue
            owner, other = owners[partition], least(name)
            if len(shares[owner]) > len(shares[other]) + 1:
                shares[owner].discard(partition)
                shares[other].add(partition)
                owners[partition] = other
                moved = True
    return {member: frozenset(share) for member, share in shares.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform_assignor, "range": range_assignor}
DEFAULT_ASSIGNOR = "uniform"
