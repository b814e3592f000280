"""Offsets that a transaction commits for groups: kept apart, and seen by nobody, until it is decided.

One record for each producer, beside the groups' own, under a kind of key that Kafka does not use (its tools step over it):
what is pending, and which transaction ended here last, so that a marker that is repeated late ends no later one.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

from broker_shim.groups.group_records import Committed, decode_committed, encode_committed
from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader
from logstore.format.batches.markers import UNKNOWN_START, Marker

KEY_KIND = 1000
_KEY = struct.Struct(">hq")
_HEAD = struct.Struct(">hhiqqi")
_I32 = struct.Struct(">i")
_string = partial(primitives.string, flexible=False)
_bytes = partial(primitives.binary, flexible=False)
Place = tuple[str, int]
LastEnd = tuple[int, int, int]
"""Which transaction of a producer ended last, to be compared."""


class PendingOffsets(NamedTuple):
    """Of one producer: pending offsets by group, and what the last marker said."""

    epoch: int = -1
    coordinator_epoch: int = -1
    started_ms: int = UNKNOWN_START
    changed_at_ms: int = 0
    pending: dict[str, dict[Place, Committed]] = {}  # noqa: RUF012 (never changed in place)

    def is_stale(self, marker: Marker) -> bool:
        """Whether that transaction has ended here."""
        if marker.producer_epoch < self.epoch:
            return True
        if UNKNOWN_START not in (marker.started_ms, self.started_ms):
            return marker.started_ms <= self.started_ms
        return marker.coordinator_epoch < self.coordinator_epoch

    @property
    def last_end(self) -> LastEnd:
        return self.coordinator_epoch, self.started_ms, self.changed_at_ms

    def with_more(self, epoch: int, group: str, commits: dict[Place, Committed]) -> PendingOffsets:
        pending = {**self.pending, group: {**self.pending.get(group, {}), **commits}}
        return self._replace(epoch=epoch, pending=pending)

    def ended(self, marker: Marker, now_ms: int) -> PendingOffsets:
        return PendingOffsets(marker.producer_epoch, marker.coordinator_epoch, marker.started_ms, now_ms)


def encode_pending_key(producer_id: int) -> bytes:
    return _KEY.pack(KEY_KIND, producer_id)


def decode_pending_key(data: bytes) -> int | None:
    """The producer's id; None for a key of another kind."""
    if len(data) != _KEY.size:
        return None
    kind, producer_id = _KEY.unpack(data)
    return producer_id if kind == KEY_KIND else None


def encode_pending(value: PendingOffsets) -> bytes:
    rows = [
        _string(group) + _string(topic) + _I32.pack(index) + _bytes(encode_committed(committed))
        for group, places in value.pending.items()
        for (topic, index), committed in places.items()
    ]
    head = _HEAD.pack(
        0, value.epoch, value.coordinator_epoch, value.started_ms, value.changed_at_ms, len(rows)
    )
    return head + b"".join(rows)


def decode_pending(data: bytes) -> PendingOffsets:
    reader = Reader(data)
    version, epoch, coordinator_epoch, started_ms, changed_at_ms, count = reader.unpack(_HEAD)
    if version != 0:
        raise MalformedRequest(f"pending offsets of version {version}")
    pending: dict[str, dict[Place, Committed]] = {}
    for _ in range(count):
        group, topic, index = reader.string(), reader.string(), reader.i32()
        committed = decode_committed(bytes(reader.nullable_bytes() or b""))
        pending.setdefault(group, {})[(topic, index)] = committed
    return PendingOffsets(epoch, coordinator_epoch, started_ms, changed_at_ms, pending)
