"""The part of a partition's chain that lies in a lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from logstore.engine.chain.link import FAR_FUTURE_MS, Link, link_of_part
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.segment import NO_TIMESTAMP
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.wrappers.slices import slice_key


class PartsBehind(NamedTuple):
    """What follows a tail in its lane. `is_stale`: some of what follows is not in the lane any more, but in the partition's
    manifest. `is_left`: nothing will follow there, and the partition's own chain may go on behind the last link. `damage`:
    there may be more, in an entry that is lost; `if_unsplit`: not if the partition has a manifest. `missing`: what is not
    there before a link, by the place of that: the entry's key."""

    links: list[Link]
    is_stale: bool
    is_left: bool
    damage: CorruptData | None = None
    if_unsplit: bool = False
    missing: Mapping[int, str] = MappingProxyType({})


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
    missing: dict[int, str] = {}
    next_seq = tail.next_seq
    for entry, part in found.parts:
        if part.seq > next_seq:
            missing[part.seq] = lane.entry(
                max((seq for seq in found.lost if seq < entry), default=claim.since)
            )
        next_seq = part.seq + 1
    is_stale = found.next_seq > tail.next_seq
    return PartsBehind(links, is_stale, found.is_left, found.damage, found.if_unsplit, missing)


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
    view.tail = replace(view.tail, end_offset=end, damaged=damage)


def add_hole(view: ChainView, end_offset: int, key: str) -> None:
    """What comes next, up to that offset, is lost with the object of that key: a row that raises when it is read."""
    tail = view.tail
    view.segments.add_row(tail.next_seq, tail.end_offset, end_offset, 0, NO_TIMESTAMP, FAR_FUTURE_MS)
    view.segments.table.placed[tail.next_seq] = key
    view.segments.is_complete = False
