"""One segment of the chain, as its header or its tail tells it: one request each."""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.chain.newer_release import too_new
from logstore.engine.chain.segment_table import SegmentRef
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.entry import Part
from logstore.format.stored.extras import NO_EXTRAS, Claim, Extras
from logstore.format.stored.lane_checkpoint import Moved
from logstore.format.stored.segment import (
    NO_TIMESTAMP,
    TAIL_SIZE,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    parse_segment,
)
from logstore.layout.paths import LanePaths
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.slices import whole

_CLAIMING = SegmentFlags.FENCE | SegmentFlags.MERGED
FAR_FUTURE_MS = 2**62  # the newest timestamp of a segment that cannot be read: no look-up by time may skip it


class Link(NamedTuple):
    """One committed segment, as the chain sees it. `extras`: what it says beside its records, of a part of a lane's entry
    that the next one is in the lane, too; None if they are damaged, which only some need to know. `key`: the slice of an
    entry, if it is such a part; None if it is an object in the partition's own chain."""

    summary: SegmentSummary
    size: int
    extras: Extras | None = NO_EXTRAS
    key: str | None = None

    @property
    def said(self) -> Extras:
        """The extras, for those who need not know whether they are damaged."""
        return self.extras or NO_EXTRAS

    @property
    def header(self) -> SegmentHeader:
        return self.summary.header


def link_of_part(part: Part, key: str, claim: Claim) -> Link:
    """A part of a lane's entry, as its row in the entry's directory tells it."""
    header = SegmentHeader(
        seq=part.seq,
        epoch=part.claim.epoch,
        base_offset=part.base_offset,
        end_offset=part.end_offset,
        writer_id=bytes(16),
        created_at_ms=0,
        reserved_until=part.reserved_until,
        flags=SegmentFlags(part.flags),
    )
    summary = SegmentSummary(
        header, part.records, 0, part.min_timestamp_ms, part.max_timestamp_ms, part.size, 0, 0
    )
    return Link(summary, part.size, Extras(claim=claim), key)


def link_of_fence(moved: Moved) -> Link:
    """The fence of a claim that came from another lane, as that one tells it. There is no object of it."""
    link = link_of_part(moved.fence, "", moved.claim)
    return link._replace(extras=Extras(owner=moved.owner, claim=moved.claim), key=None)


def parse_front(key: str, front: bytes) -> SegmentHeader:
    try:
        return SegmentHeader.parse(front)
    except UnsupportedVersion as error:
        raise too_new(key, error) from error
    except FormatError as error:
        raise CorruptData(key, None, error.why) from error


def is_whole(link: Link, tail: bytes) -> bool:
    """Whether the tail is all there is of the segment, so that nobody needs to ask for it again."""
    return len(tail) == link.size and bool(link.summary.batches)


def link_of(store: ObjectStore, key: str, seq: int, tail: bytes | None) -> Link | None:
    """The segment `seq`, whose object ends with `tail`; None if there is none."""
    if not tail:
        return None  # or a put was cut off: nobody has committed it
    try:
        link = _parse_tail(store, key, tail)
    except ObjectNotFound:
        return None
    if link.header.seq != seq:
        raise CorruptData(key, link.header.base_offset, f"the object holds segment {link.header.seq}")
    return link


def _parse_tail(store: ObjectStore, key: str, tail: bytes) -> Link:
    try:
        summary = SegmentSummary.parse(tail, len(tail) if len(tail) < TAIL_SIZE else None)
    except UnsupportedVersion as error:
        raise too_new(key, error) from error
    except FormatError:
        return _link_from_whole(store, key)
    return Link(summary, summary.object_size, _extras(store, key, summary, tail))


def _extras(store: ObjectStore, key: str, summary: SegmentSummary, tail: bytes) -> Extras | None:
    """What the segment says beside its records. A fence, or a merged object, says where the chain goes on: nobody may go on
    behind one that cannot be read, which is `CorruptData`."""
    if not summary.extras_size:
        return NO_EXTRAS
    try:
        return summary.parse_extras(tail) or summary.parse_extras(store.get(key))
    except FormatError as damage:
        if summary.header.flags & _CLAIMING:
            raise CorruptData(key, summary.header.base_offset, damage.why) from damage
        return None


def _link_from_whole(store: ObjectStore, key: str) -> Link:
    """The tail is damaged: the batches, or at least the header, may still tell."""
    data = store.get(key)
    try:
        summary = parse_segment(data)[0]
        return Link(summary, len(data), _extras(store, key, summary, data))
    except UnsupportedVersion as error:
        raise too_new(key, error) from error
    except FormatError as damage:
        try:
            header = SegmentHeader.parse(data)
        except FormatError:
            raise CorruptData(key, None, damage.why) from damage
        if header.has_extras and header.flags & _CLAIMING:
            raise CorruptData(key, header.base_offset, damage.why) from damage
        # The offsets are known, so the chain goes on; reading them raises what is wrong.
        summary = SegmentSummary(header, 0, 0, NO_TIMESTAMP, FAR_FUTURE_MS, len(data), 0, 0)
        return Link(summary, len(data), None if header.has_extras else NO_EXTRAS)


def claim_of(key: str) -> Claim | None:
    """That of a part of a lane's entry, whose key it is; None for any other object. It began there or before, and no fence
    has ended it by then."""
    found = LanePaths.entry_of(whole(key))
    return None if found is None else Claim(*found)


def link_of_ref(store: ObjectStore, ref: SegmentRef) -> Link:
    """An object that a row names, and what it says beside its records."""
    try:
        return _parse_tail(store, ref.key, store.get(ref.key, -TAIL_SIZE))
    except FormatError as damage:
        raise CorruptData(ref.key, ref.base_offset, damage.why) from damage


def summary_of(store: ObjectStore, ref: SegmentRef) -> SegmentSummary:
    """Of an object that a row names."""
    try:
        return SegmentSummary.parse(store.get(ref.key, -TAIL_SIZE))
    except FormatError as damage:
        raise CorruptData(ref.key, ref.base_offset, damage.why) from damage
