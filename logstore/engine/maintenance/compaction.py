"""Compaction: small neighbouring segments become one object, batches verbatim."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from logstore.config import TopicConfig
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_changes import change_manifest, named_by, stored_manifest
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.chain.view import ChainView
from logstore.engine.maintenance.replacing import Replacing, neighbours
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored
from logstore.format.stored.manifest import SegmentTable
from logstore.format.stored.segment import SegmentSummary
from logstore.layout.paths import for_version
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

COMPACT_AT_LEAST = 4


class Compaction:
    def __init__(self, chain: Chain, reader: SegmentReader, topic: TopicConfig) -> None:
        self._chain = chain
        self._reader = reader
        self._topic = topic
        self._replacing = Replacing(chain)

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
            merged = self._replacing.publish(view, run, data, summary, now_ms, identity)
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
        keys: list[str] = []
        every = range(rows, len(view.segments))
        for run in neighbours(view.segments.table, every, self._topic.segment_bytes):
            try:
                data, summary = self._merged(view, run, now_ms, identity)
            except ObjectNotFound:
                if not self._is_outrun(view, keys):
                    raise
                return None
            first, last = view.segments.ref(run.start), view.segments.table.last_seq[run.stop - 1]
            keys.append(self._chain.paths.merged(first.seq, last, identity.hex()))
            self._chain.store.put(keys[-1], data)
            made.add_merged(first.seq, last, identity.hex(), len(data), summary)
        whole = replace(view, segments=made, settled=None, parts=[])
        published = change_manifest(self._chain, whole, now_ms, lambda manifest: manifest)
        if published is None:
            self._is_outrun(view, keys)
        return published

    def _is_outrun(self, view: ChainView, keys: list[str]) -> bool:
        """Whether another manifest is stored than the view's: its maker may have split the same, and have let go of entries
        that are read here. Nothing will name what was made under these keys."""
        stored = stored_manifest(self._chain)
        if stored is None or stored.version == view.manifest_version:
            return False
        for key in set(keys) - named_by(self._chain.paths, stored):
            self._chain.store.delete(key)
        return True

    def _runs(self, view: ChainView) -> Iterator[range]:
        """Neighbouring rows that are worth to become one segment, in order."""
        table, limit = view.segments.table, self._topic.segment_bytes
        has_newest = len(table) > 0 and table.last_seq[-1] == view.tail.next_seq - 1
        for run in neighbours(table, range(len(table) - has_newest), limit):
            if worth := _worth_it(table, run, limit):
                yield worth

    def _merged(
        self, view: ChainView, run: range, now_ms: int, identity: bytes
    ) -> tuple[memoryview, SegmentSummary]:
        loaded = fan_out(
            partial(batches_of, self._reader, ref) for ref in view.segments.refs(run.start, run.stop)
        )
        batches: list[EncodedBatch] = []
        sparse = False
        for some, is_sparse in loaded:
            batches += some
            sparse |= is_sparse
        return self._replacing.build(view, run, batches, now_ms, identity, sparse=sparse)


def batches_of(reader: SegmentReader, ref: SegmentRef) -> tuple[list[EncodedBatch], bool]:
    """All of an object, read and checked; and whether it is sparse."""
    found: list[EncodedBatch] = []
    sparse = False
    for block in reader.blocks(ref):
        for base, place, size, count, high_ms, low_ms, _ in block.index.tolist():
            raw = block.data[place - block.start : place - block.start + size]
            found.append(as_stored(raw, base, count, low_ms, high_ms))
        sparse = block.sparse
    return found, sparse


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
