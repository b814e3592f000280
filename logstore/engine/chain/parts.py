"""The part of a partition's chain that lies in a lane."""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.chain.link import Link, link_of_part
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.format.stored.entry import ClaimKey
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.wrappers.slices import slice_key


class PartsBehind(NamedTuple):
    """What follows a tail in its lane. `is_stale`: some of what follows is not in the lane any more, but in the partition's
    manifest. `is_left`: nothing will follow there, and the partition's own chain may go on behind the last link."""

    links: list[Link]
    is_stale: bool
    is_left: bool


def parts_behind(
    lanes: LaneReader, paths: PartitionPaths, tail: ChainTail, since: float | None = None
) -> PartsBehind:
    """Two requests if nothing is new, for all partitions of the lane: none if it was read `since` then."""
    claim = tail.claim
    assert claim is not None, "only a claim leads into a lane"
    found = lanes.look(claim, ClaimKey(paths.prefix, tail.epoch), since, tail.next_seq)
    lane = LanePaths(claim.lane)
    links = [
        link_of_part(part, slice_key(lane.entry(entry), part.position, part.size), claim)
        for entry, part in found.parts
    ]
    return PartsBehind(links, found.next_seq > tail.next_seq, found.is_left)
