"""A running group goes from one protocol to the other, as Kafka's do: nobody stops, offsets stay.

* **Up**: a member of the consumer protocol joins a group of consumers that speak the classic one. The group becomes one of
  the consumer protocol in which the others are members, too, with what they read now (`classic_members`).
* **Down**: the last member that speaks the consumer protocol is gone, and others are left. The group becomes a classic one,
  and they rebalance.

Pure functions. Whoever calls them stores the outcome in one write: it is of the one kind or the other after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_shim.groups.assignors import Partition, Topics
from broker_shim.groups.consumer_group import ConsumerGroup, ConsumerLimits, ConsumerMember, Held
from broker_shim.groups.group import Group
from broker_shim.groups.member import Classic, Member
from broker_shim.groups.subscription import (
    CONSUMER,
    NamedPartition,
    Subscription,
    of_protocols,
    read_assignment,
    write_assignment,
)
from broker_shim.wire.primitives import MalformedRequest


def topics_of(group: Group) -> frozenset[str]:
    """What the members subscribe to, as far as it can be read."""
    found = (of_protocols(member.protocols) for member in group.members.values())
    return frozenset[str]().union(*(each.topics for each in found if each is not None))


def upgraded(group: Group, limits: ConsumerLimits, topics: Topics, now: float) -> ConsumerGroup | None:
    """The same group, of the consumer protocol. None if its members are no consumers, or not to be understood."""
    if group.protocol_type != CONSUMER or len(group.members) >= limits.max_group_size:
        return None
    new = ConsumerGroup(group.group_id, limits, epoch=group.generation, target_epoch=group.generation)
    assigned: dict[str, Held] = {}
    said: dict[str, Subscription] = {}
    for member in group.members.values():
        subscription = of_protocols(member.protocols)
        if subscription is None:
            return None
        said[member.member_id] = subscription
        try:
            assigned[member.member_id] = _held(read_assignment(member.assignment), topics)
        except MalformedRequest:
            return None
    taken = frozenset[Partition]().union(*assigned.values())
    for member in group.members.values():
        # Who has not asked for its share yet may read on what it had when it joined: that is free when it says so.
        own = said[member.member_id]
        still = _held(own.owned, topics) - taken
        taken |= still
        held = assigned[member.member_id] | still
        new.members[member.member_id] = ConsumerMember(
            member.member_id,
            member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_s=member.rebalance_timeout_s,
            names=own.topics,
            epoch=group.generation,
            previous_epoch=group.generation,
            assigned=held,
            classic=Classic(member.session_timeout_s, member.protocols),
        )
        new.target[member.member_id] = held
    new.restore(now)
    new.note_all()
    return new


def _held(named: Iterable[NamedPartition], topics: Topics) -> Held:
    """Without those of topics that are not there any more."""
    return frozenset((topics[name].topic_id, index) for name, index in named if name in topics)


def downgrade(old: ConsumerGroup, group: Group, now: float) -> None:
    """Make `group`, a new one, what `old` was, whose members all speak the classic protocol."""
    names = {info.topic_id: name for name, info in (old.topics or {}).items()}
    members: list[Member] = []
    for each in old.members.values():
        assert each.classic is not None
        target = old.target.get(each.member_id, frozenset())
        member = Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            each.classic.session_timeout_s,
            each.rebalance_timeout_s,
            each.classic.protocols,
            write_assignment((names[topic_id], i) for topic_id, i in target if topic_id in names),
        )
        members.append(member)
    group.continue_from(old.epoch, CONSUMER, members, now)
