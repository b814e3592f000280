"""How many offsets past its end a segment reserves, so that no offset that a reader may have seen is ever used again.

Nothing is reserved until a record is acked before it is durable. From then on: as many as the buffer could hold at the size
of the records seen so far (so that an outage meets the limit in bytes first), and no more, because after a crash they are
skipped. Until a size is known it is the smaller number below; a writer that runs out reserves four times as many afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.engine.pending_batch import PendingBatch

RESERVATION = 1 << 14
RESERVATION_MAX = 1 << 20


class Reservation:
    """Guarded by the partition's lock. `wanted`: somebody waits for a commit that reserves more."""

    def __init__(self, max_buffered_bytes: int, *, begun: bool) -> None:
        self.wanted = False
        self._size = RESERVATION if begun else 0
        self._max_buffered_bytes = max_buffered_bytes

    def ask(self, count: int) -> None:
        """The next commit must reserve room for `count` records, and for more than the last one did."""
        grown = self._size if self.wanted else min(self._size * 4, RESERVATION_MAX)
        self._size = max(grown, RESERVATION, count)
        self.wanted = True

    def until(self, end_offset: int, batches: Sequence[PendingBatch], committed: int) -> int:
        """What a segment that ends there reserves. Never less than what is committed: readers may have seen it."""
        if self._size and batches:
            record_bytes = sum(batch.charged for batch in batches) / sum(batch.count for batch in batches)
            fit = int(self._max_buffered_bytes / record_bytes) + 1
            self._size = max(self._size, min(fit, RESERVATION_MAX))
        self.wanted = False
        return max(end_offset + self._size, committed)
