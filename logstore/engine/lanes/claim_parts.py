"""What a claim has in its lane, for those who load or follow its partition."""

from __future__ import annotations

import sys
from typing import NamedTuple

from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import Moved
from logstore.format.stored.part_rows import CheckpointedPart
from logstore.layout.paths import LanePaths, may_be_transferred


class ClaimParts(NamedTuple):
    """What a claim has in its lane. `next_seq`: the place in the partition's chain of the first part there; what lies before
    it is in the partition's manifest. `is_left`: nothing will follow in the lane, and somebody may have gone on behind: in
    another lane if it was `moved`, else in the partition's own chain.
    `damage`: there may be more of it behind the last part, in an entry that is lost. `if_unsplit`: but not if the partition
    has a manifest. `lost`: the places whose entries are."""

    next_seq: int
    parts: tuple[CheckpointedPart, ...]
    is_left: bool
    damage: CorruptData | None = None
    if_unsplit: bool = False
    lost: tuple[int, ...] = ()
    moved: Moved | None = None


def parts_of(
    state: LaneState, claim: Claim, key: ClaimKey, from_seq: int, abandoned_at: int | None
) -> ClaimParts:
    """From a place in the partition's chain on. `abandoned_at`: where this process, which owned the lane, has left it."""
    known = state.claims.get(key)
    if abandoned_at is None or may_be_transferred(key.prefix):
        # What its owner could not read may have been a transfer, by which another has it.
        abandoned_at = sys.maxsize
    if known is None:
        lost_at, is_front = state.first_lost(claim.since), claim.since < state.front
        lost_at = None if lost_at is not None and lost_at >= abandoned_at else lost_at
        if lost_at is None and not is_front:
            return ClaimParts(0, (), False)
        place = claim.since if lost_at is None else lost_at
        return ClaimParts(0, (), False, lost_place(state, claim, place), lost_at is None)
    lost_at = abandoned_at if known.lost_at is None else known.lost_at
    damage = None if lost_at >= abandoned_at else lost_place(state, claim, lost_at)
    parts, lost = state.parts_from(key, from_seq), tuple(sorted(state.lost))
    return ClaimParts(known.next_seq, parts, known.is_left, damage, lost=lost, moved=known.moved)


def doubt_of_transfer(state: LaneState, key: ClaimKey, since: int) -> int | None:
    """The place that is lost and may have held the transfer of the claim, which began at `since`."""
    return state.doubt_of(key, since) if may_be_transferred(key.prefix) else None


def lost_place(state: LaneState, claim: Claim, place: int) -> CorruptData:
    """Why nobody can go on there."""
    why = state.lost.get(place, "the lane's entry is missing")
    return CorruptData(
        LanePaths(claim.lane).entry(place), None, f"{why}; what it held of the partition is not known"
    )
