"""A batch on its way into a segment: encoded once, given its offset without a copy."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from logstore.format.batches.batch import HEADER_SIZE, PATCH_SIZE, BatchInfo, patch_head

_COUNT = struct.Struct(">i")  # of a batch's records: the last field of its header
_COUNT_AT = HEADER_SIZE - _COUNT.size
_new_tuple = tuple.__new__  # half the time of EncodedBatch(…)


class EncodedBatch(NamedTuple):
    """A batch ready to be stored: its bytes in two parts, so that giving it an offset copies nothing.

    `head` holds the fields outside the batch's CRC (base offset, length, leader epoch), `body` all that follows.
    """

    head: bytes
    body: bytes | memoryview
    base_offset: int
    count: int  # type: ignore[assignment]
    min_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def records(self) -> int:
        """How many it holds: fewer than `count`, the offsets that it stands for, if compaction has taken some away."""
        return _COUNT.unpack_from(self.body, _COUNT_AT - PATCH_SIZE)[0]  # type: ignore[no-any-return]

    def tobytes(self) -> bytes:
        return b"".join((self.head, self.body))

    def at(self, base_offset: int, leader_epoch: int) -> EncodedBatch:
        """The same in another place: only the head is new."""
        head = patch_head(base_offset, self.size, leader_epoch)
        return self._replace(head=head, base_offset=base_offset)

    def moved(self, raw: memoryview) -> EncodedBatch:
        """The same, whose bytes lie in `raw` from now on."""
        return EncodedBatch(
            self.head,
            raw[PATCH_SIZE:],
            self.base_offset,
            self.count,
            self.min_timestamp_ms,
            self.max_timestamp_ms,
        )


def place(raw: bytes | memoryview, info: BatchInfo, base_offset: int, leader_epoch: int) -> EncodedBatch:
    """Give the batch in `raw` its offset. Sixteen bytes are new, and of a view the others are not even copied."""
    fields = (
        patch_head(base_offset, info.size, leader_epoch),
        raw[PATCH_SIZE:],
        base_offset,
        info.count,
        info.min_timestamp_ms,
        info.max_timestamp_ms,
    )
    return _new_tuple(EncodedBatch, fields)


def place_all(
    batches: Iterable[tuple[memoryview, BatchInfo]], base_offset: int, leader_epoch: int
) -> list[EncodedBatch]:
    """One behind the other, from `base_offset` on."""
    placed = []
    for raw, info in batches:
        placed.append(place(raw, info, base_offset, leader_epoch))
        base_offset += info.count
    return placed


def as_stored(
    raw: memoryview, base_offset: int, count: int, min_timestamp_ms: int, max_timestamp_ms: int
) -> EncodedBatch:
    """A batch that has its offset: `raw` as it lies in a segment or a WAL, of which the rest is known."""
    return EncodedBatch(
        bytes(raw[:PATCH_SIZE]), raw[PATCH_SIZE:], base_offset, count, min_timestamp_ms, max_timestamp_ms
    )
