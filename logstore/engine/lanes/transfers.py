"""What a transfer is made of: claims of a lane that are to go on in another one, and what came of it."""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.lanes.lane_state import LaneState
from logstore.format.stored.entry import ClaimKey, Part, fence_row
from logstore.format.stored.lane_checkpoint import Moved
from logstore.format.stored.part_rows import CheckpointedPart
from logstore.format.stored.segment import SegmentFlags


class Wanted(NamedTuple):
    """A claim that is to go on in another lane, and that began at the place `since` of its own. `next_seq`, `end_offset`,
    `reserved_until`: where the partition's chain ends, as far as its taker knows. `judged`: whom it was judged to be of, by
    who adopted the lane. `ahead`: so many offsets are reserved for the next claim. `is_exact`: not if the chain has gone on
    since."""

    key: ClaimKey
    since: int
    next_seq: int
    end_offset: int
    reserved_until: int
    judged: bytes
    ahead: int = 0
    is_exact: bool = False


class Taken(NamedTuple):
    """What a transfer has taken: the parts that the taker did not know, the fence behind them, what it says; and the low
    watermark as far as the old lane says."""

    parts: tuple[CheckpointedPart, ...]
    moved: Moved
    low: int


def fence_for(state: LaneState, wanted: Wanted) -> Part | None:
    """With which the claim goes on, if nobody has ended it, in an entry of which nobody knows any more, either; None if its
    taker must look again."""
    key, one = wanted.key, state.claims.get(wanted.key)
    seq, start = wanted.next_seq, max(wanted.end_offset, wanted.reserved_until)
    if wanted.judged != state.owner or state.doubt_of(key, wanted.since) is not None:
        return None
    if one is not None:
        if one.is_left or one.next_seq > seq:
            return None
        if one.parts and one.parts[-1].part.seq >= seq:
            if wanted.is_exact:
                return None
            last = one.parts[-1].part
            seq, start = last.seq + 1, max(last.end_offset, last.reserved_until)
    next_key = ClaimKey(key.prefix, key.epoch + 1)
    return fence_row(next_key, seq, SegmentFlags.FENCE, start, start + wanted.ahead)
