"""Where a chain ends."""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.chain.horizon import NO_MANIFEST, Horizon
from logstore.errors import CorruptData
from logstore.format.stored.extras import NO_EXTRAS, Claim, Extras
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, WriterMode
from logstore.layout.paths import PartitionPaths

_new_tuple = tuple.__new__  # half the time of ChainTail(…)


class ChainTail(NamedTuple):
    """Where the chain ends, as last seen. `horizon`: the manifest's, when the chain was loaded.

    `owner`: what the fence of this epoch says of its writer, an `Owner` in bytes; none if it says nothing, or was not seen.
    `closed`: that writer has said that it writes no more. `claim`: the last fence says that the next segments are parts of a
    lane's entries; those that were seen are before the tail.
    """

    next_seq: int = 0
    epoch: int = 0
    mode: WriterMode = WriterMode.EXCLUSIVE
    end_offset: int = 0
    reserved_until: int = 0
    source_upper: int = -1
    deleted: bool = False
    damaged: CorruptData | None = None
    horizon: Horizon = NO_MANIFEST
    owner: bytes = b""
    closed: bool = False
    claim: Claim | None = None

    @property
    def start_offset(self) -> int:
        """Where a new writer starts: past everything stored and everything that readers may have seen."""
        return max(self.end_offset, self.reserved_until)

    def after(self, header: SegmentHeader, extras: Extras = NO_EXTRAS) -> ChainTail:
        """The tail once `header`'s segment is committed, and what it says beside its records is known."""
        same_owner = self.owner if header.epoch == self.epoch else b""
        upper = header.source_upper if header.source_upper >= 0 else self.source_upper
        flags = header.flags
        is_plain = flags is SegmentFlags.NONE
        fields = (
            header.seq + 1,
            header.epoch,
            header.mode,
            header.end_offset,
            header.reserved_until,
            upper,
            not is_plain and SegmentFlags.DELETED in flags,
            None,
            self.horizon,
            extras.owner or same_owner,
            not is_plain and SegmentFlags.CLOSED in flags,
            extras.claim,
        )
        return _new_tuple(ChainTail, fields)

    @property
    def may_be_emptied(self) -> bool:
        """Whether the next place may have been used and emptied: it may hold the data of the exclusive writer before it."""
        return self.next_seq > 0 and self.mode is WriterMode.EXCLUSIVE


def first_tail(paths: PartitionPaths, horizon: Horizon = NO_MANIFEST) -> ChainTail:
    """Of a partition that nobody has written, or of which no manifest tells."""
    lane = paths.birth_lane
    return ChainTail(horizon=horizon, claim=None if lane is None else Claim(lane, 0))
