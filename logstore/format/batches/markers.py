"""Control batches: how a transaction ended, in each partition that it wrote to. One record, as Kafka writes it.

    key    version (2 bytes), 0 abort or 1 commit (2 bytes)
    value  version (2 bytes), epoch of the coordinator that decided (4 bytes)
    header `started`: the transaction's start, in ms (8 bytes). A transactional id's starts only grow, so a marker that is
           repeated late is told from the one of a later transaction.

A marker has an offset like a record, and is none: whoever decodes records leaves it out.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from logstore.format import kernels
from logstore.format.batches.batch import CONTROL, TRANSACTIONAL, BatchInfo, Buffer, encode_batch, record_area
from logstore.format.batches.record import Record
from logstore.format.errors import FormatError

UNKNOWN_START = -1
_KEY, _VALUE, _STARTED = struct.Struct(">hh"), struct.Struct(">hi"), struct.Struct(">q")
_STARTED_NAME = "started"


class Marker(NamedTuple):
    """`started_ms`: which transaction of the producer it ends; `UNKNOWN_START` if nobody said."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    started_ms: int = UNKNOWN_START


def encode_marker(marker: Marker, *, now_ms: int) -> bytes:
    """The control batch, base offset 0."""
    record = Record(
        _VALUE.pack(0, marker.coordinator_epoch),
        _KEY.pack(0, marker.is_commit),
        ((_STARTED_NAME, _STARTED.pack(marker.started_ms)),),
        now_ms,
    )
    raw, _ = encode_batch(
        [record],
        now_ms=now_ms,
        codec_id=0,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )
    return raw


MARKER_SIZE = len(encode_marker(Marker(0, 0, True, 0), now_ms=0))
"""Of every one: an index, which knows no attributes, tells by it which batches may be markers."""


def read_marker(raw: Buffer, info: BatchInfo) -> Marker | None:
    """What a control batch says; None for one of a kind that is not known."""
    [record] = kernels.active.records(record_area(raw, info), info.base_offset, 0, 1)
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
        started = dict(record.headers).get(_STARTED_NAME)
        started_ms = _STARTED.unpack(started)[0] if started else UNKNOWN_START
    except struct.error as error:
        raise FormatError(f"a control batch without a decision: {error}", info.position) from error
    if kind not in (0, 1):
        return None
    return Marker(info.producer_id, info.producer_epoch, kind == 1, coordinator_epoch, started_ms)
