"""A partition as it was loaded: its segments and its tail, put together from what was listed.

Nothing here asks the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from logstore.engine.chain.horizon import Horizon
from logstore.engine.chain.link import FAR_FUTURE_MS, Link
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.tail import ChainTail
from logstore.errors import CorruptData
from logstore.format.stored.extras import NOTHING_CLEANED, Cleaned
from logstore.format.stored.manifest import FRONT_SIZE, Manifest, SegmentTable
from logstore.format.stored.segment import NO_TIMESTAMP, SegmentFlags
from logstore.layout.paths import PartitionPaths, version_of
from logstore.objects.protocol import ObjectInfo


@dataclass(slots=True)
class ChainView:
    """A partition as loaded: its segments and where its chain ends. `manifest_damaged`: they are told by the chain alone.

    `superseded`: objects that were listed without a manifest and hold nothing that a wider one does not hold, too.
    `settled`: how many rows, and which tail, come before the first part of a lane's entry; None if there is none.
    `parts`: those parts, empty ones too.
    `cleaned`: how far compaction by key has come, as the manifest says.
    `claims`: how many were met behind the manifest.
    """

    segments: Segments
    low_watermark: int
    tail: ChainTail
    manifest_version: int = 0
    manifest_next_seq: int = 0
    manifest_damaged: bool = False
    superseded: tuple[str, ...] = ()
    settled: tuple[int, ChainTail] | None = None
    parts: list[Link] = field(default_factory=list)
    cleaned: Cleaned = NOTHING_CLEANED
    claims: int = 0

    def add(self, link: Link) -> None:
        """The next segment of the chain."""
        if link.key is not None and self.settled is None:
            self.settled = len(self.segments), self.tail
        if self.settled is not None:
            self.parts.append(link)
        self.claims += link.key is None and link.said.claim is not None
        self.segments.add(link.header.seq, link.size, link.summary, link.key)
        self.tail = self.tail.after(link.header, link.said)

    @property
    def part_count(self) -> int:
        """How many of its segments are parts of lanes' entries."""
        return 0 if self.settled is None else len(self.segments) - self.settled[0]

    @property
    def lane_count(self) -> int:
        """In how many lanes whoever loads the partition has to look, because no manifest holds what it has there."""
        return max(self.claims, len({key.split("/")[1] for key in self.segments.table.placed.values()}))

    def without_parts(self) -> ChainView:
        """As far as a manifest can tell it: up to the first part of a lane's entry."""
        if self.settled is None:
            return self
        return self._up_to(*self.settled)

    def before(self, row: int) -> ChainView:
        """As it was before the part in this row was committed; the whole of it if there is no such row."""
        assert self.settled is not None, "only parts are taken off"
        tail, seqs = self.settled[1], self.segments.table.first_seq
        end_seq = seqs[row] if row < len(seqs) else self.tail.next_seq
        for link in self.parts:
            if link.header.seq < end_seq:
                tail = tail.after(link.header, link.said)
        return self._up_to(row, tail)

    def _up_to(self, row: int, tail: ChainTail) -> ChainView:
        table = SegmentTable()
        table.extend(self.segments.table, 0, row)
        segments = Segments(self.segments.paths, table, self.segments.is_complete)
        return replace(self, segments=segments, tail=tail, settled=None, parts=[])

    @classmethod
    def of(cls, paths: PartitionPaths, manifest: Manifest, packed: bytes) -> ChainView:
        """As far as the manifest knows it."""
        tail = ChainTail(
            manifest.next_seq,
            manifest.epoch,
            manifest.mode,
            manifest.end_offset,
            manifest.reserved_until,
            manifest.source_upper,
            owner=manifest.owner,
            closed=manifest.closed,
            claim=manifest.claim,
            horizon=Horizon(packed[:FRONT_SIZE], manifest.collected_until, manifest.low_watermark),
        )
        segments = Segments(paths, manifest.table)
        return cls(
            segments,
            manifest.low_watermark,
            tail,
            manifest.version,
            manifest.next_seq,
            cleaned=manifest.cleaned,
        )


class Stored(NamedTuple):
    """An object that holds the chain from `first` to `last`: a segment, or, with an identity, a merged object."""

    first: int
    last: int
    identity: str | None
    info: ObjectInfo


_first, _last = attrgetter("first"), attrgetter("last")


def in_order(segments: list[Stored], merged: list[Stored]) -> tuple[list[Stored], list[Stored]]:
    """Each part of the chain once: the widest merged object that holds it, else the segment itself. And what these hold,
    too.

    A merge takes whole rows of the manifest that it was made for. So one that lies across another was never named if it is
    the older of the two: its compaction died, and what it covers beside the newer one is elsewhere, or had expired.
    """
    chosen: list[Stored] = []
    rest: list[Stored] = []
    for one in sorted(
        merged, key=lambda it: (version_of(it.identity or ""), it.last - it.first), reverse=True
    ):
        begin, end = bisect_left(chosen, one.first, key=_last), bisect_right(chosen, one.last, key=_first)
        touched = chosen[begin:end]
        if len(touched) == 1 and (touched[0].first, touched[0].last) == (one.first, one.last):
            rest.append(one)  # compaction by key has rewritten it: the newer one counts
        elif not touched or (one.first <= touched[0].first and touched[-1].last <= one.last):
            chosen[begin:end] = [one]
            rest += touched
        elif touched[0].first <= one.first and one.last <= touched[0].last:
            rest.append(one)
    alone: list[Stored] = []
    for stored in segments:
        at = bisect_left(chosen, stored.first, key=_last)
        covered = at < len(chosen) and chosen[at].first <= stored.first
        (rest if covered else alone).append(stored)
    return sorted(chosen + alone, key=_first), rest


class Assembly:
    """Puts a view together from what was listed, in order.

    An object that is missing or unreadable becomes a row that raises when it is read, so that it does not make the rest of
    the partition unreadable. It reaches as far as the next one that can be read; several in a row are one row, under the
    name of the first.

    If there was a manifest and it cannot be read, what is missing before the first record is what retention has deleted, and
    the log begins there. (Without a manifest there was no retention, and what is missing is damage.)
    """

    def __init__(self, view: ChainView) -> None:
        self._view = view
        self._unreadable: list[tuple[Stored, CorruptData]] = []

    def add(self, stored: Stored, link: Link | CorruptData | None) -> None:
        view = self._view
        if isinstance(link, Link) and link.header.base_offset < view.tail.end_offset:
            link = CorruptData(
                stored.info.key,
                link.header.base_offset,
                f"it begins at offset {link.header.base_offset}, and the one before it ends at {view.tail.end_offset}",
            )
        if isinstance(link, Link) and SegmentFlags.COLLECTED in link.header.flags:
            if not len(view.segments):
                return  # retention has taken it away
            link = CorruptData(
                stored.info.key,
                link.header.base_offset,
                "its records were merged, and that object is missing",
            )
        if not isinstance(link, Link):
            gone = CorruptData(
                stored.info.key, view.tail.end_offset, "the segment vanished while it was read"
            )
            self._unreadable.append((stored, link or gone))
            return
        if view.manifest_damaged and not len(view.segments) and not self._unreadable:
            if self._is_missing_before(stored):
                view.low_watermark = link.header.base_offset
        elif link.header.base_offset > view.tail.end_offset and self._is_missing_before(stored):
            self._add_hole(link.header.base_offset)
        self._unreadable.clear()
        if stored.identity is None:
            view.add(link)
        else:
            view.segments.add_merged(stored.first, stored.last, stored.identity, link.size, link.summary)
            view.tail = view.tail.after(link.header, link.said)._replace(next_seq=stored.last + 1)

    def finish(self) -> None:
        """What is unreadable at the end claims one offset, so that a reader meets the error instead of a quiet end."""
        if not self._unreadable:
            return
        last, damage = self._unreadable[-1][0].last, self._unreadable[0][1]
        end = self._view.tail.end_offset + 1
        self._add_hole(end)
        self._view.tail = self._view.tail._replace(next_seq=last + 1, end_offset=end, damaged=damage)

    def _is_missing_before(self, stored: Stored) -> bool:
        return bool(self._unreadable) or stored.first != self._view.tail.next_seq

    def _add_hole(self, end_offset: int) -> None:
        view = self._view
        seq, size = view.tail.next_seq, 0
        if self._unreadable:
            seq, size = self._unreadable[0][0].first, self._unreadable[0][0].info.size
        view.segments.add_row(seq, view.tail.end_offset, end_offset, size, NO_TIMESTAMP, FAR_FUTURE_MS)
        view.segments.is_complete = False
