"""The records of the internal topic, byte for byte as Kafka's `__consumer_offsets` has them.

So that every tool that reads that topic reads ours. A key says what the record is about (committed offset:
versions 0 and 1; group: version 2), the value is the newest state, and no value (a tombstone) means that it
is gone. Replaying a partition and keeping the last value of each key gives the coordinator's state.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

from broker_shim.groups.member import Member
from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader
from logstore.layout.paths import BORN_IN_LANE

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_TOPIC_ID_TAG = 0
_TOPIC_ID_BYTES = 16
_string = partial(primitives.string, flexible=False)
_bytes = partial(primitives.binary, flexible=False)


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    incarnation: str | None
    """Which topic of that name it was committed for; None in records of before that was noted."""


class GroupState(NamedTuple):
    """A group as it was when its last generation was saved."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_at_ms: int
    members: list[Member]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return _I16.pack(2) + _string(key.group)
    return _I16.pack(1) + _string(key.group) + _string(key.topic) + _I32.pack(key.partition)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """None for a key of a kind that we do not know: a newer broker's, to be left alone."""
    reader = Reader(data)
    version = reader.i16()
    if version in (0, 1):
        return OffsetKey(reader.string(), reader.string(), reader.i32())
    if version == 2:
        return GroupKey(reader.string())
    return None


def encode_committed(value: Committed) -> bytes:
    """Version 4, which names the topic by its id too: a topic that is recreated has another."""
    topic_id = b"" if value.incarnation is None else _topic_id(value.incarnation)
    tags = (
        [primitives.uvarint(_TOPIC_ID_TAG), primitives.uvarint(len(topic_id)), topic_id] if topic_id else []
    )
    return b"".join(
        (
            _I16.pack(4),
            _I64.pack(value.offset),
            _I32.pack(value.leader_epoch),
            primitives.string(value.metadata, flexible=True),
            _I64.pack(value.committed_at_ms),
            primitives.uvarint(1 if tags else 0),
            *tags,
        )
    )


def decode_committed(data: bytes) -> Committed:
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise MalformedRequest(f"a committed offset of version {version}")
    reader.flexible = version >= 4
    offset = reader.i64()
    epoch = reader.i32() if version >= 3 else -1
    return Committed(offset, epoch, reader.string(), reader.i64(), _incarnation(reader))


def _incarnation(reader: Reader) -> str | None:
    for _ in range(reader.uvarint() if reader.flexible else 0):
        tag, content = reader.uvarint(), reader.take(reader.uvarint())
        if tag == _TOPIC_ID_TAG:
            middle = _TOPIC_ID_BYTES // 2
            return content[middle:].hex() + (BORN_IN_LANE if content[middle - 1] else "")
    return None


def _topic_id(incarnation: str) -> bytes:
    """Its digits, in the last bytes; the one before them says whether the topic began in a lane."""
    digits = bytes.fromhex(incarnation.removesuffix(BORN_IN_LANE))
    return (bytes([incarnation.endswith(BORN_IN_LANE)]) + digits).rjust(_TOPIC_ID_BYTES, b"\0")


def encode_group(value: GroupState) -> bytes:
    """Version 3."""
    out = [
        _I16.pack(3),
        _string(value.protocol_type),
        _I32.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _I64.pack(value.changed_at_ms),
        _I32.pack(len(value.members)),
    ]
    for member in value.members:
        out += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _I32.pack(round(member.rebalance_timeout_s * 1000)),
            _I32.pack(round(member.session_timeout_s * 1000)),
            _bytes(member.subscription(value.protocol)),
            _bytes(member.assignment),
        )
    return b"".join(out)


def decode_group(data: bytes) -> GroupState:
    reader = Reader(data)
    version = reader.i16()
    if not 2 <= version <= 3:
        raise MalformedRequest(f"a group of version {version}")
    protocol_type, generation = reader.string(), reader.i32()
    protocol, leader, changed_at_ms = reader.nullable_string(), reader.nullable_string(), reader.i64()
    members = []
    for _ in range(reader.array_length()):
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_ms, session_ms = reader.i32(), reader.i32()
        subscription, assignment = reader.nullable_bytes(), reader.nullable_bytes()
        members.append(
            Member(
                member_id,
                instance_id,
                client_id,
                client_host,
                session_ms / 1000,
                rebalance_ms / 1000,
                ((protocol or "", bytes(subscription or b"")),),
                bytes(assignment or b""),
            )
        )
    return GroupState(protocol_type, generation, protocol, leader, changed_at_ms, members)
