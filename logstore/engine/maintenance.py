"""Maintenance of a partition: merge small segments, expire old ones, delete what nobody needs.

Three steps, each safe to repeat, to interrupt anywhere, and to run in several processes at once:

* `merge` writes one larger object from neighbouring small segments, batches verbatim, and then swaps the manifest's rows
  with `If-Match`. The chain itself is not touched: its newest segment is never merged, and fences always stay.
* `expire` moves the low watermark past segments that retention no longer wants.
* `collect` deletes objects that no row has named for the grace period. Until then a reader that holds an old reference
  still succeeds. A fence is never deleted: it stands in the very place where a writer that slept would go on. Nor is the
  newest segment, before there is another.

A manifest that somebody else changed at the same time ends the step without effect; the next run sees the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from logstore.engine.chain import FAR_FUTURE_MS, Chain, ChainTail, ChainView
from logstore.engine.segment_reader import SegmentReader
from logstore.engine.segments import SegmentRef, Segments
from logstore.engine.side_by_side import side_by_side
from logstore.engine.stored_manifest import StoredManifest, read_manifest
from logstore.engine.topic_settings import TopicLimits
from logstore.errors import (
    CorruptData,
    Indeterminate,
    ObjectNotFound,
    PreconditionFailed,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.format.batch import PATCH_SIZE
from logstore.format.errors import FormatError
from logstore.format.manifest import Manifest, SegmentTable
from logstore.format.retired import Retired
from logstore.format.segment import (
    HEADER_SIZE,
    TAIL_SIZE,
    EncodedBatch,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    build_segment,
)

logger = logging.getLogger(__name__)

MERGE_AT_LEAST = 4
COLLECT_AT_MOST = 1000
"""In one round beside the writer: far more than it retires meanwhile, and not all that a day without one has left."""
_DOUBTS_MAX = 5  # answers that may get lost before the caller is asked to look


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that may go, and since when nobody needs it."""

    key: str
    size: int
    retired_at_ms: int


class Maintenance:
    """Holds no state of its own: what there is to do is seen in a view of the partition, each time anew."""

    def __init__(
        self,
        chain: Chain,
        reader: SegmentReader,
        topic: TopicLimits,
        delete_grace: float,
        newest: Callable[[], ChainTail] = ChainTail,
    ) -> None:
        """`newest`: how far this process has followed the chain."""
        self._newest = newest
        self._chain = chain
        self._reader = reader
        self._topic = topic
        self._grace_ms = int(delete_grace * 1000)

    def run(self, view: ChainView, now_ms: int, new_id: bytes) -> ChainView:
        """Everything, once. Returns the partition as it is then."""
        view = self._expire(view, now_ms) or view
        view = self._merge(view, now_ms, new_id)[0] or view
        self.collect(now_ms, COLLECT_AT_MOST)
        return view

    # Merging

    def merge(self, now_ms: int, identity: bytes) -> int:
        """Merge the first run of small neighbours there is. Returns how many segments became one (0: nothing to do)."""
        return self._merge(self._chain.load(), now_ms, identity)[1]

    def _merge(self, view: ChainView, now_ms: int, identity: bytes) -> tuple[ChainView | None, int]:
        for run in self._runs(view):
            try:
                data, summary = self._merged(view, run, now_ms, identity)
            except (CorruptData, ObjectNotFound) as damage:
                logger.error("%s; it is left as it is, and its neighbours with it", damage)
                continue
            merged = self._publish(view, run, data, summary, now_ms, identity)
            return merged, len(run) if merged is not None else 0
        return None, 0

    def _publish(
        self,
        view: ChainView,
        run: range,
        data: memoryview,
        summary: SegmentSummary,
        now_ms: int,
        identity: bytes,
    ) -> ChainView | None:
        """Store the merged object and name it in the manifest. None if that could not be."""
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
            return replace(manifest, table=rows.table, retired=self._retired(manifest, old, now_ms))

        merged = self._change(view, now_ms, swap)
        if merged is not None:
            if not self._is_deleted_after(view.tail):
                return merged
            # Whoever removed the partition may have listed its objects before these two were there.
            self._chain.store.delete(self._chain.paths.manifest)
        self._chain.store.delete(key)
        return None

    def _is_deleted_after(self, tail: ChainTail) -> bool:
        newest = self._newest()
        if newest.next_seq > tail.next_seq:
            tail = newest  # our own commits of this moment need not be looked at
        return tail.deleted or any(
            SegmentFlags.DELETED in link.header.flags for link in self._chain.follow(tail)
        )

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
        loaded = side_by_side(partial(self._batches, ref) for ref in refs)
        batches = [batch for some in loaded for batch in some]
        newest = self._summary(last)
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
        return build_segment(header, batches)

    def _source_upper(self, view: ChainView, refs: list[SegmentRef]) -> int:
        """Of the last of them that has one: who commits behind replicated writers and is none himself says nothing of it."""
        if view.tail.source_upper < 0:
            return -1
        uppers = (self._summary(ref).header.source_upper for ref in reversed(refs))
        return next((upper for upper in uppers if upper >= 0), -1)

    def _batches(self, ref: SegmentRef) -> list[EncodedBatch]:
        found: list[EncodedBatch] = []
        position = ref.base_offset
        while position < ref.end_offset:
            block = self._reader.block(ref, position, scanning=True)
            for base, place, size, count, high_ms, low_ms, _ in block.index.tolist():
                raw = block.data[place - block.start : place - block.start + size]
                found.append(
                    EncodedBatch(bytes(raw[:PATCH_SIZE]), raw[PATCH_SIZE:], base, count, low_ms, high_ms)
                )
            position = block.end_offset
        return found

    def _summary(self, ref: SegmentRef) -> SegmentSummary:
        try:
            return SegmentSummary.parse(self._chain.store.get(ref.key, -TAIL_SIZE))
        except FormatError as damage:
            raise CorruptData(ref.key, ref.base_offset, damage.why) from damage

    # Expiring

    def expire(self, now_ms: int) -> int:
        """Move the low watermark as retention says. Returns the new one."""
        view = self._chain.load()
        return (self._expire(view, now_ms) or view).low_watermark

    def _expire(self, view: ChainView, now_ms: int) -> ChainView | None:
        keep_from = self._first_kept(view, now_ms)
        return self._raise_low(view, keep_from, now_ms) if keep_from > view.low_watermark else None

    def delete_before(self, offset: int, now_ms: int) -> int:
        """Move the low watermark up to `offset`, at the most to the end. Returns the new one once it stands in the store.

        Raises `CorruptData` if that cannot be noted, because an object of the partition is missing or damaged, and
        `UnknownTopic` if the topic was deleted.
        """
        doubts = 0
        while True:
            view = self._chain.load()
            if view.tail.deleted:
                raise UnknownTopic(f"{self._chain.paths}: the topic was deleted")
            low = min(offset, view.tail.end_offset)
            if low <= view.low_watermark:
                return view.low_watermark
            if not view.segments.is_complete:
                raise view.tail.damaged or CorruptData(
                    self._chain.paths.prefix, low, "an object is missing or damaged: nothing was deleted"
                )
            try:
                if self._raise_low(view, low, now_ms):
                    return low
            except Indeterminate:  # the next look at the manifest tells
                doubts += 1
                if doubts == _DOUBTS_MAX:
                    raise

    def _raise_low(self, view: ChainView, low: int, now_ms: int) -> ChainView | None:
        def cut(manifest: Manifest) -> Manifest:
            rows = Segments(self._chain.paths, manifest.table)
            first = rows.row_at(low)
            gone = [rows.ref(row).key for row in range(first)]
            kept = SegmentTable()
            kept.extend(manifest.table, first, len(rows))
            return replace(
                manifest,
                low_watermark=low,
                table=kept,
                retired=self._retired(manifest, gone, now_ms),
            )

        return self._change(view, now_ms, cut)

    def _first_kept(self, view: ChainView, now_ms: int) -> int:
        table, low = view.segments.table, view.low_watermark
        if self._topic.retention_seconds is not None:
            oldest = now_ms - int(self._topic.retention_seconds * 1000)
            for row in range(len(table)):
                if self._newest_ms(view.segments, row) >= oldest:
                    break
                low = table.end_offset[row]
        if self._topic.retention_bytes is not None:
            size = 0
            for row in reversed(range(len(table))):
                size += table.size[row]
                if size > self._topic.retention_bytes:
                    low = max(low, table.end_offset[row])
                    break
        return low

    def _newest_ms(self, segments: Segments, row: int) -> int:
        """How old a segment is: the newest of its timestamps, or, as in Kafka, when it was written if its records have none.
        One that cannot be read is kept."""
        newest = segments.table.max_timestamp_ms[row]
        if newest >= 0:
            return newest
        try:
            return self._summary(segments.ref(row)).header.created_at_ms
        except (CorruptData, ObjectNotFound):
            return FAR_FUTURE_MS

    # Deleting

    def garbage(self, now_ms: int) -> list[Garbage]:
        """What `collect` would delete now."""
        return self._due(now_ms, None)[0]

    def _due(self, now_ms: int, at_most: int | None) -> tuple[list[Garbage], list[str]]:
        """What may be deleted now, and the keys that nobody has to look at again: of what is gone already, deleted by one
        who could not note it, and of fences."""
        manifest = self._manifest()
        found: list[Garbage] = []
        settled: list[str] = []
        if manifest is None:
            return found, settled
        retired = manifest.retired.until(now_ms - self._grace_ms)
        newest = manifest.next_seq - 1  # stays, though expired: the chain itself must say where it ends
        looks = side_by_side(
            partial(self._look, which, at_ms, now_ms) for which, at_ms in retired if which != newest
        )
        for key, item, is_settled in looks:
            if item is not None:
                found.append(item)
            elif is_settled:
                settled.append(key)
            if len(found) + len(settled) == at_most:
                break
        return found, settled

    def _look(self, which: int | str, retired_at_ms: int, now_ms: int) -> tuple[str, Garbage | None, bool]:
        """A retired object's key, what to delete if it may go now, and whether it is settled: gone, or to stay for good."""
        paths = self._chain.paths
        key = paths.segment(which) if isinstance(which, int) else paths.prefix + which
        info = self._chain.store.head(key)
        if info is None:
            return key, None, True
        header = self._header(key)
        if header is None or self._is_young(header, now_ms):
            return key, None, False
        if SegmentFlags.FENCE in header.flags:
            return key, None, True
        return key, Garbage(key, info.size, retired_at_ms), False

    def collect(self, now_ms: int, at_most: int | None = None) -> list[Garbage]:
        """Delete what has been retired for the grace period. Returns what went."""
        garbage, settled = self._due(now_ms, at_most)
        for _ in side_by_side(partial(self._chain.store.delete, item.key) for item in garbage):
            pass
        settled += [item.key for item in garbage]

        def forget(manifest: Manifest) -> Manifest:
            return replace(manifest, retired=manifest.retired.minus(*self._chain.paths.names_of(settled)))

        if settled:
            self._change(self._chain.load(), now_ms, forget)
        return garbage

    def strays(self, now_ms: int) -> list[Garbage]:
        """Merged objects that no manifest names: whoever wrote them died, or lost an answer, before it could.

        Listed before the manifest is read, and left alone for the grace period: a merge may be under way.
        """
        listed = list(self._chain.store.list(self._chain.paths.merged_prefix))
        manifest = self._manifest() if listed else None
        if manifest is None:
            return []  # damaged, perhaps: then nobody can say what is named
        segments = Segments(self._chain.paths, manifest.table)
        named = {ref.key for ref in segments.all()} | {
            self._chain.paths.prefix + name for name in manifest.retired.merged
        }
        return [
            Garbage(info.key, info.size, now_ms)
            for info in listed
            if info.key not in named
            and (header := self._header(info.key)) is not None
            and not self._is_young(header, now_ms)
        ]

    def _header(self, key: str) -> SegmentHeader | None:
        """None of an object that cannot be read, so it might be a fence, or young, and stays; or another process has just
        deleted it, which that one notes."""
        try:
            return SegmentHeader.parse(self._chain.store.get(key, 0, HEADER_SIZE))
        except (FormatError, ObjectNotFound):
            return None

    def _is_young(self, header: SegmentHeader, now_ms: int) -> bool:
        return now_ms - header.created_at_ms < self._grace_ms

    # The manifest

    def _retired(self, manifest: Manifest, keys: list[str], now_ms: int) -> Retired:
        """What is retired once these objects are, too."""
        return manifest.retired.plus(*self._chain.paths.names_of(keys), now_ms)

    def _manifest(self) -> Manifest | None:
        """The stored one; None if there is none, or if it cannot be read here: then nobody can say what it names."""
        try:
            return read_manifest(self._chain)
        except UnsupportedStore:
            return None

    def _change(
        self, view: ChainView, now_ms: int, change: Callable[[Manifest], Manifest]
    ) -> ChainView | None:
        """Apply `change` to a manifest that covers the whole view. None if somebody else was faster, or if the topic was
        deleted: that must be seen in the chain itself, so no manifest covers its end."""
        stored = StoredManifest.look(self._chain)
        if view.manifest_version != stored.version or not view.segments.is_complete or view.tail.deleted:
            return None
        try:
            return stored.replace(change(stored.next_of(view, now_ms)))
        except PreconditionFailed:
            return None


def _worth_it(table: SegmentTable, run: range, limit: int) -> range:
    """The longest end of the run whose merging at least doubles the largest of it; it may be empty.

    So each record is rewritten O(log n) times, and of n segments O(log n) are left: those that are waiting for as many more
    do not keep the small ones behind them from being merged.
    """
    worth, size, largest = run.stop, 0, 0
    for row in reversed(run):
        size += table.size[row]
        largest = max(largest, table.size[row])
        if size >= 2 * largest and (run.stop - row >= MERGE_AT_LEAST or size > limit // 2):
            worth = row
    return range(worth, run.stop)
