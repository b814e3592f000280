"""The chain of a partition in the object store: commit, judge, follow, load.

The one commit is `put(‹seq›.seg, if_absent=True)`. Whoever creates the object at `seq` has committed; nobody overwrites it,
and nobody can create it twice. What the store answers may be lost, so the answer alone is never believed when there is
doubt: the object that stands at `seq` is read, and its writer id, random and new for each segment, says whose it is.

Nothing here holds state or a lock: every call says what it knows and gets back what it learned. An exception from the store
that is not one of ours counts as Indeterminate.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from logstore.engine.segments import Segments
from logstore.errors import CorruptData, Determinate, Indeterminate, ObjectNotFound, PreconditionFailed
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.manifest import Manifest, SegmentTable
from logstore.format.segment import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    TAIL_SIZE,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    WriterMode,
    parse_segment,
)
from logstore.objects.protocol import ObjectInfo, ObjectStore
from logstore.paths import PartitionPaths

logger = logging.getLogger(__name__)

_PARALLEL_FROM = 8  # tails to read before threads pay for themselves
_PARALLEL = 8
FAR_FUTURE_MS = 2**62  # the newest timestamp of a segment that cannot be read: no look-up by time may skip it


@dataclass(frozen=True, slots=True)
class ChainTail:
    """Where the chain ends, as last seen."""

    next_seq: int = 0
    epoch: int = 0
    mode: WriterMode = WriterMode.EXCLUSIVE
    end_offset: int = 0
    reserved_until: int = 0
    source_upper: int = -1
    deleted: bool = False
    damaged: CorruptData | None = None

    @property
    def start_offset(self) -> int:
        """Where a new writer starts: past everything stored and everything that readers may have seen."""
        return max(self.end_offset, self.reserved_until)

    def after(self, header: SegmentHeader) -> ChainTail:
        """The tail once `header`'s segment stands."""
        upper = header.source_upper if header.mode is WriterMode.REPLICATED else self.source_upper
        return ChainTail(
            next_seq=header.seq + 1,
            epoch=header.epoch,
            mode=header.mode,
            end_offset=header.end_offset,
            reserved_until=header.reserved_until,
            source_upper=upper,
            deleted=SegmentFlags.DELETED in header.flags,
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One committed segment, as the chain sees it."""

    summary: SegmentSummary
    size: int

    @property
    def header(self) -> SegmentHeader:
        return self.summary.header


class LostRace(Exception):
    """Another writer's segment stands where ours was to be. Internal: each kind of writer decides what it means."""

    def __init__(self, winner: SegmentHeader) -> None:
        super().__init__(f"segment {winner.seq} was written by another writer, of epoch {winner.epoch}")
        self.winner = winner


@dataclass(slots=True)
class ChainView:
    """A partition as loaded: its segments and where its chain ends."""

    segments: Segments
    low_watermark: int
    tail: ChainTail
    manifest_version: int = 0
    manifest_etag: str | None = None
    manifest_next_seq: int = 0

    def absorb(self, link: Link) -> None:
        """Take in the next segment of the chain."""
        self.segments.add(link.header.seq, link.size, link.summary)
        self.tail = self.tail.after(link.header)


class Chain:
    def __init__(self, store: ObjectStore, paths: PartitionPaths) -> None:
        self.store = store
        self.paths = paths

    def commit(self, header: SegmentHeader, data: bytes) -> None:
        """Create the segment. Returns once it is certain that it stands and is ours.

        Raises `LostRace` if another's stands there, `Determinate` if surely nothing happened, `Indeterminate` if it may
        have: then call again with the same header and bytes.
        """
        key = self.paths.segment(header.seq)
        try:
            self.store.put(key, data, if_absent=True)
        except PreconditionFailed:
            winner = self.header_at(header.seq)
        except Determinate:
            raise
        except Exception as doubt:
            winner = self._look_after(header.seq, doubt)
        else:
            return
        if winner is None:
            raise Indeterminate(
                f"{key}: the store refused it as existing and then did not show it; asking again"
            )
        if winner.writer_id != header.writer_id:
            raise LostRace(winner)

    def _look_after(self, seq: int, doubt: Exception) -> SegmentHeader:
        """After a lost answer: who stands at `seq`? Still Indeterminate if nobody, or if that cannot be read."""
        try:
            found = self.header_at(seq)
        except CorruptData:
            raise
        except Exception as error:
            raise Indeterminate(
                f"{self.paths.segment(seq)}: {doubt}; and it could not be read back: {error}"
            ) from error
        if found is None:
            raise Indeterminate(f"{self.paths.segment(seq)}: {doubt}; it is not there yet") from doubt
        return found

    def header_at(self, seq: int) -> SegmentHeader | None:
        """The header of the segment that stands at `seq`; None if none does."""
        key = self.paths.segment(seq)
        try:
            return SegmentHeader.parse(self.store.get(key, 0, HEADER_SIZE))
        except ObjectNotFound:
            return None
        except FormatError as error:
            raise CorruptData(key, None, error.why) from error

    def link_at(self, seq: int) -> Link | None:
        """The segment that stands at `seq`, with one request; None if none does."""
        key = self.paths.segment(seq)
        try:
            tail = self.store.get(key, -TAIL_SIZE)
        except ObjectNotFound:
            return None
        try:
            summary = SegmentSummary.parse(tail, len(tail) if len(tail) < TAIL_SIZE else None)
        except UnsupportedVersion as error:
            raise CorruptData(key, None, error.why) from error
        except FormatError:
            return self._link_from_whole(key)
        return Link(summary, summary.object_size)

    def _link_from_whole(self, key: str) -> Link:
        """The tail is damaged: the batches, or at least the header, may still tell."""
        data = self.store.get(key)
        try:
            return Link(parse_segment(data)[0], len(data))
        except FormatError as damage:
            try:
                header = SegmentHeader.parse(data)
            except FormatError:
                raise CorruptData(key, None, damage.why) from damage
            # The offsets are known, so the chain goes on; reading them raises what is wrong.
            summary = SegmentSummary(header, 0, 0, NO_TIMESTAMP, FAR_FUTURE_MS, len(data), 0, 0)
            return Link(summary, len(data))

    def follow(self, tail: ChainTail) -> list[Link]:
        """What was committed after `tail`, in order. One request if nothing was."""
        links: list[Link] = []
        seq = tail.next_seq
        while (link := self.link_at(seq)) is not None:
            links.append(link)
            seq += 1
        return links

    def load(self) -> ChainView:
        """GET the manifest, LIST what is newer, one tail GET for each newer segment."""
        try:
            view = self._from_manifest()
        except FormatError as damage:
            # A checkpoint can be done without: the chain is read from its start, and merged objects stand in for what
            # they replaced. Only what maintenance decided about the log's beginning may have to be decided again.
            logger.error("%s: %s; the chain is read without it", self.paths.manifest, damage)
            view = self._from_merged()
        listed: list[tuple[int, ObjectInfo]] = []
        after = self.paths.segment(view.tail.next_seq - 1) if view.tail.next_seq else self.paths.prefix
        for info in self.store.list(self.paths.prefix, after):
            seq = self.paths.seq_of(info.key)
            if seq is None:
                break  # digits sort first: behind the segments only the manifest and merged objects follow
            listed.append((seq, info))
        for (seq, info), link in zip(listed, self._links([seq for seq, _ in listed]), strict=True):
            self._take_in(view, seq, info, link)
        return view

    def _from_manifest(self) -> ChainView:
        try:
            data = self.store.get(self.paths.manifest)
        except ObjectNotFound:
            return ChainView(Segments(self.paths, SegmentTable()), 0, ChainTail())
        try:
            manifest = Manifest.parse(data)
        except UnsupportedVersion as error:
            raise CorruptData(self.paths.manifest, None, error.why) from error
        tail = ChainTail(
            manifest.next_seq,
            manifest.epoch,
            manifest.mode,
            manifest.end_offset,
            manifest.reserved_until,
            manifest.source_upper,
        )
        segments = Segments(self.paths, manifest.table)
        return ChainView(segments, manifest.low_watermark, tail, manifest.version, None, manifest.next_seq)

    def _from_merged(self) -> ChainView:
        """As much of the chain as merged objects tell, when there is no manifest that names them."""
        view = ChainView(Segments(self.paths, SegmentTable()), 0, ChainTail())
        found: dict[int, tuple[int, str, ObjectInfo]] = {}
        for info in self.store.list(self.paths.merged_prefix):
            named = self.paths.merged_name(info.key)
            if named is not None and named[1] >= found.get(named[0], (-1, ""))[0]:
                found[named[0]] = (named[1], named[2], info)
        return view if not found else self._with_merged(view, found)

    def _with_merged(self, view: ChainView, found: dict[int, tuple[int, str, ObjectInfo]]) -> ChainView:
        """Go along the chain, taking a merged object where one starts and the segment itself where none does."""
        while True:
            seq = view.tail.next_seq
            if seq in found:
                last, identity, info = found[seq]
                summary = SegmentSummary.parse(self.store.get(info.key, -TAIL_SIZE))
                view.segments.add_merged(seq, last, identity, info.size, summary)
                view.tail = replace(view.tail.after(summary.header), next_seq=last + 1)
                continue
            link = self.link_at(seq)
            if link is None and not any(first > seq for first in found):
                return view
            if link is not None:
                view.absorb(link)
            else:
                view.tail = replace(view.tail, next_seq=min(first for first in found if first > seq))

    def _links(self, seqs: list[int]) -> list[Link | CorruptData | None]:
        def one(seq: int) -> Link | CorruptData | None:
            try:
                return self.link_at(seq)
            except CorruptData as damage:
                return damage

        if len(seqs) < _PARALLEL_FROM:
            return [one(seq) for seq in seqs]
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="logstore-open") as pool:
            return list(pool.map(one, seqs))

    def _take_in(self, view: ChainView, seq: int, info: ObjectInfo, link: Link | CorruptData | None) -> None:
        """One listed segment. A missing or unreadable one is kept as a row that raises when it is read: one bad object
        must not make the rest of a partition unreadable."""
        if isinstance(link, Link):
            if view.tail.next_seq == 0:
                view.low_watermark = link.header.base_offset  # what was before has been deleted by retention
            elif seq != view.tail.next_seq or view.tail.damaged is not None:
                self._bridge(view, link)
            view.absorb(link)
            return
        base = view.tail.end_offset
        damage = link or CorruptData(info.key, base, "the segment vanished while it was read")
        # At least one offset is claimed, so that a reader meets the error instead of a quiet end.
        view.segments.add_row(seq, base, base + 1, info.size, NO_TIMESTAMP, FAR_FUTURE_MS)
        view.tail = replace(view.tail, next_seq=seq + 1, end_offset=base + 1, damaged=damage)

    @staticmethod
    def _bridge(view: ChainView, link: Link) -> None:
        """`link` follows something missing or unreadable: its base says up to where that reached."""
        table, tail, base = view.segments.table, view.tail, link.header.base_offset
        if tail.damaged is not None:
            table.end_offset[-1] = base
            if table.base_offset[-1] >= base:  # it held no records
                for column in table.columns():
                    column.pop()
        elif base > tail.end_offset:
            view.segments.add_row(tail.next_seq, tail.end_offset, base, 0, NO_TIMESTAMP, FAR_FUTURE_MS)
