"""Long lists of a client's, a piece at a time, so that one request holds up nobody else's.

A request of two megabytes names fifty thousand things. Whoever walks over them without a pause keeps the event loop for
seconds, and whoever asks the store for all of them at once keeps every worker, and a task for each in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from time import monotonic
from typing import TypeVar

TURN_S = 0.005
"""How long one request may keep the event loop while others want to run."""
AT_ONCE = 8
"""How many questions one request has open at the store: half of the workers are left for others."""
T = TypeVar("T")
R = TypeVar("R")


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn for others whenever ours has been long enough."""
    until = monotonic() + TURN_S
    for item in items:
        yield item
        if monotonic() >= until:
            await asyncio.sleep(0)
            until = monotonic() + TURN_S


async def few_at_once(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """What `work` gives for each item, in their order."""
    left = iter(items)
    done: list[R] = []
    while few := list(islice(left, AT_ONCE)):
        done += await asyncio.gather(*map(work, few))
    return done
