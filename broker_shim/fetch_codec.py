"""Fetch requests and responses, versions 4 to 12, by hand: batches are passed through as memoryviews."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_shim import wire
from broker_shim.codes import Code
from broker_shim.wire import Reader

FLEXIBLE_FROM = 12
READ_COMMITTED = 1
Part = bytes | memoryview

_HEAD_V7 = struct.Struct(">ihi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_I32 = struct.Struct(">i")
_NO_REPLICA = b"\xff\xff\xff\xff"


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
    topics: list[tuple[str, list[PartitionFetch]]]


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


def read(frame: bytes | memoryview, position: int, version: int) -> FetchRequest:
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    reader.i32()  # replica id: we have no followers, every fetch is a consumer's
    max_wait_ms, min_bytes, max_bytes = reader.i32(), reader.i32(), reader.i32()
    isolation = reader.i8()
    session_id, session_epoch = (reader.i32(), reader.i32()) if version >= 7 else (0, -1)
    topics = []
    for _ in range(reader.array_length()):
        name = reader.string()
        partitions = []
        for _ in range(reader.array_length()):
            index = reader.i32()
            epoch = reader.i32() if version >= 9 else -1
            offset = reader.i64()
            if version >= 12:
                reader.i32()  # last fetched epoch: our log never truncates, so nothing can diverge
            if version >= 5:
                reader.i64()  # log start offset: only followers have one
            partitions.append(PartitionFetch(index, epoch, offset, reader.i32()))
            reader.tags()
        reader.tags()
        topics.append((name, partitions))
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics)


def write(
    version: int, answers: list[tuple[str, list[PartitionData]]], isolation: int, code: Code = Code.NONE
) -> list[Part]:
    """The response body as parts, in order. Batches are not copied."""
    flexible = version >= FLEXIBLE_FROM
    out: list[Part] = []
    # Session id 0: "no session", so a client sends every partition each time (KIP-227).
    head = _HEAD_V7.pack(0, code, 0) if version >= 7 else b"\x00\x00\x00\x00"
    pending = [head, wire.array_header(len(answers), flexible)]
    for topic, partitions in answers:
        pending.append(wire.string(topic, flexible))
        pending.append(wire.array_header(len(partitions), flexible))
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
    aborted = wire.array_header(0 if isolation == READ_COMMITTED else None, flexible)
    replica = _NO_REPLICA if version >= 11 else b""
    length = wire.uvarint(data.size + 1) if flexible else _I32.pack(data.size)
    return b"".join((fixed, aborted, replica, length))
