"""How many bytes of large requests the broker holds, all connections together.

A connection asks before it fills a buffer. When the limit is reached it waits its turn, first come first
served, and does not read meanwhile. Requests that fit the shared receive buffer are not counted: their number
is bounded by the connections and their size by that buffer. Used on the event loop only: no lock.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Borrower(Protocol):
    def memory_granted(self) -> None: ...


class RequestMemory:
    """`used` never passes `limit`, except by a single request while nothing else is held."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._queue: deque[tuple[int, Borrower]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def reserve(self, size: int, borrower: Borrower) -> bool:
        """True: taken. False: `borrower.memory_granted()` is called once it is."""
        if not self._queue and self._fits(size):
            self.used += size
            return True
        self._queue.append((size, borrower))
        return False

    def release(self, size: int) -> None:
        self.used -= size
        while self._queue and self._fits(self._queue[0][0]):
            granted, borrower = self._queue.popleft()
            self.used += granted
            borrower.memory_granted()

    def forget(self, borrower: Borrower) -> int:
        """The borrower is gone: its place in the queue too. Returns what it was still waiting for."""
        waiting = [entry for entry in self._queue if entry[1] is borrower]
        if waiting:
            self._queue = deque(entry for entry in self._queue if entry[1] is not borrower)
            self.release(0)
        return sum(size for size, _ in waiting)

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or self.used == 0
