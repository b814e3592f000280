"""Fetch requests and responses, versions 4 to 18, by hand: batches are passed through as memoryviews.

From version 13 on topics have ids, 16 bytes, in place of names. What came later is in tagged fields, and a follower's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_shim.wire import primitives
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import Reader

FLEXIBLE_FROM = 12
IDS_FROM = 13
_NO_REPLICA_ID_FROM = 15
READ_COMMITTED = 1
Part = bytes | memoryview
TopicKey = str | bytes
"""A topic's name, or its id."""

_REQUEST = struct.Struct(">iiiib")
_REQUEST_V15 = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ASKED_V9 = struct.Struct(">iiqqi")
_ASKED_V12 = struct.Struct(">iiqiqi")
_HEAD_V7 = struct.Struct(">ihi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_I32 = struct.Struct(">i")
NO_REPLICA = -1


class PartitionFetch(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[PartitionFetch]]]
    forgotten: list[tuple[TopicKey, list[int]]] = []  # noqa: RUF012
    """Of a session: what its client does not want any more."""
    rack: str = ""


@dataclass(slots=True)
class PartitionData:
    """What one partition answers."""

    partition: int
    code: Code = Code.NONE
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    parts: Sequence[Part] = ()
    size: int = 0
    aborted: Sequence[tuple[int, int]] = ()
    """Aborted transactions in there: producer id and first offset."""
    preferred: int = NO_REPLICA
    """A broker nearer to the consumer, to be asked instead (KIP-392)."""


def read(frame: bytes | memoryview, position: int, version: int) -> FetchRequest:
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    # The first field was the replica id: we have no followers, every fetch is a consumer's.
    if version < _NO_REPLICA_ID_FROM:
        _, max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_REQUEST)
    else:
        max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_REQUEST_V15)
    session_id, session_epoch = reader.unpack(_SESSION) if version >= 7 else (0, -1)
    has_ids = version >= IDS_FROM
    topics: list[tuple[TopicKey, list[PartitionFetch]]] = []
    for _ in range(reader.array_length()):
        topic = bytes(reader.take(16)) if has_ids else reader.string()
        partitions = []
        for _ in range(reader.array_length()):
            partitions.append(_asked(reader, version))
            reader.tags()
        reader.tags()
        topics.append((topic, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(reader.array_length() if version >= 7 else 0):
        topic = bytes(reader.take(16)) if has_ids else reader.string()
        forgotten.append((topic, [reader.i32() for _ in range(reader.array_length())]))
        reader.tags()
    rack = reader.string() if version >= 11 else ""
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack
    )


def _asked(reader: Reader, version: int) -> PartitionFetch:
    """A log start offset (from 5 on) is a follower's; a last fetched epoch (from 12 on) is for logs that truncate."""
    if 9 <= version <= 11:
        index, epoch, offset, _, max_bytes = reader.unpack(_ASKED_V9)
    elif version >= 12:
        index, epoch, offset, _, _, max_bytes = reader.unpack(_ASKED_V12)
    else:
        epoch = -1
        index, offset = reader.i32(), reader.i64()
        if version >= 5:
            reader.i64()
        max_bytes = reader.i32()
    return PartitionFetch(index, epoch, offset, max_bytes)


def write(
    version: int,
    answers: Sequence[tuple[TopicKey, list[PartitionData]]],
    isolation: int,
    code: Code = Code.NONE,
    session_id: int = 0,
) -> list[Part]:
    """The response body as parts, in order. Batches are not copied. Session id 0: there is none (KIP-227)."""
    flexible = version >= FLEXIBLE_FROM
    out: list[Part] = []
    head = _HEAD_V7.pack(0, code, session_id) if version >= 7 else b"\x00\x00\x00\x00"
    pending = [head, primitives.array_header(len(answers), flexible)]
    for topic, partitions in answers:
        pending.append(topic if isinstance(topic, bytes) else primitives.string(topic, flexible))
        pending.append(primitives.array_header(len(partitions), flexible))
        for data in partitions:
            pending.append(_partition(version, data, isolation, flexible))
            if data.size:
                out.append(b"".join(pending))
                out.extend(data.parts)
                pending = []
            if flexible:
                pending.append(b"\x00")
        if flexible:
            pending.append(b"\x00")
    if flexible:
        pending.append(b"\x00")
    out.append(b"".join(pending))
    return out


def _partition(version: int, data: PartitionData, isolation: int, flexible: bool) -> bytes:
    index, code, high, stable = data.partition, data.code, data.high_watermark, data.last_stable
    fixed = (
        _PARTITION_V5.pack(index, code, high, stable, data.log_start)
        if version >= 5
        else _PARTITION_V4.pack(index, code, high, stable)
    )
    count = len(data.aborted) if isolation == READ_COMMITTED else None
    aborted = primitives.array_header(count, flexible)
    if count:
        tags = b"\x00" if flexible else b""
        aborted += b"".join(_ABORTED.pack(*each) + tags for each in data.aborted)
    replica = _I32.pack(data.preferred) if version >= 11 else b""
    length = primitives.uvarint(data.size + 1) if flexible else _I32.pack(data.size)
    return b"".join((fixed, aborted, replica, length))
