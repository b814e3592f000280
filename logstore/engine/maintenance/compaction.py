"""Compaction: small neighbouring segments become one object, batches verbatim."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import claim_of, link_of_ref, summary_of
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.chain.view import ChainView
from logstore.engine.host.fan_out import fan_out
from logstore.engine.maintenance.manifests import change_manifest, named_by, retired_with, stored_manifest
from logstore.engine.memory.topic_settings import TopicLimits
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.stored.extras import Extras
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import (
    EncodedBatch,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    as_stored,
    build_segment,
)
from logstore.layout.paths import for_version

logger = logging.getLogger(__name__)

COMPACT_AT_LEAST = 4


class Compaction:
    def __init__(self, chain: Chain, reader: SegmentReader, topic: TopicLimits) -> None:
        self._chain = chain
        self._reader = reader
        self._topic = topic

    def compact(self, view: ChainView, now_ms: int, identity: bytes) -> tuple[ChainView | None, int]:
        """Merge the first run of small neighbours there is. Returns the partition as it is then, None if it is the same, and
        how many segments became one."""
        view = view.without_parts()
        if not view.segments.is_complete or view.tail.deleted:
            return None, 0
        for run in self._runs(view):
            identity = for_version(view.manifest_version, identity)
            try:
                data, summary = self._merged(view, run, now_ms, identity)
            except (CorruptData, ObjectNotFound) as damage:
                logger.error("%s; it is left as it is, and its neighbours with it", damage)
                continue
            merged = self._publish(view, run, data, summary, now_ms, identity)
            return merged, len(run) if merged is not None else 0
        return None, 0

    def split(self, view: ChainView, now_ms: int, identity: bytes) -> ChainView | None:
        """What the partition has in lanes becomes objects of its own, named by its manifest. Returns the partition as it is
        then; None if there is nothing to do, or somebody else was faster. From then on nobody reads it in the lanes."""
        if view.settled is None or not view.segments.is_complete or view.tail.deleted:
            return None
        rows, _ = view.settled
        identity = for_version(view.manifest_version, identity)
        made = Segments(self._chain.paths, SegmentTable())
        made.table.extend(view.segments.table, 0, rows)
        keys = []
        for run in self._neighbours(view.segments.table, rows):
            data, summary = self._merged(view, run, now_ms, identity)
            first, last = view.segments.ref(run.start), view.segments.table.last_seq[run.stop - 1]
            keys.append(self._chain.paths.merged(first.seq, last, identity.hex()))
            self._chain.store.put(keys[-1], data)
            made.add_merged(first.seq, last, identity.hex(), len(data), summary)
        whole = replace(view, segments=made, settled=None, parts=[])
        published = change_manifest(self._chain, whole, now_ms, lambda manifest: manifest)
        standing = stored_manifest(self._chain) if published is None else None
        if standing is not None and standing.version != view.manifest_version:
            for key in set(keys) - named_by(self._chain.paths, standing):
                self._chain.store.delete(key)
        return published

    def _neighbours(self, table: SegmentTable, start: int) -> Iterator[range]:
        """The rows from `start` on, in runs without a hole and no larger than a segment may be."""
        size = 0
        for row in range(start, len(table)):
            size += table.size[row]
            if row > start and (
                table.base_offset[row] != table.end_offset[row - 1] or size > self._topic.segment_bytes
            ):
                yield range(start, row)
                start, size = row, table.size[row]
        if start < len(table):
            yield range(start, len(table))

    def _publish(
        self,
        view: ChainView,
        run: range,
        data: memoryview,
        summary: SegmentSummary,
        now_ms: int,
        identity: bytes,
    ) -> ChainView | None:
        """Store the merged object and name it in the manifest. None if that could not be.

        The object goes only if it can never be named. If nobody knows whether it is, or will be, it stays: `sweep` sees.
        """
        first = view.segments.ref(run.start)
        last_seq = view.segments.table.last_seq[run.stop - 1]
        key = self._chain.paths.merged(first.seq, last_seq, identity.hex())
        self._chain.store.put(key, data)
        old = [view.segments.ref(row).key for row in run]

        def swap(manifest: Manifest) -> Manifest:
            rows, old_rows = Segments(self._chain.paths, SegmentTable()), manifest.table
            rows.table.extend(old_rows, 0, run.start)
            rows.add_merged(first.seq, last_seq, identity.hex(), len(data), summary)
            rows.table.extend(old_rows, run.stop, len(old_rows))
            retired = retired_with(self._chain.paths, manifest, old, now_ms)
            return replace(manifest, table=rows.table, retired=retired)

        merged = change_manifest(self._chain, view, now_ms, swap)
        if merged is None and (standing := stored_manifest(self._chain)) is not None:
            if key in named_by(self._chain.paths, standing):
                return self._chain.load()  # it was named, and somebody has changed the manifest since
            if standing.version != view.manifest_version:
                self._chain.store.delete(key)
        return merged

    def _runs(self, view: ChainView) -> Iterator[range]:
        """Neighbouring rows that are worth to become one segment, in order."""
        table, limit = view.segments.table, self._topic.segment_bytes
        newest = view.tail.next_seq - 1
        start, size = 0, 0
        for row in range(len(table)):
            joins = row > start and table.base_offset[row] == table.end_offset[row - 1]
            if not joins or size + table.size[row] > limit or table.last_seq[row] == newest:
                if run := _worth_it(table, range(start, row), limit):
                    yield run
                start, size = row, 0
            size += table.size[row]
        rest = range(start, len(table))
        if rest and table.last_seq[-1] != newest and (run := _worth_it(table, rest, limit)):
            yield run

    def _merged(
        self, view: ChainView, run: range, now_ms: int, identity: bytes
    ) -> tuple[memoryview, SegmentSummary]:
        refs = view.segments.refs(run.start, run.stop)
        first, last = refs[0], refs[-1]
        loaded = fan_out(partial(batches_of, self._reader, ref) for ref in refs)
        batches = [batch for some in loaded for batch in some]
        link = link_of_ref(self._chain.store, last)
        newest = link.summary
        header = SegmentHeader(
            seq=first.seq,
            epoch=newest.header.epoch,
            base_offset=first.base_offset,
            end_offset=last.end_offset,
            writer_id=identity,
            created_at_ms=now_ms,
            reserved_until=newest.header.reserved_until,
            mode=newest.header.mode,
            flags=SegmentFlags.MERGED,
            source_upper=self._source_upper(view, refs),
        )
        # Should the manifest get lost, the object itself tells in which lane the chain goes on behind it.
        # Behind its last records there may be parts without any, also of a claim that has ended since.
        claim = view.tail.claim if header.epoch == view.tail.epoch else link.said.claim or claim_of(last.key)
        return build_segment(header, batches, Extras(claim=claim))

    def _source_upper(self, view: ChainView, refs: list[SegmentRef]) -> int:
        """Of the last of them that has one: who commits behind replicated writers and is none himself says nothing of it."""
        if view.tail.source_upper < 0:
            return -1
        uppers = (summary_of(self._chain.store, ref).header.source_upper for ref in reversed(refs))
        return next((upper for upper in uppers if upper >= 0), -1)


def batches_of(reader: SegmentReader, ref: SegmentRef) -> list[EncodedBatch]:
    """All of an object, read and checked."""
    found: list[EncodedBatch] = []
    position = ref.base_offset
    while position < ref.end_offset:
        block = reader.block(ref, position, scanning=True)
        for base, place, size, count, high_ms, low_ms, _ in block.index.tolist():
            raw = block.data[place - block.start : place - block.start + size]
            found.append(as_stored(raw, base, count, low_ms, high_ms))
        position = block.end_offset
    return found


def _worth_it(table: SegmentTable, run: range, limit: int) -> range:
    """The longest end of the run whose merging at least doubles the largest of it; it may be empty.

    So each record is rewritten O(log n) times, and of n segments O(log n) are left: those that are waiting for as many more
    do not keep the small ones behind them from being merged.
    """
    worth, size, largest = run.stop, 0, 0
    for row in reversed(run):
        size += table.size[row]
        largest = max(largest, table.size[row])
        if size >= 2 * largest and (run.stop - row >= COMPACT_AT_LEAST or size > limit // 2):
            worth = row
    return range(worth, run.stop)
