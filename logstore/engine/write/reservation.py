"""How many offsets past its end a segment reserves, so that no offset that a reader may have seen is ever used again.

Nothing is reserved until a record is acked before it is durable. From then on each segment reserves a few times as many as
were appended in the last flush interval, and some at least. More would be told as lost after a crash although nobody has
seen them; fewer would make appends wait for a PUT of their own. While no rate is known (in the fence of a new writer) it is
the first number below. A writer whose reservation is used up flushes at once, and reserves at least that many again and four
times what has come since, so a burst needs few PUTs more. Afterwards each flush halves it, down to what the rate asks for.
"""

from __future__ import annotations

from collections import deque

RESERVATION = 1024
RESERVATION_MIN = 64
TIMES_THE_RATE = 4
LOOK_BACK_S = 1.0


class Reservation:
    """Guarded by the partition's lock. `wanted`: somebody waits for a commit that reserves more."""

    def __init__(self, flush_interval: float, *, begun: bool, next_offset: int, now: float) -> None:
        self.wanted = False
        self._size = RESERVATION_MIN if begun else 0
        self._look_back = min(flush_interval, LOOK_BACK_S)
        # When, and what the next offset was: over the last interval. Before anything is reserved only the last one counts,
        # and is kept as two numbers: a tuple for each flush of a thousand partitions keeps the garbage collector busy.
        self._flushes: deque[tuple[float, int]] = deque()
        self._last_at, self._last_offset = now, next_offset

    def ask(self, count: int) -> None:
        """The next commit must reserve room for `count` records, which are the first of their interval."""
        self._size = max(self._size, RESERVATION, TIMES_THE_RATE * count)
        self.wanted = True

    def until(self, next_offset: int, now: float) -> int:
        """What a segment reserves that is made now. `next_offset`: past everything that was appended, stored or not.

        It may be less than what is committed. From now on its writer shows nothing past it, so that it does not matter
        which of the two is there after a crash.
        """
        if self._size:
            flushes = self._flushes
            if not flushes:
                flushes.append((self._last_at, self._last_offset))
            while len(flushes) > 1 and flushes[1][0] <= now - self._look_back:
                flushes.popleft()
            appended = next_offset - flushes[0][1]
            flushes.append((now, next_offset))
            least = self._size if self.wanted else self._size // 2
            self._size = max(least, TIMES_THE_RATE * appended, RESERVATION_MIN)
        self._last_at, self._last_offset = now, next_offset
        self.wanted = False
        return next_offset + self._size
