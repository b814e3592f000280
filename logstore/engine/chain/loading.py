"""Loading a partition: the manifest, one listing of what is newer, and the tail of each newer segment."""

from __future__ import annotations

import logging
from functools import partial

from logstore.engine.chain.horizon import read_horizon
from logstore.engine.chain.link import FAR_FUTURE_MS, Link, link_of
from logstore.engine.chain.newer_release import too_new
from logstore.engine.chain.parts import PartsBehind, add_damage, add_hole, add_part, parts_behind
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.tail import ChainTail, first_tail
from logstore.engine.chain.view import Assembly, ChainView, Stored, in_order
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import CorruptData
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.extras import Extras
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import (
    NO_TIMESTAMP,
    TAIL_SIZE,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
)
from logstore.layout.paths import PartitionPaths
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectStore, get_if_there

logger = logging.getLogger(__name__)

_UNLISTED_MAX = 256


class StaleManifest(Exception):
    """The manifest has changed since it was read: what was in a lane is in a merged object now. Internal: load again.
    `version`: of the one that was read."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Loader:
    """Reads a chain once, as it is found. `Chain.load` judges whether what was found can be believed."""

    def __init__(self, store: ObjectStore, paths: PartitionPaths, lanes: LaneReader) -> None:
        self._store = store
        self._paths = paths
        self._lanes = lanes

    def load(self, *, is_old: bool = False) -> ChainView:
        """`is_old`: the manifest is not the last one that was written, and is not believed."""
        try:
            view = self._from_manifest()
            if is_old:
                raise FormatError("a lane knows of a newer one", None)
        except FormatError as damage:
            logger.error("%s: %s; the chain is read without it", self._paths.manifest, damage)
            empty = Segments(self._paths, SegmentTable())
            tail = first_tail(self._paths, read_horizon(self._store, self._paths.manifest))
            view = ChainView(empty, 0, tail, manifest_damaged=True)
        listed, superseded = self.listed(view.tail.next_seq, with_merged=not view.manifest_version)
        view.superseded = tuple(stored.info.key for stored in superseded)
        assembly, known_until = Assembly(view), 0
        for stored, link in zip(listed, self._links(listed), strict=True):
            self._add_parts(view, stored.first)
            if not view.manifest_damaged:
                # Not by the tail alone: what was collected, or cannot be read, does not move it.
                unlisted = self._unlisted(max(known_until, view.tail.next_seq), stored.first)
                for one, missed in zip(unlisted, self._links(unlisted), strict=True):
                    assembly.add(one, missed)
            assembly.add(stored, self._claim_at(view, stored, link) or link)
            known_until = stored.last + 1
        self._add_parts(view, None)
        assembly.finish()
        return view

    def _add_parts(self, view: ChainView, until: int | None) -> None:
        """If the chain goes on in a lane: what it has there, and in those it went on in, up to the place `until`, or all of
        it.

        `StaleManifest` if the lane's checkpoint knows that more of it is in the partition's manifest than this one holds.
        """
        while view.tail.claim is not None and (until is None or view.tail.next_seq < until):
            found = self._parts_up_to(view.tail, until)
            if found.is_stale and view.manifest_version:
                raise StaleManifest(view.manifest_version)
            for link in found.links:
                if until is None or link.header.seq < until:
                    add_part(view, link, found.missing.get(link.header.seq))
            if (
                until is None
                and found.damage is not None
                and not (found.if_unsplit and view.manifest_version)
            ):
                add_damage(view, found.damage)
                return
            if not found.is_moved or view.tail.next_seq <= found.links[-1].header.seq:
                return

    def _parts_up_to(self, tail: ChainTail, until: int | None) -> PartsBehind:
        found = parts_behind(self._lanes, self._paths, tail)
        end = found.links[-1].header.seq + 1 if found.links else tail.next_seq
        if until is not None and end < until and not found.is_moved:
            # It has gone on since the lane was read.
            found = parts_behind(self._lanes, self._paths, tail, self._lanes.now())
        return found

    def _claim_at(self, view: ChainView, stored: Stored, link: Link | CorruptData | None) -> Link | None:
        """If that cannot be read and is a claim: as the lane tells it in which the chain goes on. Else the records behind it
        would be out of reach."""
        if isinstance(link, Link) or stored.identity is not None:
            return None
        found = self._lanes.claim_behind(self._paths.prefix, stored.first)
        if found is None:
            return None
        key, claim, end, reserved = found
        logger.error(
            "%s cannot be read (%s); the chain goes on in lane %s, which says so",
            stored.info.key,
            link,
            claim.lane,
        )
        if end > view.tail.end_offset:
            add_hole(view, end, stored.info.key)  # it may have held records that a WAL had kept
        header = SegmentHeader(
            stored.first, key.epoch, end, end, bytes(16), 0, reserved, flags=SegmentFlags.FENCE
        )
        summary = SegmentSummary(header, 0, 0, NO_TIMESTAMP, FAR_FUTURE_MS, stored.info.size, 0, 0)
        return Link(summary, stored.info.size, Extras(claim=claim))

    def _from_manifest(self) -> ChainView:
        data = get_if_there(self._store, self._paths.manifest)
        if data is None:
            return ChainView(Segments(self._paths, SegmentTable()), 0, first_tail(self._paths))
        try:
            manifest = Manifest.parse(data)
        except UnsupportedVersion as error:
            raise too_new(self._paths.manifest, error) from error
        return ChainView.of(self._paths, manifest, data)

    def listed(self, next_seq: int, *, with_merged: bool) -> tuple[list[Stored], list[Stored]]:
        """The objects that hold the chain from `next_seq` on, and those that are not needed for that: one listing."""
        after = self._paths.segment(next_seq - 1) if next_seq else self._paths.prefix
        segments: list[Stored] = []
        merged: list[Stored] = []
        for info in self._store.list(self._paths.prefix, after):
            seq = self._paths.seq_of(info.key)
            if seq is not None:
                # One of no bytes is a put that was cut off, unless it was a claim: a lane goes on behind it.
                if info.size or self._lanes.claim_behind(self._paths.prefix, seq) is not None:
                    segments.append(Stored(seq, seq, None, info))
            elif not with_merged:
                if info.key >= self._paths.manifest:
                    break  # digits sort first: behind the segments only the manifest, merged and pending objects follow
            elif named := self._paths.merged_name(info.key):
                merged.append(Stored(*named, info))
        if merged:  # one that cannot be read stands for nothing: what it replaced may still be there
            merged = [
                one for one, link in zip(merged, self._links(merged), strict=True) if isinstance(link, Link)
            ]
        return in_order(segments, merged)

    def _unlisted(self, next_seq: int, until: int) -> list[Stored]:
        """A listing is no snapshot: it may show a segment and not the one before it, which came while names were read. So
        what is missing in between is asked for by name. More than a few are damage, and are not looked for."""
        missing = range(next_seq, until)
        infos = (
            (seq, self._store.head(self._paths.segment(seq)))
            for seq in missing
            if len(missing) <= _UNLISTED_MAX
        )
        return [Stored(seq, seq, None, info) for seq, info in infos if info is not None and info.size]

    def _links(self, listed: list[Stored]) -> list[Link | CorruptData | None]:
        def one(stored: Stored) -> Link | CorruptData | None:
            try:
                tail = get_if_there(self._store, stored.info.key, -TAIL_SIZE)
                return link_of(self._store, stored.info.key, stored.first, tail)
            except CorruptData as damage:
                return damage

        return list(fan_out(partial(one, stored) for stored in listed))
