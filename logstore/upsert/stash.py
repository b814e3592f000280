"""Updates that wait for their time: by time, then by key, and within those the one with the highest order.

Folding is associative, commutative and idempotent, so neither the order of arrival nor the cutting into batches matters.
Times are taken out of a heap as the input completes them, so a call costs O(what is new or eligible), never O(what waits).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

TIME_MAX = (1 << 63) - 1
Latest = dict[bytes, tuple[Any, bytes | None]]
_NONE: Latest = {}


class Stash:
    """One thread at a time."""

    def __init__(self) -> None:
        self._by_time: dict[int, Latest] = {}
        self._waiting: list[int] = []  # a heap of times that the input has not completed
        self._complete: deque[int] = deque()  # those that it has, in order
        self.late = 0  # how many updates came when the log had their time already

    def __len__(self) -> int:
        """How many (key, time) pairs wait. Counts them: for tests and health, not for a hot path."""
        return sum(len(latest) for latest in self._by_time.values())

    def add_many(
        self, updates: Iterable[tuple[bytes, bytes | None, Any, int]], frontier: int, upper: int
    ) -> None:
        """Take `(key, value, order, time)` in; those below the frontier are left out and counted in `late`.

        Raises ValueError for a time from there up to `upper`, below which the input was declared complete. What came before
        it in `updates` has been taken in.
        """
        late, latest = 0, _NONE
        current: int | None = None
        try:
            for key, value, order, time in updates:
                if type(key) is not bytes or (type(value) is not bytes and value is not None):
                    raise TypeError("a key is bytes, a value bytes or None")
                if time != current:
                    if 0 <= time < frontier:
                        late += 1
                        continue
                    latest, current = self._at(time, upper), time
                known = latest.get(key)
                if known is None or order > known[0] or (order == known[0] and _above(value, known[1])):
                    latest[key] = (order, value)
        finally:
            self.late += late

    def _at(self, time: int, upper: int) -> Latest:
        if type(time) is not int or not 0 <= time <= TIME_MAX:
            raise ValueError(f"time={time!r}: it is an int from 0 to {TIME_MAX}")
        if time < upper:
            raise ValueError(f"an update at time {time}, but the input was declared complete below {upper}")
        latest = self._by_time.get(time)
        if latest is None:
            latest = self._by_time[time] = {}
            heapq.heappush(self._waiting, time)
        return latest

    def complete(self, upper: int) -> None:
        """The input is complete below `upper`."""
        while self._waiting and self._waiting[0] < upper:
            self._complete.append(heapq.heappop(self._waiting))

    def drop_below(self, frontier: int) -> int:
        """Forget what the log has already. Returns how many updates that was."""
        dropped = 0
        while self._complete and self._complete[0] < frontier:
            dropped += len(self._by_time.pop(self._complete.popleft()))
        while self._waiting and self._waiting[0] < frontier:
            dropped += len(self._by_time.pop(heapq.heappop(self._waiting)))
        return dropped

    def eligible(self) -> Iterator[tuple[int, Latest]]:
        """The complete times and their updates, in order. They stay until `drop_below` passes them."""
        for time in self._complete:
            yield time, self._by_time[time]

    def held_at(self, time: int) -> Latest | None:
        """The updates that wait at `time`, complete or not."""
        return self._by_time.get(time)

    @property
    def first(self) -> int | None:
        """The earliest time there is."""
        if self._complete:
            return self._complete[0]
        return self._waiting[0] if self._waiting else None


def _above(value: bytes | None, other: bytes | None) -> bool:
    """Two updates of one order should not happen; if they do, every writer must still pick the same."""
    return value is not None and (other is None or value > other)
