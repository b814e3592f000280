"""Who reads a partition in order, and since how many reads.

A read that begins where an earlier one ended goes on with that scan. Several scans of one partition do not disturb each
other; of more than a few at once the oldest is forgotten, and only reads ahead less for a while.
"""

from __future__ import annotations

import threading

_REMEMBERED = 32


class Scans:
    """Guarded by a lock of its own: readers hold no other one when they ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._length_by_end: dict[int, int] = {}

    def begin(self, offset: int) -> int:
        """How many reads in a row have led to `offset`; 0 if none is known to have ended there."""
        return self._length_by_end.get(offset, 0)

    def end(self, begun_at: int, next_offset: int) -> None:
        """A read from `begun_at` ended before `next_offset`."""
        if next_offset == begun_at:
            return  # nothing was there yet: whoever waits at the end comes back to it
        with self._lock:
            length = self._length_by_end.pop(begun_at, 0) + 1
            self._length_by_end.pop(next_offset, None)  # to the end of the queue
            self._length_by_end[next_offset] = length
            if len(self._length_by_end) > _REMEMBERED:
                del self._length_by_end[next(iter(self._length_by_end))]
