"""The chain of a partition in the object store: commit, judge, follow, load.

The one commit is `put(‹seq›.seg, if_absent=True)`. Whoever creates the object at `seq` has committed; nobody can create it
twice. What the store answers may be lost, so the answer alone is never believed when there is doubt: the object that stands
at `seq` is read, and its writer id, random and new for each segment, says whose it is.

**Places that are emptied.** A place that garbage collection has emptied looks like one that was never used, and no clock
tells them apart. So most places are never emptied: fences stay, the newest segment stays, and every segment of a shared or
replicated writer, and the last one of each exclusive epoch, leaves its header (see `maintenance`). Only the data in the
middle of an exclusive epoch goes. Whoever looks behind an exclusive writer's segment, to read or to create a fence there,
therefore reads the manifest's horizon afterwards (`Horizon`), which is stored before anything is emptied: if it has passed
the place where the look began, nothing that was seen counts, and the chain is loaded again.

Nothing here holds state or a lock: every call says what it knows and gets back what it learned. An exception from the store
that is not one of ours counts as Indeterminate.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.host.fan_out import fan_out
from logstore.errors import (
    CorruptData,
    Indeterminate,
    ObjectNotFound,
    OutcomeUnknown,
    UnsupportedStore,
)
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.manifest import FRONT_SIZE, Manifest, SegmentTable, parse_horizon
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
from logstore.layout.paths import PartitionPaths, version_of
from logstore.objects.protocol import ObjectInfo, ObjectStore
from logstore.objects.settled import settle

logger = logging.getLogger(__name__)

_UNLISTED_MAX = 256
FAR_FUTURE_MS = 2**62  # the newest timestamp of a segment that cannot be read: no look-up by time may skip it


class Horizon(NamedTuple):
    """The front of a partition's manifest, and what it says: places below `collected_until` may have been emptied.

    `front` is empty if there is no manifest. Manifests are never the same twice, so an equal front is the same manifest.
    """

    front: bytes = b""
    collected_until: int = 0

    def covers(self, until: int) -> bool:
        """Whether it certainly says that places below `until` may have been emptied."""
        return until <= self.collected_until < _UNREADABLE


NO_MANIFEST = Horizon()
_UNREADABLE = 2**62  # the horizon of a manifest that is damaged: any place may have been emptied


@dataclass(frozen=True, slots=True)
class ChainTail:
    """Where the chain ends, as last seen. `horizon`: the manifest's, when the chain was loaded."""

    next_seq: int = 0
    epoch: int = 0
    mode: WriterMode = WriterMode.EXCLUSIVE
    end_offset: int = 0
    reserved_until: int = 0
    source_upper: int = -1
    deleted: bool = False
    damaged: CorruptData | None = None
    horizon: Horizon = NO_MANIFEST

    @property
    def start_offset(self) -> int:
        """Where a new writer starts: past everything stored and everything that readers may have seen."""
        return max(self.end_offset, self.reserved_until)

    def after(self, header: SegmentHeader) -> ChainTail:
        """The tail once `header`'s segment is committed."""
        upper = header.source_upper if header.source_upper >= 0 else self.source_upper
        return ChainTail(
            next_seq=header.seq + 1,
            epoch=header.epoch,
            mode=header.mode,
            end_offset=header.end_offset,
            reserved_until=header.reserved_until,
            source_upper=upper,
            deleted=SegmentFlags.DELETED in header.flags,
            horizon=self.horizon,
        )

    @property
    def may_be_emptied(self) -> bool:
        """Whether the next place may have been used and emptied: it may hold the data of the exclusive writer before it."""
        return self.next_seq > 0 and self.mode is WriterMode.EXCLUSIVE


@dataclass(frozen=True, slots=True)
class Link:
    """One committed segment, as the chain sees it."""

    summary: SegmentSummary
    size: int

    @property
    def header(self) -> SegmentHeader:
        return self.summary.header


class StalePlace(Exception):
    """The chain has gone on from this place long ago, and what was there was collected. Internal: whoever is there loads
    the chain again. `found`: the header that garbage collection has left there.

    Without one the place was emptied, and what was created there is in the past and is no part of the chain. It stays
    where it is: nobody who goes by the rules believes it.
    """

    def __init__(self, seq: int, found: SegmentHeader | None = None) -> None:
        super().__init__(f"the chain has gone on from {seq} long ago")
        self.found = found


class LostRace(Exception):
    """Another writer's segment is committed where ours was to be. Internal: each kind of writer decides what it means."""

    def __init__(self, winner: SegmentHeader) -> None:
        super().__init__(f"segment {winner.seq} was written by another writer, of epoch {winner.epoch}")
        self.winner = winner


@dataclass(slots=True)
class ChainView:
    """A partition as loaded: its segments and where its chain ends. `manifest_damaged`: they are told by the chain alone.

    `superseded`: objects that were listed without a manifest and hold nothing that a wider one does not hold, too.
    """

    segments: Segments
    low_watermark: int
    tail: ChainTail
    manifest_version: int = 0
    manifest_next_seq: int = 0
    manifest_damaged: bool = False
    superseded: tuple[str, ...] = ()

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
            horizon=Horizon(packed[:FRONT_SIZE], manifest.collected_until),
        )
        segments = Segments(paths, manifest.table)
        return cls(segments, manifest.low_watermark, tail, manifest.version, manifest.next_seq)


class Chain:
    """`rng`: where nonces come from; a test passes its own."""

    def __init__(self, store: ObjectStore, paths: PartitionPaths, rng: random.Random | None = None) -> None:
        self.store = store
        self.paths = paths
        self._rng = rng or random.SystemRandom()

    def new_nonce(self) -> bytes:
        """For a manifest: random, so that no two are the same."""
        return self._rng.randbytes(8)

    def commit(self, header: SegmentHeader, data: memoryview) -> bool:
        """Create the segment. Returns once it is certain that it exists and is ours: True, or False if garbage collection
        has taken its records along since, into a merged object.

        Raises `LostRace` if another's is there, `Determinate` if surely nothing happened, `Indeterminate` if it may
        have: then call again with the same header and bytes.
        """
        key = self.paths.segment(header.seq)
        found: SegmentHeader | None = None
        is_torn = False

        def look() -> SegmentHeader | None:
            nonlocal found, is_torn
            front = self._front_of(key)
            is_torn = front == b""
            found = self._parse_header(key, front) if front else None
            return found

        def is_ours(standing: SegmentHeader) -> bool:
            return standing.writer_id == header.writer_id

        try:
            winner = settle(key, lambda: self.store.put(key, data, if_absent=True), look, is_ours)
        except Indeterminate:
            if not is_torn:
                raise
            if self._goes_on_behind(header.seq) and self._front_of(key) == b"":
                raise OutcomeUnknown(
                    f"{key}: the chain has gone on from here, and garbage collection was cut off as it left a header: no "
                    "bytes are there, and whose segment it was cannot be told any more. Open the partition again"
                ) from None
            winner = settle(key, lambda: self._replace_torn(key, data), look, is_ours)
        if winner is not None:
            raise LostRace(winner)
        return found is None or SegmentFlags.COLLECTED not in found.flags

    def _replace_torn(self, key: str, data: memoryview) -> None:
        """An object of no bytes is there: a server was killed in the middle of a put, whose caller was told nothing.
        Nobody can have committed it, and nobody could go past it. It is replaced if nobody else does."""
        torn = self.store.head(key)
        if torn is None or torn.size:
            raise Indeterminate(f"{key}: it had no bytes and has changed since; asking again")
        logger.warning(
            "%s: an object of no bytes stood there, left by a put that was cut off; replacing it", key
        )
        self.store.put(key, data, if_match=torn.etag)

    def _goes_on_behind(self, seq: int) -> bool:
        """Whether a later segment is committed: the newest one always stands."""
        later = self.store.list(self.paths.prefix, self.paths.segment(seq))
        return any(info.size and self.paths.seq_of(info.key) is not None for info in later)

    def horizon(self) -> Horizon:
        """The manifest's, as it is now: one small request."""
        key = self.paths.manifest
        try:
            front = self.store.get(key, 0, FRONT_SIZE)
            try:
                return Horizon(front, parse_horizon(front))
            except UnsupportedVersion:
                return Horizon(front, Manifest.parse(self.store.get(key)).collected_until)
        except ObjectNotFound:
            return NO_MANIFEST
        except UnsupportedVersion as error:
            raise too_new(key, error) from error
        except FormatError:
            return Horizon(front, _UNREADABLE)

    def is_past(self, seq: int, since: Horizon, found_at: int | None = None) -> bool:
        """Whether places from `seq` on may have been emptied before now. `since`: the horizon when `seq` was surely right.
        A manifest that is the same has emptied nothing since, also if it is damaged; one that is gone tells nothing.

        Where there is none, as there was none before, there may have been one in between. So who has created or found
        something, at `found_at` at last, looks there whether the chain goes on behind it: only one listing tells.
        """
        now = self.horizon()
        if now.front or since.front:
            return now.front != since.front and (now.collected_until > seq or not now.front)
        return found_at is not None and self._goes_on_behind(found_at)

    def header_at(self, seq: int) -> SegmentHeader | None:
        """The header of the segment at `seq`; None if there is none."""
        key = self.paths.segment(seq)
        front = self._front_of(key)
        return self._parse_header(key, front) if front else None

    def _front_of(self, key: str) -> bytes | None:
        try:
            return self.store.get(key, 0, HEADER_SIZE)
        except ObjectNotFound:
            return None

    @staticmethod
    def _parse_header(key: str, front: bytes) -> SegmentHeader:
        try:
            return SegmentHeader.parse(front)
        except UnsupportedVersion as error:
            raise too_new(key, error) from error
        except FormatError as error:
            raise CorruptData(key, None, error.why) from error

    def first_of(self, epoch: int, since: int) -> SegmentHeader | None:
        """The first segment from `since` on that is of `epoch` or a later one, among those that still exist. Epochs only
        rise, so few are asked for."""
        standing = [stored.first for stored in self._listed(since, with_merged=False)[0]]
        found = None
        while standing:
            middle = len(standing) // 2
            header = self.header_at(standing[middle])
            if header is None:
                del standing[middle]  # it went meanwhile
            elif header.epoch < epoch:
                del standing[: middle + 1]
            else:
                found = header
                del standing[middle:]
        return found

    def link_at(self, seq: int) -> Link | None:
        """The segment at `seq`, with one request; None if there is none. `StalePlace` if garbage collection was cut off in
        the middle of leaving a header there."""
        key = self.paths.segment(seq)
        tail = self._tail_of(key)
        if tail == b"" and self._goes_on_behind(seq):
            raise StalePlace(seq)
        return self._link(key, seq, tail)

    def _tail_of(self, key: str) -> bytes | None:
        try:
            return self.store.get(key, -TAIL_SIZE)
        except ObjectNotFound:
            return None

    def _link(self, key: str, seq: int, tail: bytes | None) -> Link | None:
        if not tail:
            return None  # or a put was cut off: nobody has committed it
        try:
            link = self._parse_tail(key, tail)
        except ObjectNotFound:
            return None
        if link.header.seq != seq:
            raise CorruptData(key, link.header.base_offset, f"the object holds segment {link.header.seq}")
        return link

    def _parse_tail(self, key: str, tail: bytes) -> Link:
        try:
            summary = SegmentSummary.parse(tail, len(tail) if len(tail) < TAIL_SIZE else None)
        except UnsupportedVersion as error:
            raise too_new(key, error) from error
        except FormatError:
            return self._link_from_whole(key)
        return Link(summary, summary.object_size)

    def _link_from_whole(self, key: str) -> Link:
        """The tail is damaged: the batches, or at least the header, may still tell."""
        data = self.store.get(key)
        try:
            return Link(parse_segment(data)[0], len(data))
        except UnsupportedVersion as error:
            raise too_new(key, error) from error
        except FormatError as damage:
            try:
                header = SegmentHeader.parse(data)
            except FormatError:
                raise CorruptData(key, None, damage.why) from damage
            # The offsets are known, so the chain goes on; reading them raises what is wrong.
            summary = SegmentSummary(header, 0, 0, NO_TIMESTAMP, FAR_FUTURE_MS, len(data), 0, 0)
            return Link(summary, len(data))

    def follow(self, tail: ChainTail) -> list[Link] | None:
        """What was committed after `tail`, in order; None if that cannot be told from here, because places behind it were
        emptied: `load` tells. If nothing was committed it takes one request, two behind an exclusive writer's segment."""
        links: list[Link] = []
        seq, doubtful = tail.next_seq, tail.next_seq if tail.may_be_emptied else None
        try:
            while (link := self.link_at(seq)) is not None:
                if SegmentFlags.COLLECTED in link.header.flags:
                    return None
                links.append(link)
                seq += 1
                if doubtful is None and link.header.mode is WriterMode.EXCLUSIVE:
                    doubtful = seq
        except StalePlace:
            return None
        if doubtful is None:
            return links
        return None if self.is_past(doubtful, tail.horizon, seq if links else None) else links

    def holds(self, refs: Iterable[SegmentRef]) -> bool:
        """Whether the store has all of these objects, as large as the rows say: one listing."""
        sizes = {info.key: info.size for info in self.store.list(self.paths.prefix)}
        return all(sizes.get(ref.key) == ref.size for ref in refs)

    def load(self) -> ChainView:
        """GET the manifest, LIST what is newer, one tail GET for each newer segment, and a look at the horizon.

        A manifest that is missing or damaged can be done without: the chain is read from its start, and merged objects
        stand in for what they replaced. Only where the log begins may have to be decided by maintenance again.

        What is missing is looked for twice: it may have gone while the rest was read, with all of its topic.
        """
        while True:
            view = self._load()
            if not view.segments.is_complete and not view.tail.deleted:
                view = self._load()
            if view.tail.next_seq == view.manifest_next_seq:
                return view  # the newest segment always stays, so a listing without one behind the manifest's is the end
            if not self.is_past(view.manifest_next_seq, view.tail.horizon):
                return view

    def _load(self) -> ChainView:
        try:
            view = self._from_manifest()
        except FormatError as damage:
            logger.error("%s: %s; the chain is read without it", self.paths.manifest, damage)
            empty = Segments(self.paths, SegmentTable())
            view = ChainView(empty, 0, ChainTail(horizon=self.horizon()), manifest_damaged=True)
        listed, superseded = self._listed(view.tail.next_seq, with_merged=not view.manifest_version)
        view.superseded = tuple(stored.info.key for stored in superseded)
        if not view.manifest_damaged:
            listed = self._with_unlisted(view.tail.next_seq, listed)
        assembly = _Assembly(view)
        for stored, link in zip(listed, self._links(listed), strict=True):
            assembly.add(stored, link)
        assembly.finish()
        return view

    def _from_manifest(self) -> ChainView:
        try:
            data = self.store.get(self.paths.manifest)
        except ObjectNotFound:
            return ChainView(Segments(self.paths, SegmentTable()), 0, ChainTail())
        try:
            manifest = Manifest.parse(data)
        except UnsupportedVersion as error:
            raise too_new(self.paths.manifest, error) from error
        return ChainView.of(self.paths, manifest, data)

    def _listed(self, next_seq: int, *, with_merged: bool) -> tuple[list[_Stored], list[_Stored]]:
        """The objects that hold the chain from `next_seq` on, and those that are not needed for that: one listing."""
        after = self.paths.segment(next_seq - 1) if next_seq else self.paths.prefix
        segments: list[_Stored] = []
        merged: list[_Stored] = []
        for info in self.store.list(self.paths.prefix, after):
            seq = self.paths.seq_of(info.key)
            if seq is not None:
                if info.size:  # one of no bytes is a put that was cut off
                    segments.append(_Stored(seq, seq, None, info))
            elif not with_merged:
                if info.key >= self.paths.manifest:
                    break  # digits sort first: behind the segments only the manifest, merged objects and wishes follow
            elif named := self.paths.merged_name(info.key):
                merged.append(_Stored(*named, info))
        if merged:  # one that cannot be read stands for nothing: what it replaced may still be there
            merged = [
                one for one, link in zip(merged, self._links(merged), strict=True) if isinstance(link, Link)
            ]
        return _in_order(segments, merged)

    def _with_unlisted(self, next_seq: int, listed: list[_Stored]) -> list[_Stored]:
        """A listing is no snapshot: it may show a segment and not the one before it, which came while names were read. So
        what is missing in between is asked for by name. More than a few are damage, and are not looked for."""
        whole: list[_Stored] = []
        for stored in listed:
            missing = range(next_seq, stored.first)
            for seq in missing if len(missing) <= _UNLISTED_MAX else ():
                info = self.store.head(self.paths.segment(seq))
                if info is not None and info.size:
                    whole.append(_Stored(seq, seq, None, info))
            whole.append(stored)
            next_seq = stored.last + 1
        return whole

    def _links(self, listed: list[_Stored]) -> list[Link | CorruptData | None]:
        def one(stored: _Stored) -> Link | CorruptData | None:
            try:
                return self._link(stored.info.key, stored.first, self._tail_of(stored.info.key))
            except CorruptData as damage:
                return damage

        return list(fan_out(partial(one, stored) for stored in listed))


class _Stored(NamedTuple):
    """An object that holds the chain from `first` to `last`: a segment, or, with an identity, a merged object."""

    first: int
    last: int
    identity: str | None
    info: ObjectInfo


_first, _last = attrgetter("first"), attrgetter("last")


def _in_order(segments: list[_Stored], merged: list[_Stored]) -> tuple[list[_Stored], list[_Stored]]:
    """Each part of the chain once: the widest merged object that holds it, else the segment itself. And what these hold,
    too.

    A merge takes whole rows of the manifest that it was made for. So one that lies across another was never named if it is
    the older of the two: its compaction died, and what it covers beside the newer one is elsewhere, or had expired.
    """
    chosen: list[_Stored] = []
    rest: list[_Stored] = []
    for one in sorted(
        merged, key=lambda it: (version_of(it.identity or ""), it.last - it.first), reverse=True
    ):
        begin, end = bisect_left(chosen, one.first, key=_last), bisect_right(chosen, one.last, key=_first)
        touched = chosen[begin:end]
        if not touched or (one.first <= touched[0].first and touched[-1].last <= one.last):
            chosen[begin:end] = [one]
            rest += touched
        elif touched[0].first <= one.first and one.last <= touched[0].last:
            rest.append(one)
    alone: list[_Stored] = []
    for stored in segments:
        at = bisect_left(chosen, stored.first, key=_last)
        covered = at < len(chosen) and chosen[at].first <= stored.first
        (rest if covered else alone).append(stored)
    return sorted(chosen + alone, key=_first), rest


class _Assembly:
    """Puts a view together from what was listed, in order.

    An object that is missing or unreadable becomes a row that raises when it is read, so that it does not make the rest of
    the partition unreadable. It reaches as far as the next one that can be read; several in a row are one row, under the
    name of the first.

    If there was a manifest and it cannot be read, what is missing before the first record is what retention has deleted, and
    the log begins there. (Without a manifest there was no retention, and what is missing is damage.)
    """

    def __init__(self, view: ChainView) -> None:
        self._view = view
        self._unreadable: list[tuple[_Stored, CorruptData]] = []

    def add(self, stored: _Stored, link: Link | CorruptData | None) -> None:
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
            view.segments.add(stored.first, link.size, link.summary)
        else:
            view.segments.add_merged(stored.first, stored.last, stored.identity, link.size, link.summary)
        view.tail = replace(view.tail.after(link.header), next_seq=stored.last + 1)

    def finish(self) -> None:
        """What is unreadable at the end claims one offset, so that a reader meets the error instead of a quiet end."""
        if not self._unreadable:
            return
        last, damage = self._unreadable[-1][0].last, self._unreadable[0][1]
        end = self._view.tail.end_offset + 1
        self._add_hole(end)
        self._view.tail = replace(self._view.tail, next_seq=last + 1, end_offset=end, damaged=damage)

    def _is_missing_before(self, stored: _Stored) -> bool:
        return bool(self._unreadable) or stored.first != self._view.tail.next_seq

    def _add_hole(self, end_offset: int) -> None:
        view = self._view
        seq, size = view.tail.next_seq, 0
        if self._unreadable:
            seq, size = self._unreadable[0][0].first, self._unreadable[0][0].info.size
        view.segments.add_row(seq, view.tail.end_offset, end_offset, size, NO_TIMESTAMP, FAR_FUTURE_MS)
        view.segments.is_complete = False


def too_new(key: str, error: UnsupportedVersion) -> UnsupportedStore:
    """Not damage: nobody should restore or rewrite the object."""
    return UnsupportedStore(f"{key}: {error.why}. A newer release has written it: use that, or a later one")
