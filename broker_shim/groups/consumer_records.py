"""What is kept of a group of the consumer protocol, in the internal topic, as Kafka's coordinator keeps it.

One record each for: the group's epoch (key 3), a member and its subscription (5), the epoch of the target assignment (6), a
member's share of it (7), and what a member has now (8). Keys are in the old spelling, values in the flexible one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from broker_shim.groups import group_records
from broker_shim.groups.assignors import Partition
from broker_shim.groups.consumer_group import ConsumerGroup, ConsumerLimits, ConsumerMember, Held, Kind, Way
from broker_shim.groups.group_records import GroupKey
from broker_shim.groups.member import Classic
from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_VERSIONS = {Kind.GROUP: 3, Kind.MEMBER: 5, Kind.TARGET_EPOCH: 6, Kind.TARGET: 7, Kind.CURRENT: 8}
_KINDS = {version: kind for kind, version in _VERSIONS.items()}
_OF_GROUP = (Kind.GROUP, Kind.TARGET_EPOCH)
_NO_TAGS = b"\x00"


class ConsumerKey(NamedTuple):
    """`member_id` is empty if the record is about the group."""

    kind: Kind
    group: str
    member_id: str = ""


def encode_key(key: ConsumerKey) -> bytes:
    parts = [_I16.pack(_VERSIONS[key.kind]), primitives.string(key.group, flexible=False)]
    if key.kind not in _OF_GROUP:
        parts.append(primitives.string(key.member_id, flexible=False))
    return b"".join(parts)


def decode_key(data: bytes) -> ConsumerKey | None:
    """None for a key of another kind."""
    reader = Reader(data)
    kind = _KINDS.get(reader.i16())
    if kind is None:
        return None
    group = reader.string()
    return ConsumerKey(kind, group, "" if kind in _OF_GROUP else reader.string())


def values_of(group: ConsumerGroup, noted: Iterable[tuple[Kind, str]]) -> list[tuple[bytes, bytes | None]]:
    """The records of what has changed, as it is now; no value for what is gone."""
    return [
        (group_records.encode_key(GroupKey(group.group_id)), None)
        if kind is Kind.CLASSIC
        else (encode_key(ConsumerKey(kind, group.group_id, member_id)), _value(group, kind, member_id))
        for kind, member_id in noted
    ]


def keys_of(group: ConsumerGroup) -> list[bytes]:
    """The keys of everything that is kept of it."""
    own = [encode_key(ConsumerKey(kind, group.group_id)) for kind in _OF_GROUP]
    kinds = [kind for kind in _VERSIONS if kind not in _OF_GROUP]
    members = {*group.members, *group.target}
    return own + [
        encode_key(ConsumerKey(kind, group.group_id, each)) for kind in kinds for each in sorted(members)
    ]


def _value(group: ConsumerGroup, kind: Kind, member_id: str) -> bytes | None:
    if kind is Kind.GROUP:
        return _I16.pack(0) + _I32.pack(group.epoch) + _NO_TAGS
    if kind is Kind.TARGET_EPOCH:
        return _I16.pack(0) + _I32.pack(group.target_epoch) + _NO_TAGS
    if kind is Kind.TARGET:
        share = group.target.get(member_id)
        return None if share is None else _I16.pack(0) + _partitions(share) + _NO_TAGS
    member = group.members.get(member_id)
    if member is None:
        return None
    return _member(member) if kind is Kind.MEMBER else _current(member)


def _string(value: str | None) -> bytes:
    return primitives.string(value, flexible=True)


def _member(member: ConsumerMember) -> bytes:
    return b"".join(
        (
            _I16.pack(0),
            _string(member.instance_id),
            _string(member.rack),
            _string(member.client_id),
            _string(member.client_host),
            primitives.array_header(len(member.names), True),
            *map(_string, sorted(member.names)),
            _string(member.regex),
            _I32.pack(round(member.rebalance_timeout_s * 1000)),
            _string(member.assignor),
            _NO_TAGS if member.classic is None else _classic(member.classic),
        )
    )


def _classic(classic: Classic) -> bytes:
    """The tagged fields of a member that speaks the classic protocol: one, tag 0, a struct that could be null."""
    value = b"".join(
        (
            _I8.pack(1),
            _I32.pack(round(classic.session_timeout_s * 1000)),
            primitives.array_header(len(classic.protocols), True),
            *(
                _string(name) + primitives.binary(metadata, True) + _NO_TAGS
                for name, metadata in classic.protocols
            ),
            _NO_TAGS,
        )
    )
    return b"".join((primitives.uvarint(1), primitives.uvarint(0), primitives.uvarint(len(value)), value))


def _read_classic(reader: Reader) -> Classic | None:
    found = None
    for _ in range(reader.uvarint()):
        tag, value = reader.uvarint(), Reader(reader.take(reader.uvarint()), flexible=True)
        if tag == 0 and value.i8() == 1:
            session_s, protocols = value.i32() / 1000, []
            for _ in range(value.array_length()):
                protocols.append((value.string(), bytes(value.nullable_bytes() or b"")))
                value.tags()
            found = Classic(session_s, tuple(protocols))
    return found


def _current(member: ConsumerMember) -> bytes:
    return b"".join(
        (
            _I16.pack(0),
            _I32.pack(member.epoch),
            _I32.pack(member.previous_epoch),
            _I8.pack(member.way),
            _partitions(member.assigned),
            _partitions(member.revoking),
            _NO_TAGS,
        )
    )


def _partitions(held: Held) -> bytes:
    topics = primitives.by_topic(held)
    out = [primitives.array_header(len(topics), True)]
    for topic_id, indexes in topics.items():
        out += (
            topic_id.bytes,
            primitives.array_header(len(indexes), True),
            *map(_I32.pack, indexes),
            _NO_TAGS,
        )
    return b"".join(out)


def _read_partitions(reader: Reader) -> Held:
    found: set[Partition] = set()
    for _ in range(reader.array_length()):
        topic_id = UUID(bytes=bytes(reader.take(16)))
        found.update((topic_id, reader.i32()) for _ in range(reader.array_length()))
        reader.tags()
    return frozenset(found)


def read_into(
    groups: dict[str, ConsumerGroup], limits: ConsumerLimits, key: ConsumerKey, value: bytes
) -> None:
    """Put a record back into its group. Their order is no matter; `ConsumerGroup.restore` comes when all are there."""
    reader = Reader(value)
    version = reader.i16()
    if version != 0:
        raise MalformedRequest(f"{key.kind.value} of {key.group} has version {version}")
    reader.flexible = True
    group = groups.get(key.group)
    if group is None:
        group = groups[key.group] = ConsumerGroup(key.group, limits)
    if key.kind is Kind.GROUP:
        group.epoch = reader.i32()
    elif key.kind is Kind.TARGET_EPOCH:
        group.target_epoch = reader.i32()
    elif key.kind is Kind.TARGET:
        group.target[key.member_id] = _read_partitions(reader)
    else:
        member = group.members.setdefault(key.member_id, ConsumerMember(key.member_id))
        if key.kind is Kind.MEMBER:
            _read_member(member, reader)
        else:
            member.epoch, member.previous_epoch, member.way = reader.i32(), reader.i32(), Way(reader.i8())
            member.assigned, member.revoking = _read_partitions(reader), _read_partitions(reader)


def _read_member(member: ConsumerMember, reader: Reader) -> None:
    member.instance_id, member.rack = reader.nullable_string(), reader.nullable_string()
    member.client_id, member.client_host = reader.string(), reader.string()
    member.names = frozenset(reader.string() for _ in range(reader.array_length()))
    member.regex = reader.nullable_string()
    member.rebalance_timeout_s = reader.i32() / 1000
    member.assignor = reader.nullable_string()
    member.classic = _read_classic(reader)
