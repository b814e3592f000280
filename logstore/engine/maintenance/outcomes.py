"""How the transactions of a part of the log ended: what compaction by key has to know before it learns a key from one.

Read from the batches in their order, up to where the log may be cleaned. A transaction whose marker lies behind that has not
ended, as far as this knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.engine.chain.segment_reader import Block
from logstore.format.batches.batch import BatchInfo, split
from logstore.format.batches.transactions import AbortedBatches, Transactions


class Outcomes:
    """`stable`: below it every transaction has ended. Nothing is known of what lies from `end` on."""

    def __init__(self, blocks: Iterable[Block], start: int, end: int) -> None:
        known = Transactions()
        for block in blocks:
            for info in split(block.data):
                if start <= info.base_offset < end:
                    known.replay(block.data, info)
        self._end = end
        self._open = {producer: each.first_offset for producer, each in known.open.items()}
        self.stable = known.last_stable(end)
        self.is_aborted = AbortedBatches(known.aborted(start, end)).holds
        """Whether a batch is of a transaction that was aborted."""

    def is_committed(self, info: BatchInfo) -> bool:
        """Whether it is of one that was committed."""
        is_decided = info.base_offset < min(self._end, self._open.get(info.producer_id, self._end))
        return is_decided and not self.is_aborted(info)
