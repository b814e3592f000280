"""Retention: the low watermark moves past what a topic no longer keeps, or past what somebody deletes by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from logstore.config import TopicConfig
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import FAR_FUTURE_MS, summary_of
from logstore.engine.chain.manifests.manifest_changes import change_manifest, retired_with
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.view import ChainView
from logstore.engine.garbage.lane_lows import note_low
from logstore.engine.maintenance.holds import held_back
from logstore.errors import CorruptData, ObjectNotFound, UnknownTopic
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.objects.settled import Doubts
from logstore.objects.wrappers.slices import is_slice

_SPLITS_MAX = 5
"""How often others may be faster with the manifest before it is enough to delete what it names."""


class Retention:
    """`split`: what a partition has in lanes becomes objects of its own, because only those can be deleted."""

    def __init__(
        self, chain: Chain, topic: TopicConfig, split: Callable[[ChainView, int], ChainView | None]
    ) -> None:
        self._chain = chain
        self._topic = topic
        self._split = split

    def expire(self, view: ChainView, now_ms: int) -> ChainView | None:
        """Move the low watermark as the topic says. None if nothing is old enough. Where that reaches into a lane, the
        manifest holds the chain up to the first part that is kept, and names none of those before it."""
        keep_from = self._first_kept(view, now_ms)
        if keep_from > view.low_watermark:
            keep_from = held_back(
                self._chain.store,
                self._chain.paths,
                view.segments,
                keep_from,
                lambda row: self._newest_ms(view.segments, row),
                now_ms - int((self._topic.retention_seconds or 0) * 1000),
            )
        settled = view.without_parts()
        if keep_from > settled.tail.end_offset:
            row, bases = view.segments.row_at(keep_from), view.segments.table.base_offset
            keep_from = min([keep_from, *bases[row : row + 1]])  # a part is kept whole
            settled = view.before(row)
        return self._raise_low(settled, keep_from, now_ms) if keep_from > view.low_watermark else None

    def delete_before(self, offset: int, now_ms: int) -> int:
        """Move the low watermark up to `offset`, at the most to the end. Returns the new one once it is in the store.

        Raises `CorruptData` if that cannot be noted, because an object of the partition is missing or damaged, and
        `UnknownTopic` if the topic was deleted.
        """
        doubts, splits = Doubts(), 0
        while True:
            view = self._chain.load()
            if view.tail.deleted:
                raise UnknownTopic(f"{self._chain.paths}: the topic was deleted")
            if not view.segments.is_complete and offset > view.low_watermark:
                raise view.tail.damaged or CorruptData(
                    self._chain.paths.prefix, offset, "an object is missing or damaged: nothing was deleted"
                )
            if offset > view.without_parts().tail.end_offset and view.part_count and splits < _SPLITS_MAX:
                splits += 1
                with doubts:
                    self._split(view, now_ms)
                continue
            view = view.without_parts()
            low = min(offset, view.tail.end_offset)
            with doubts:  # the next look at the manifest tells
                if low <= view.low_watermark or self._raise_low(view, low, now_ms):
                    low = max(low, view.low_watermark)
                    # Whoever knows the partition by its lane alone does not ask the manifest.
                    if note_low(self._chain, low):
                        return low

    def _raise_low(self, view: ChainView, low: int, now_ms: int) -> ChainView | None:
        def cut(manifest: Manifest) -> Manifest:
            rows = Segments(self._chain.paths, manifest.table)
            first = rows.row_at(low)
            gone = [key for row in range(first) if not is_slice(key := rows.ref(row).key)]
            kept = SegmentTable()
            kept.extend(manifest.table, first, len(rows))
            return replace(
                manifest,
                low_watermark=low,
                table=kept,
                retired=retired_with(self._chain.paths, manifest, gone, now_ms),
            )

        return change_manifest(self._chain, view, now_ms, cut)

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
            return summary_of(self._chain.store, segments.ref(row)).header.created_at_ms
        except (CorruptData, ObjectNotFound):
            return FAR_FUTURE_MS
