"""The part of a partition's chain that lies in a lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from logstore.engine.chain.link import Link, link_of_fence, link_of_part
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import CheckpointedPart, Moved
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.wrappers.slices import slice_key


class PartsBehind(NamedTuple):
    """What follows a tail in its lane. `is_stale`: some of what follows is not in the lane any more, but in the partition's
    manifest. `is_left`: nothing will follow there, and the partition's own chain may go on behind the last link. `is_moved`:
    the last link is a fence, and the chain goes on in the lane that it says."""

    links: list[Link]
    is_stale: bool
    is_left: bool
    is_moved: bool


def parts_behind(
    lanes: LaneReader, paths: PartitionPaths, tail: ChainTail, since: float | None = None
) -> PartsBehind:
    """Two requests if nothing is new, for all partitions of the lane: none if it was read `since` then."""
    claim = tail.claim
    assert claim is not None, "only a claim leads into a lane"
    found = lanes.look(claim, ClaimKey(paths.prefix, tail.epoch), since, tail.next_seq)
    links = links_of(claim, found.parts, found.moved)
    is_moved = found.moved is not None
    return PartsBehind(links, found.next_seq > tail.next_seq, found.is_left and not is_moved, is_moved)


def links_of(claim: Claim, parts: Iterable[CheckpointedPart], moved: Moved | None) -> list[Link]:
    """The parts of a claim, and the fence with which it went on elsewhere."""
    lane = LanePaths(claim.lane)
    links = [
        link_of_part(part, slice_key(lane.entry(entry), part.position, part.size), claim)
        for entry, part in parts
    ]
    return links if moved is None else [*links, link_of_fence(moved)]
