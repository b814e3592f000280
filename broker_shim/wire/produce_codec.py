"""Produce requests and responses, versions 3 to 11, by hand: record sets pass through as memoryviews."""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker_shim.wire import primitives
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import Reader

FLEXIBLE_FROM = 9
_PARTITION = struct.Struct(">ihqqq")
_PLACE = struct.Struct(">i")


class PartitionData(NamedTuple):
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[PartitionData]]]


class PartitionAnswer(NamedTuple):
    """`wrong`: the places of the records that `message` is about, which clients of version 8 tell their users of."""

    partition: int
    code: Code
    base_offset: int = -1
    low_watermark: int = -1
    message: str | None = None
    append_ms: int = -1
    wrong: tuple[int, ...] = ()


def read(frame: bytes | memoryview, position: int, version: int) -> ProduceRequest:
    reader = Reader(frame, position, flexible=version >= FLEXIBLE_FROM)
    transactional_id = reader.nullable_string()
    acks = reader.i16()
    timeout_ms = reader.i32()
    topics = []
    for _ in range(reader.array_length()):
        name = reader.string()
        partitions = []
        for _ in range(reader.array_length()):
            index = reader.i32()
            partitions.append(PartitionData(index, reader.nullable_bytes()))
            reader.tags()
        reader.tags()
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def write(version: int, answers: list[tuple[str, list[PartitionAnswer]]]) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    out = [primitives.array_header(len(answers), flexible)]
    for topic, partitions in answers:
        out.append(primitives.string(topic, flexible))
        out.append(primitives.array_header(len(partitions), flexible))
        for answer in partitions:
            # A log append time of -1: records keep the time that their producer gave them.
            packed = _PARTITION.pack(
                answer.partition, answer.code, answer.base_offset, answer.append_ms, answer.low_watermark
            )
            out.append(packed if version >= 5 else packed[:-8])
            if version >= 8:
                out.append(primitives.array_header(len(answer.wrong), flexible))
                for place in answer.wrong:
                    out += (_PLACE.pack(place), primitives.string(answer.message, flexible))
                    if flexible:
                        out.append(b"\x00")
                out.append(primitives.string(answer.message, flexible))
            if flexible:
                out.append(b"\x00")
        if flexible:
            out.append(b"\x00")
    out.append(b"\x00\x00\x00\x00")
    if flexible:
        out.append(b"\x00")
    return b"".join(out)
