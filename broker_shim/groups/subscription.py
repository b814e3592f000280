"""What the members of a group want to read: the only thing in a member's metadata that a coordinator has to understand."""

from __future__ import annotations

from broker_shim.groups.group import Group
from broker_shim.wire.primitives import MalformedRequest, Reader

CONSUMER = "consumer"


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that some member subscribes to, by the consumers' protocol. None if that cannot be told: no protocol is
    chosen yet, or a member's metadata are something else.
    """
    if group.protocol is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        reader = Reader(member.subscription(group.protocol))
        try:
            reader.i16()  # the version: every one begins with the topics
            topics.update(reader.string() for _ in range(reader.array_length()))
        except MalformedRequest:
            return None
    return frozenset(topics)
