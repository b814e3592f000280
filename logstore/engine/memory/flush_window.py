"""A flush window: the batches that one flush has taken and not yet committed.

`prepare` takes them from the write buffer under the partition's lock. From then on the window never changes: its batches,
its place in the chain and its writer id stay the same through every retry, so an upload whose answer was lost can be
recognised as ours. It stays readable until its segment is. Only the task pool builds and uploads it; readers may read it.
(One exception: of a window whose entry in a lane is void, an atomic append is left out that has failed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from logstore.engine.host.counters import FlushDone
from logstore.engine.memory.pending_batch import PendingBatch, covering, leave_out
from logstore.format.stored.pages import in_one_piece
from logstore.format.stored.segment import HEADER_SIZE, Bytes, SegmentHeader, SegmentSummary, segment_pieces

_MOVED_FROM = 2048


class FlushWindow:
    """May hold no batch at all: then its segment only moves the reservation. `oldest_at`: when the oldest record that
    was not in a window before was appended, on the store's clock."""

    __slots__ = ("_pieces", "_summary", "batches", "charged", "header", "oldest_at")

    def __init__(
        self, header: SegmentHeader, batches: list[PendingBatch], oldest_at: float | None = None
    ) -> None:
        self.header = header
        self.oldest_at = oldest_at
        self.batches = batches
        self.charged = sum([batch.charged for batch in self.batches])
        self._pieces: Sequence[Bytes] | None = None
        self._summary: SegmentSummary | None = None

    def pieces(self) -> Sequence[Bytes]:
        """The segment's bytes, one piece behind the other; no batch is copied. Encodes what is not encoded yet: call it
        without the partition's lock."""
        pieces = self._pieces
        if pieces is None:
            batches = [batch.encoded() for batch in self.batches]
            pieces, self._summary = segment_pieces(self.header, batches)
            self._pieces = pieces
        return pieces

    def summary(self) -> SegmentSummary:
        """What the segment's footer says. As `pieces`."""
        if self._summary is None:
            self.pieces()
            assert self._summary is not None, "made with the pieces"
        return self._summary

    def build(self) -> tuple[memoryview, SegmentSummary]:
        """The segment's bytes in one piece, for an object of its own."""
        pieces, summary = self.pieces(), self.summary()
        if len(pieces) > 1:
            segment = in_one_piece(pieces, summary.object_size)
            self.lies_in(segment, 0, len(segment))
            return segment, summary
        return memoryview(pieces[0]), summary

    def lies_in(self, whole: memoryview, position: int, size: int) -> None:
        """The segment's bytes are in `whole`, too. The batches move there, so that a window which waits for its store is in
        memory once and not twice; not those of a small one, whose bytes are less than the objects round them. What was made
        of such a one beside its batches is made again if it has to go into another entry, which is seldom."""
        self._pieces = None
        if size > _MOVED_FROM:
            segment, at = whole[position : position + size], HEADER_SIZE
            self._pieces = (segment,)
            for batch in self.batches:
                at = batch.move_into(segment, at)

    def leave_out(self, atomic: object) -> tuple[int, int]:
        """As `WriteBuffer.leave_out`. What was built of it is stored nowhere."""
        self.batches, count, charged = leave_out(self.batches, atomic)
        if count:
            self.header = replace(self.header, end_offset=self.header.end_offset - count)
            self.charged -= charged
            self._pieces = self._summary = None
        return count, charged

    def done(self, size: int, seconds: float, now: float) -> FlushDone:
        """What there is to say of it once it is committed, as `size` bytes in the store, `seconds` after it was sent."""
        oldest, header = self.oldest_at, self.header
        waited = None if oldest is None or not self.batches else now - oldest
        return FlushDone(header.base_offset, header.end_offset, size, self.charged, seconds, waited)

    def batches_from(self, offset: int, stop: int, limit: int) -> list[PendingBatch]:
        return covering(self.batches, offset, stop, limit)
