"""The part of a partition's chain that lies in a lane."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from logstore.engine.chain.link import FAR_FUTURE_MS, Link, link_of_fence, link_of_part
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.claim_parts import ClaimParts
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import Moved
from logstore.format.stored.part_rows import CheckpointedPart
from logstore.format.stored.segment import NO_TIMESTAMP
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.wrappers.slices import slice_key

logger = logging.getLogger(__name__)


class PartsBehind(NamedTuple):
    """What follows a tail in its lane. `is_stale`: some of what follows is not in the lane any more, but in the partition's
    manifest. `is_left`: nothing will follow there, and the partition's own chain may go on behind the last link. `is_moved`:
    the last link is a fence, and the chain goes on in the lane that it says. `damage`: there may be more, in an entry that
    is lost; `if_unsplit`: not if the partition has a manifest. `missing`: what is not there before a link, by the place of
    that: the entry's key."""

    links: list[Link]
    is_stale: bool
    is_left: bool
    is_moved: bool
    damage: CorruptData | None = None
    if_unsplit: bool = False
    missing: Mapping[int, str] = MappingProxyType({})


def parts_behind(
    lanes: LaneReader, paths: PartitionPaths, tail: ChainTail, since: float | None = None
) -> PartsBehind:
    """Two requests if nothing is new, for all partitions of the lane: none if it was read `since` then."""
    claim = tail.claim
    assert claim is not None, "only a claim leads into a lane"
    key = ClaimKey(paths.prefix, tail.epoch)
    found = lanes.look(claim, key, since, tail.next_seq)
    if found.damage is not None and paths.birth_lane is not None and not found.is_left:
        found = _behind_lost(lanes, key, tail, found, since)
    is_moved = found.moved is not None
    return PartsBehind(
        links_of(claim, found.parts, found.moved),
        found.next_seq > tail.next_seq,
        found.is_left and not is_moved,
        is_moved,
        found.damage,
        found.if_unsplit,
        _missing(claim, tail.next_seq, found),
    )


def _behind_lost(
    lanes: LaneReader, key: ClaimKey, tail: ChainTail, found: ClaimParts, since: float | None
) -> ClaimParts:
    """What is lost may be the transfer with which the claim went on: then the lane tells that has the next one."""
    seq = found.parts[-1].part.seq + 1 if found.parts else max(tail.next_seq, found.next_seq)
    moved = lanes.moved_to(key, seq, since)
    if moved is None:
        return found
    logger.error("%s; the chain goes on in lane %s, which says so", found.damage, moved.claim.lane)
    return found._replace(damage=None, is_left=True, moved=moved)


def links_of(claim: Claim, parts: Iterable[CheckpointedPart], moved: Moved | None) -> list[Link]:
    """The parts of a claim, and the fence with which it went on elsewhere."""
    lane = LanePaths(claim.lane)
    links = [
        link_of_part(part, slice_key(lane.entry(entry), part.position, part.size), claim)
        for entry, part in parts
    ]
    return links if moved is None else [*links, link_of_fence(moved)]


def _missing(claim: Claim, next_seq: int, found: ClaimParts) -> dict[int, str]:
    """Places of the chain that nothing is known of, with the entry in which they may have been."""
    missing: dict[int, str] = {}
    places = [(entry, part.seq) for entry, part in found.parts]
    if found.moved is not None:
        places.append((max(found.lost, default=claim.since) + 1, found.moved.fence.seq))
    for entry, seq in places:
        if seq > next_seq:
            lost = max((place for place in found.lost if place < entry), default=claim.since)
            missing[seq] = LanePaths(claim.lane).entry(lost)
        next_seq = seq + 1
    return missing


def add_part(view: ChainView, link: Link, missing: str | None) -> None:
    """The next part. If there is one missing before it, that becomes a row which raises when it is read: in that object."""
    base = link.header.base_offset
    if missing is not None and base > view.tail.end_offset:
        add_hole(view, base, missing)
    view.add(link)


def add_damage(view: ChainView, damage: CorruptData) -> None:
    """There may be more. It claims one offset, so that a reader meets the error instead of a quiet end."""
    end = view.tail.end_offset + 1
    add_hole(view, end, damage.key)
    view.tail = view.tail._replace(end_offset=end, damaged=damage)


def add_hole(view: ChainView, end_offset: int, key: str) -> None:
    """What comes next, up to that offset, is lost with the object of that key: a row that raises when it is read."""
    tail = view.tail
    view.segments.add_row(tail.next_seq, tail.end_offset, end_offset, 0, NO_TIMESTAMP, FAR_FUTURE_MS)
    view.segments.table.placed[tail.next_seq] = key
    view.segments.is_complete = False
