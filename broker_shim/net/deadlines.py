"""When long polls end: those whose time is up at about the same moment end together.

A hundred idle consumers ask twice a second each. With a timer for each of them the broker would wake up four hundred
times a second, for a timer and again for the next request, every time with cold caches. So a deadline is put off to
the next line of a grid, by at most a sixteenth of the wait, and the clients who were answered together also ask
again together.

Event loop only.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Protocol

GRID_S = 0.025
GRID_SHARE = 16


class Waiter(Protocol):
    def time_up(self) -> None: ...


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[float, tuple[asyncio.TimerHandle, set[Waiter]]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, waiter: Waiter, wait_s: float) -> float:
        """Call `waiter.time_up` when `wait_s` have passed, or a little later. Returns what `remove` needs."""
        grid = min(GRID_S, wait_s / GRID_SHARE)
        when = self._loop.time() + wait_s
        if grid > 0:
            when = ceil(when / grid) * grid
        known = self._due.get(when)
        if known is None:
            known = self._due[when] = (self._loop.call_at(when, self._end, when), set())
        known[1].add(waiter)
        return when

    def remove(self, waiter: Waiter, when: float) -> None:
        """It has its answer, or its client has gone."""
        known = self._due.get(when)
        if known is None:
            return
        timer, waiters = known
        waiters.discard(waiter)
        if not waiters:
            timer.cancel()
            del self._due[when]

    def _end(self, when: float) -> None:
        _, waiters = self._due.pop(when)
        for waiter in waiters:
            waiter.time_up()
