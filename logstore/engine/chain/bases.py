"""A partition that is known by what its lane says of it: its base in the lane's checkpoint, and its parts.

A base is what the lane's owner knew of the chain before the parts. Who makes a view of it is where a reader would be who
loaded the partition then and slept: since nobody goes on behind a claim before a seal in the lane names it, and the lane was
read to its end, the view ends where the partition does. Rows of it may name objects that compaction has replaced since: who
meets a missing one loads the partition again, as ever.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from logstore.engine.chain.horizon import NO_MANIFEST, Horizon
from logstore.engine.chain.link import link_of_part
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.known_lane import Based
from logstore.engine.lanes.lane_state import ClaimState
from logstore.format.errors import FormatError
from logstore.format.stored.claim_base import NO_ROWS, ClaimBase, Place
from logstore.format.stored.extras import Claim
from logstore.format.stored.manifest import FRONT_SIZE, SegmentTable, parse_front
from logstore.format.stored.segment import WriterMode
from logstore.layout.paths import LanePaths, PartitionPaths
from logstore.objects.wrappers.slices import parse_slice, slice_key

ROWS_MAX = 1024
"""Of a partition with more objects a checkpoint says nothing: its manifest does, with one request."""


class Settled(NamedTuple):
    """What an open partition knows of its chain before the parts of its claim. `until`: the place behind the last row;
    `first_part`: that of the first row that is a part, None if there is none; `tail`: the chain's; `low`: its watermark;
    `source`: the partition's table, of which `table` is the beginning."""

    table: SegmentTable
    until: int
    first_part: int | None
    tail: ChainTail
    low: int
    source: SegmentTable


def settled_of(
    segments: Segments, tail: ChainTail, first_seq: int, low: int, before: Settled | None = None
) -> Settled | None:
    """Of a chain whose parts have places from `first_seq` on; None if it is not known well enough. Asks nobody. `before`:
    what was said the last time. A table only grows, so behind the first part of it nothing else is new."""
    table = segments.table
    if before is not None and before.source is table and before.first_part is not None:
        is_known = segments.is_complete and not tail.deleted and tail.damaged is None
        return before._replace(tail=tail, low=low) if is_known else None
    row = bisect_left(table.first_seq, first_seq)
    while row < len(table) and table.first_seq[row] not in table.placed:
        row += 1
    if row > ROWS_MAX or not segments.is_complete or tail.deleted or tail.damaged is not None:
        return None
    rows = NO_ROWS
    if row:
        rows = SegmentTable()
        rows.extend(table, 0, row)
    first_part = table.first_seq[row] if row < len(table) else None
    return Settled(rows, table.last_seq[row - 1] + 1 if row else 0, first_part, tail, low, table)


def base_of(
    settled: Settled, claim: ClaimState, since: int, before: ClaimBase | None = None
) -> ClaimBase | None:
    """What a checkpoint says of the partition, whose parts are those of `claim`; None if the rows do not reach as far.
    `before`: what the last one said, which is given back if it is the same."""
    tail, next_seq = settled.tail, max(settled.until, claim.next_seq)
    if settled.first_part is not None and settled.first_part < next_seq:
        return None  # it was split out of the lane, and the partition does not know it yet
    if tail.next_seq < next_seq or len(tail.horizon.front) not in (0, FRONT_SIZE):
        return None
    end, reserved = claim.end_offset, claim.reserved_until
    if next_seq > claim.next_seq:
        at = claim.parts.first_from_seq(next_seq - 1)
        if at == len(claim.parts) or claim.parts[at].part.seq != next_seq - 1:
            return None
        end, reserved = claim.parts[at].part.end_offset, claim.parts[at].part.reserved_until
    said = (next_seq, end, reserved, tail.source_upper, since, tail.owner, tail.horizon.front)
    if before is not None and before.table is settled.table and before.said == said:
        return before
    return _base(
        settled.table, tail._replace(next_seq=next_seq, end_offset=end, reserved_until=reserved), since
    )


def base_of_view(view: ChainView) -> ClaimBase | None:
    """Of a partition that is in a lane, whose parts are all in its manifest; None if there is too much of it."""
    tail = view.tail
    if tail.claim is None or len(view.segments) > ROWS_MAX or not view.segments.is_complete:
        return None
    rows = SegmentTable()
    rows.extend(view.segments.table, 0, len(view.segments))
    return None if tail.deleted else _base(rows, tail, tail.claim.since)


def _base(rows: SegmentTable, tail: ChainTail, since: int) -> ClaimBase:
    """`rows`: nobody adds to them."""
    places = {seq: _place_of(key) for seq, key in rows.placed.items()}
    return ClaimBase(
        tail.next_seq,
        tail.end_offset,
        tail.reserved_until,
        tail.source_upper,
        since,
        tail.owner,
        tail.horizon.front,
        rows,
        places,
    )


def view_of(paths: PartitionPaths, lane: str, based: Based) -> ChainView | None:
    """The partition as the lane tells it; None if that cannot be understood here."""
    base, claim = based.base, Claim(lane, based.base.since)
    try:
        front = parse_front(base.front) if base.front else None
    except FormatError:
        return None
    table = SegmentTable()
    table.extend(base.table, bisect_left(base.table.end_offset, based.low + 1), len(base.table))
    for seq, size in zip(table.first_seq, table.size, strict=True):
        place = base.placed.get(seq)
        if place is not None:
            table.placed[seq] = slice_key(LanePaths(place.lane).entry(place.entry), place.position, size)
    tail = ChainTail(
        base.next_seq,
        based.key.epoch,
        WriterMode.EXCLUSIVE,
        base.end_offset,
        base.reserved_until,
        base.source_upper,
        horizon=NO_MANIFEST
        if front is None
        else Horizon(base.front, front.collected_until, front.low_watermark),
        owner=base.owner,
        claim=claim,
    )
    view = ChainView(Segments(paths, table), based.low, tail)
    if front is not None:
        view.manifest_version, view.manifest_next_seq = front.version, front.next_seq
    entry = LanePaths(lane).entry
    for stored in based.parts:
        part = stored.part
        if part.seq > view.tail.next_seq:
            return None  # one is missing before it
        if part.seq >= base.next_seq:
            view.add(link_of_part(part, slice_key(entry(stored.entry), part.position, part.size), claim))
    return view


def _place_of(key: str) -> Place:
    entry, position, _ = parse_slice(key)
    found = LanePaths.entry_of(entry)
    assert found is not None, "only parts of entries are slices"
    return Place(*found, position)
