"""Maintenance of a partition: compact small segments, expire old ones, delete what nobody needs.

Three steps, each safe to repeat, to interrupt anywhere, and to run in several processes at once, whatever their clocks say
and whatever their grace periods are:

* `compact` writes one larger object from neighbouring small segments, batches verbatim, and then swaps the manifest's rows
  with `If-Match`. The object's name says which version of the manifest it is for: one of another version that is not named
  can never come to be named. The chain itself is not touched: its newest segment is never merged, and fences always stay.
* `expire` moves the low watermark past segments that retention no longer wants.
* `collect` takes away objects that no row has named for the grace period, a courtesy to readers with old references. First
  it publishes a horizon in the manifest, and only once that is certainly stored it empties places below it: whoever looks
  there knows then that it must not believe what it finds (see `chain`). In most places something stays, because a writer
  that slept may come to this very place: every fence as it is, and the bare header of every segment of shared and replicated
  writers and of the last one in each exclusive epoch. Only the data in the middle of an exclusive epoch is deleted. The
  newest segment stays, before there is another.

A manifest that somebody else changed at the same time ends the step without effect; the next run sees the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile

from logstore.engine.chain.chain import FAR_FUTURE_MS, Chain, ChainView
from logstore.engine.chain.garbage import Garbage
from logstore.engine.chain.manifest_store import StoredManifest, read_manifest
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.host.fan_out import fan_out
from logstore.engine.memory.topic_settings import TopicLimits
from logstore.errors import (
    CorruptData,
    Indeterminate,
    ObjectNotFound,
    PreconditionFailed,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.format.errors import FormatError
from logstore.format.manifest import Manifest, SegmentTable
from logstore.format.retired import Retired
from logstore.format.segment import (
    EMPTY_SIZE,
    HEADER_SIZE,
    TAIL_SIZE,
    EncodedBatch,
    SegmentFlags,
    SegmentHeader,
    SegmentSummary,
    WriterMode,
    as_stored,
    build_segment,
    collected,
)
from logstore.layout.paths import for_version, version_of
from logstore.objects.protocol import ObjectInfo
from logstore.objects.settled import Doubts

logger = logging.getLogger(__name__)

COMPACT_AT_LEAST = 4
COLLECT_AT_MOST = 1000
"""In one round beside the writer: far more than it retires meanwhile, and not all that a day without one has left."""


@dataclass(slots=True)
class _Due:
    """What may be taken away now, and the keys that nobody has to look at again: of what is gone already, taken by one who
    could not note it, and of what stays. `standing`: the headers in the places of the garbage, and behind them."""

    garbage: list[Garbage] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    standing: dict[int, SegmentHeader | None] = field(default_factory=dict)


class Maintenance:
    """Holds no state of its own: what there is to do is seen in a view of the partition, each time."""

    def __init__(
        self,
        chain: Chain,
        reader: SegmentReader,
        topic: TopicLimits,
        delete_grace: float,
    ) -> None:
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

    # Compaction

    def compact(self, now_ms: int, identity: bytes) -> int:
        """Merge the first run of small neighbours there is. Returns how many segments became one (0: nothing to do)."""
        return self._merge(self._chain.load(), now_ms, identity)[1]

    def _merge(self, view: ChainView, now_ms: int, identity: bytes) -> tuple[ChainView | None, int]:
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
            return replace(manifest, table=rows.table, retired=self._retired(manifest, old, now_ms))

        merged = self._change(view, now_ms, swap)
        if merged is None and (standing := self._manifest()) is not None:
            if key in self._named(standing):
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
        loaded = fan_out(partial(self._batches, ref) for ref in refs)
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
                found.append(as_stored(raw, base, count, low_ms, high_ms))
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
        """Move the low watermark up to `offset`, at the most to the end. Returns the new one once it is in the store.

        Raises `CorruptData` if that cannot be noted, because an object of the partition is missing or damaged, and
        `UnknownTopic` if the topic was deleted.
        """
        doubts = Doubts()
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
            with doubts:  # the next look at the manifest tells
                if self._raise_low(view, low, now_ms):
                    return low

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
        """What `collect` would take away now."""
        return self._due(self._manifest(), now_ms, None).garbage

    def _due(self, manifest: Manifest | None, now_ms: int, at_most: int | None) -> _Due:
        due = _Due()
        if manifest is None:
            return due
        paths, newest = self._chain.paths, manifest.next_seq - 1
        retired = islice(
            (
                (paths.segment(which) if isinstance(which, int) else paths.prefix + which, at_ms)
                for which, at_ms in manifest.retired.until(now_ms - self._grace_ms)
                if which != newest  # stays, though expired: the chain itself must say where it ends
            ),
            at_most,
        )
        keys = dict(retired)
        sizes = self._sizes(keys)
        seqs, _ = paths.names_of(key for key in keys if sizes.get(key, 0) > EMPTY_SIZE)
        due.standing = standing_at(self._chain, seqs)
        for key, at_ms in keys.items():
            if self._goes(key, sizes.get(key, 0), due.standing):
                due.garbage.append(Garbage(key, sizes[key], at_ms))
            else:
                due.settled.append(key)
        return due

    def _goes(self, key: str, size: int, standing: Mapping[int, SegmentHeader | None]) -> bool:
        """Not what is gone, a bare header already, or a fence, or might be one because it cannot be read."""
        seq = self._chain.paths.seq_of(key)
        if seq is None:
            return size > 0
        header = standing.get(seq)
        return size > EMPTY_SIZE and header is not None and SegmentFlags.FENCE not in header.flags

    def _sizes(self, keys: Collection[str]) -> dict[str, int]:
        """Of those that stand: a listing tells as much as a thousand requests for one each."""
        paths, store = self._chain.paths, self._chain.store
        seqs, names = paths.names_of(keys)
        listed: list[Iterable[ObjectInfo]] = []
        if seqs:
            after = paths.segment(min(seqs) - 1) if min(seqs) else paths.prefix
            last = paths.segment(max(seqs))
            listed.append(takewhile(lambda info: info.key <= last, store.list(paths.prefix, after)))
        if names:
            listed.append(store.list(paths.merged_prefix))
        return {info.key: info.size for infos in listed for info in infos}

    def collect(self, now_ms: int, at_most: int | None = None) -> list[Garbage]:
        """Take away what has been retired for the grace period. Returns what went."""
        manifest = self._manifest()
        due = self._due(manifest, now_ms, at_most)
        seqs, _ = self._chain.paths.names_of(item.key for item in due.garbage)
        if seqs and not self._publish_horizon(manifest, max(seqs) + 1):
            return []
        self._take_away(due.garbage, due.standing)
        self._forget([*due.settled, *(item.key for item in due.garbage)])
        return due.garbage

    def _publish_horizon(self, manifest: Manifest | None, until: int) -> bool:
        """Note that places below `until` may be empty from now on. False unless the note certainly stands.

        What `manifest` has retired stays so in every later one, until it is taken away."""
        if manifest is None or manifest.collected_until >= until:
            return manifest is not None
        stored = StoredManifest.look(self._chain)
        if stored.manifest is None:
            return False
        if stored.manifest.collected_until >= until:
            return True
        try:
            stored.replace(stored.changed(collected_until=until))
        except (PreconditionFailed, Indeterminate):
            return self._chain.horizon().covers(until)
        return True

    def _take_away(self, garbage: Iterable[Garbage], standing: Mapping[int, SegmentHeader | None]) -> None:
        """Merged objects, and segments of which `standing` tells what stays in their places."""

        def one(key: str) -> None:
            seq = self._chain.paths.seq_of(key)
            header = None if seq is None else standing[seq]
            if header is None or is_inner(header, standing):
                self._chain.store.delete(key)
            else:
                self._chain.store.put(key, collected(header))

        for _ in fan_out(partial(one, item.key) for item in garbage):
            pass

    def _forget(self, keys: Collection[str]) -> None:
        """They need no look any more. If that cannot be noted, the next round looks again."""
        stored = StoredManifest.look(self._chain) if keys else None
        if stored is None or stored.manifest is None:
            return
        retired = stored.manifest.retired.minus(*self._chain.paths.names_of(keys))
        with suppress(PreconditionFailed):
            stored.replace(stored.changed(retired=retired))

    def strays(self, now_ms: int) -> list[Garbage]:
        """Objects that nothing names and nothing will: merged ones whose merge died, or lost an answer, before it could be
        named, and segments in emptied places, created by one who slept or by a request that came twice.

        Listed before the manifest is read: what is named was named by then. One that is made for the manifest as it is now
        may still be named, by a merge that is under way: `sweep` ends that first. Until the grace period is over it is left
        in peace, so that no work is wasted.
        """
        listed = list(self._chain.store.list(self._chain.paths.prefix))
        manifest = self._manifest() if listed else None
        if manifest is None:
            return []  # damaged, perhaps: then nobody can say what is named
        named = self._named(manifest)
        seqs, _ = self._chain.paths.names_of(
            info.key for info in listed if info.key not in named and info.size > EMPTY_SIZE
        )
        standing = standing_at(self._chain, [seq for seq in seqs if self._was_emptied(seq, manifest)])
        return [
            Garbage(info.key, info.size, now_ms)
            for info in listed
            if info.key not in named and self._is_stray(info, manifest, standing, now_ms)
        ]

    @staticmethod
    def _was_emptied(seq: int, manifest: Manifest) -> bool:
        return seq < manifest.collected_until and not manifest.retired.has(seq)

    def _is_stray(
        self, info: ObjectInfo, manifest: Manifest, standing: Mapping[int, SegmentHeader | None], now_ms: int
    ) -> bool:
        paths = self._chain.paths
        if merged := paths.merged_name(info.key):
            return version_of(merged[2]) != manifest.version or not self._is_young(info.key, now_ms)
        seq = paths.seq_of(info.key)
        return (
            seq is not None and self._was_emptied(seq, manifest) and self._goes(info.key, info.size, standing)
        )

    def sweep(self, now_ms: int) -> list[Garbage]:
        """Take the strays away. Returns what went."""
        strays, paths = self.strays(now_ms), self._chain.paths
        merged = [item for item in strays if paths.merged_name(item.key)]
        if merged and not self._end_merges(merged):
            strays = [item for item in strays if item not in merged]
        self._take_away(strays, standing_at(self._chain, paths.names_of(item.key for item in strays)[0]))
        return strays

    def _end_merges(self, merged: list[Garbage]) -> bool:
        """Whether none of these can be named any more. A new version of the manifest, with nothing else new in it, sees to
        that where one was made for the present version, or by a release whose names did not say."""
        stored = StoredManifest.look(self._chain)
        if stored.manifest is None:
            return False
        names = [self._chain.paths.merged_name(item.key) for item in merged]
        if any(name and version_of(name[2]) >= stored.version for name in names):
            try:
                stored.replace(stored.changed())
            except (PreconditionFailed, Indeterminate):
                return False
        standing = self._manifest()
        return standing is not None and not self._named(standing) & {item.key for item in merged}

    def _named(self, manifest: Manifest) -> set[str]:
        """The keys of a manifest's rows, and of the merged objects that it has retired."""
        paths = self._chain.paths
        rows = {ref.key for ref in Segments(paths, manifest.table).all()}
        return rows | {paths.prefix + name for name in manifest.retired.merged}

    def _is_young(self, key: str, now_ms: int) -> bool:
        """Whether it was made within the grace period. One that cannot be read may be."""
        try:
            header = SegmentHeader.parse(self._chain.store.get(key, 0, HEADER_SIZE))
        except (FormatError, ObjectNotFound):
            return True
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
        if not view.segments.is_complete or view.tail.deleted or not self._is_current(view, stored):
            return None
        try:
            return stored.replace(change(stored.next_of(view, now_ms)))
        except PreconditionFailed:
            return None

    def _is_current(self, view: ChainView, stored: StoredManifest) -> bool:
        """Whether the view was made from what is stored. The version does not tell: it begins again if a manifest gets
        lost. Where there is none there may have been one meanwhile, which only the objects show."""
        if stored.front or view.tail.horizon.front:
            return stored.front == view.tail.horizon.front
        return self._chain.holds(view.segments.all())


def standing_at(chain: Chain, seqs: Iterable[int]) -> dict[int, SegmentHeader | None]:
    """What stands in these places and in the one behind each; None if nothing does. What cannot be read is left out."""

    def one(seq: int) -> dict[int, SegmentHeader | None]:
        try:
            return {seq: chain.header_at(seq)}
        except (CorruptData, UnsupportedStore):
            return {}

    places = sorted({place for seq in seqs for place in (seq, seq + 1)})
    found: dict[int, SegmentHeader | None] = {}
    for some in fan_out(partial(one, seq) for seq in places):
        found |= some
    return found


def is_inner(header: SegmentHeader, standing: Mapping[int, SegmentHeader | None]) -> bool:
    """Whether a segment's place may be emptied: it lies in the middle of an exclusive epoch, where nobody but its owner
    could have written, and the owner went on. `standing`: what is in its place and behind it, where that can be read.
    An empty place behind it was such a one, too, so it was of the same epoch."""
    if header.mode is not WriterMode.EXCLUSIVE or SegmentFlags.FENCE in header.flags:
        return False
    if header.seq + 1 not in standing:
        return False
    behind = standing[header.seq + 1]
    return behind is None or (behind.epoch == header.epoch and behind.mode is header.mode)


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
