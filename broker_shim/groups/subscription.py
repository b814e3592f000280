"""What consumers of the classic protocol say of themselves, and are told, inside of JoinGroup and SyncGroup (Kafka's
`ConsumerProtocol`): their subscription, and their assignment. A coordinator of a classic group only passes both on."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from broker_shim.groups.group import Group
from broker_shim.groups.member import Protocols
from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader

CONSUMER = "consumer"
NamedPartition = tuple[str, int]
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_OWNED_FROM = 1


class Subscription(NamedTuple):
    """`owned`: what it reads on, while it joins. Nothing, if it gives up everything first."""

    topics: frozenset[str]
    owned: frozenset[NamedPartition] = frozenset()


def read_subscription(data: bytes) -> Subscription:
    """Raises `MalformedRequest`."""
    reader = Reader(data)
    version = reader.i16()
    topics = frozenset(reader.string() for _ in range(reader.array_length()))
    reader.nullable_bytes()  # the assignor's own
    return Subscription(topics, _read_partitions(reader) if version >= _OWNED_FROM else frozenset())


def read_assignment(data: bytes) -> frozenset[NamedPartition]:
    """Raises `MalformedRequest`. No bytes at all: nothing is assigned."""
    if not data:
        return frozenset()
    reader = Reader(data)
    reader.i16()  # the version: every one begins with the partitions
    return _read_partitions(reader)


def write_assignment(partitions: Iterable[NamedPartition]) -> bytes:
    """In version 0, which every client reads."""
    topics = primitives.by_topic(partitions)
    out = [_I16.pack(0), primitives.array_header(len(topics), flexible=False)]
    for topic, indexes in topics.items():
        out += (
            primitives.string(topic, flexible=False),
            primitives.array_header(len(indexes), flexible=False),
            *map(_I32.pack, indexes),
        )
    return b"".join((*out, primitives.binary(None, flexible=False)))


def _read_partitions(reader: Reader) -> frozenset[NamedPartition]:
    found: set[NamedPartition] = set()
    for _ in range(reader.array_length()):
        topic = reader.string()
        found.update((topic, reader.i32()) for _ in range(reader.array_length()))
    return frozenset(found)


def of_protocols(protocols: Protocols) -> Subscription | None:
    """What it says under its first protocol: consumers say the same under each. None if it is something else."""
    try:
        return read_subscription(protocols[0][1]) if protocols else None
    except MalformedRequest:
        return None


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
