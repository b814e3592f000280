"""One object instead of several neighbouring rows: it is built, stored, and named by a swap of the manifest.

For whoever rewrites rows: compaction, which copies their batches, and compaction by key, which leaves records out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import claim_of, link_of_ref, summary_of
from logstore.engine.chain.manifests.manifest_changes import (
    change_manifest,
    named_by,
    retired_with,
    stored_manifest,
)
from logstore.engine.chain.segment_table import SegmentRef, Segments
from logstore.engine.chain.view import ChainView
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.extras import Extras
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, SegmentSummary, build_segment

SPAN_MAX = (1 << 32) - 1
"""So many offsets an object may cover: an index row counts them in 32 bits."""


def neighbours(table: SegmentTable, rows: range, max_bytes: int) -> Iterator[range]:
    """The rows in runs without a hole, and no larger than a segment may be."""
    start, size = rows.start, 0
    for row in rows:
        size += table.size[row]
        if row > start and (
            table.base_offset[row] != table.end_offset[row - 1]
            or size > max_bytes
            or table.end_offset[row] - table.base_offset[start] > SPAN_MAX
        ):
            yield range(start, row)
            start, size = row, table.size[row]
    if start < rows.stop:
        yield range(start, rows.stop)


class Replacing:
    """Holds no state of its own."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def build(
        self,
        view: ChainView,
        run: range,
        batches: Sequence[EncodedBatch],
        now_ms: int,
        identity: bytes,
        *,
        sparse: bool,
    ) -> tuple[memoryview, SegmentSummary]:
        """The object that stands for the rows in `run`. `sparse`: records were taken away, now or earlier."""
        refs = view.segments.refs(run.start, run.stop)
        first, last = refs[0], refs[-1]
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
            flags=SegmentFlags.MERGED | (SegmentFlags.SPARSE if sparse else SegmentFlags.NONE),
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

    def publish(
        self,
        view: ChainView,
        run: range,
        data: memoryview,
        summary: SegmentSummary,
        now_ms: int,
        identity: bytes,
    ) -> ChainView | None:
        """Store the object and name it in the manifest. None if that could not be.

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

        published = change_manifest(self._chain, view, now_ms, swap)
        if published is None and (stored := stored_manifest(self._chain)) is not None:
            if key in named_by(self._chain.paths, stored):
                return self._chain.load()  # it was named, and somebody has changed the manifest since
            if stored.version != view.manifest_version:
                self._chain.store.delete(key)
        return published
