"""The atomic appends of a partition that are not decided yet, and what waits behind them.

What comes behind one has an offset that may still become a smaller one. So it is neither shown nor acked, at whatever level,
before the atomic append is decided.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.memory.results import Receipt
from logstore.engine.memory.waiters import OffsetWaiters
from logstore.engine.write.lanes.flushed import Atomic


class _Placed(NamedTuple):
    atomic: Atomic
    receipt: Receipt


class UndecidedAppends:
    """Guarded by the partition's lock. `shown_waiters`: who waits behind one of them for a buffered ack."""

    def __init__(self) -> None:
        self.shown_waiters: OffsetWaiters[Receipt] = OffsetWaiters()
        self._placed: list[_Placed] = []  # in the order of their offsets

    def __bool__(self) -> bool:
        return bool(self._placed)

    def add(self, atomic: Atomic, receipt: Receipt) -> None:
        """It has its offsets, behind all others."""
        self._placed.append(_Placed(atomic, receipt))

    def begin_at(self, end: int) -> int:
        """From where on nothing is certain; `end` if everything is."""
        return self._placed[0].receipt.offset if self._placed else end

    def stored_below(self, durable: int) -> bool:
        """Everything below `durable` is stored. Whether any of these was in it."""
        left = [placed for placed in self._placed if placed.receipt.offset >= durable]
        found, self._placed = len(left) < len(self._placed), left
        return found

    def remove(self, atomic: Atomic) -> tuple[int, list[Receipt]]:
        """It has failed. Returns the offset where it began, and the receipts of the atomic appends behind it."""
        base = next(placed.receipt.offset for placed in self._placed if placed.atomic is atomic)
        self._placed = [placed for placed in self._placed if placed.atomic is not atomic]
        return base, [placed.receipt for placed in self._placed if placed.receipt.offset > base]

    def take_all(self) -> list[Atomic]:
        """Its writer has stopped."""
        placed, self._placed = self._placed, []
        return [one.atomic for one in placed]
