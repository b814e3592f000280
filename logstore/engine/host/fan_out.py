"""Many requests to the store: one after the other where it is near, several at a time where it is far.

A hand-over to another thread takes longer than a look into memory or at a local disk; sixty requests to S3, one by one,
take longer than the sixty commits that maintenance has to keep up with.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8
QUICK_S = 0.001
"""What takes less than this, from a local disk or from memory, is not worth a hand-over to another thread and back, which
would take as long again."""


def side_by_side(
    calls: Iterable[Callable[[], T]], now: Callable[[], float] = time.perf_counter
) -> Iterator[T]:
    """What the calls return, in their order. The first that raises ends it; those under way are waited for.

    When two in a row were not quick, `AT_ONCE` are under way at a time from then on, if there are as many left. (One alone
    may have met a busy moment.)
    """
    left, slow_in_a_row = iter(calls), 0
    for call in left:
        began = now()
        result = call()
        slow_in_a_row = slow_in_a_row + 1 if now() - began >= QUICK_S else 0
        yield result
        if slow_in_a_row == 2:
            break
    next_ones = list(islice(left, AT_ONCE))
    if len(next_ones) < AT_ONCE:
        yield from (call() for call in next_ones)
        return
    under_way: deque[Future[T]] = deque()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logstore-side") as pool:
        try:
            for call in chain(next_ones, left):
                under_way.append(pool.submit(call))
                if len(under_way) == AT_ONCE:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
