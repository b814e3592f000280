"""Bounded fan-out of requests: serial while a call takes less than a millisecond, else several at a time.

A hand-over to another thread takes longer than a look into memory or at a local disk; sixty requests to S3, one by one,
take longer than the sixty commits that maintenance has to keep up with.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")
Now = Callable[[], float]

AT_ONCE = 8
QUICK_S = 0.001
"""What takes less than this, from a local disk or from memory, is not worth a hand-over to another thread and back, which
would take as long again."""
_IN_A_ROW = 2  # one alone may have met a busy moment, or a cache


def fan_out(
    calls: Iterable[Callable[[], T]],
    now: Now = time.perf_counter,
    *,
    at_once: int = AT_ONCE,
    ahead: bool = False,
    pool: Executor | None = None,
) -> Generator[T, None, None]:
    """What the calls return, in their order. The first that raises ends it; those under way are waited for.

    When two in a row were not quick, `at_once` are under way at a time; when two of those in a row were quick, it is one at
    a time again. `ahead`: begin with several, for a caller who has work to do while the next ones are on their way, or knows
    that they take long.

    A `pool` of the caller's, of `at_once` threads, outlives this: who stops early then does not wait for what is under way.
    """
    left = iter(calls)
    if not ahead:
        yield from _while_quick(left, now)
    while some := list(islice(left, at_once)):
        if len(some) == 1:
            yield some[0]()
            return
        yield from _while_slow(chain(some, left), now, at_once, pool)
        yield from _while_quick(left, now)


def timed(call: Callable[[], T], now: Now = time.perf_counter) -> tuple[T, bool]:
    """What it returns, and whether it took so long that more of its kind are better made several at a time."""
    result, took_s = _timed(call, now)
    return result, took_s >= QUICK_S


def _timed(call: Callable[[], T], now: Now) -> tuple[T, float]:
    began = now()
    return call(), now() - began


def _begun(threads: Executor, call: Callable[[], T], now: Now) -> Future[tuple[T, float]]:
    try:
        return threads.submit(_timed, call, now)
    except RuntimeError as refused:
        # Where the interpreter ends, no pool takes work any more, and a store that is closed there still has some.
        if "interpreter shutdown" not in str(refused):
            raise
    done: Future[tuple[T, float]] = Future()
    try:
        done.set_result(_timed(call, now))
    except Exception as error:
        done.set_exception(error)
    return done


def _while_quick(calls: Iterator[Callable[[], T]], now: Now) -> Iterator[T]:
    slow_in_a_row = 0
    for call in calls:
        result, took_s = _timed(call, now)
        slow_in_a_row = slow_in_a_row + 1 if took_s >= QUICK_S else 0
        yield result
        if slow_in_a_row == _IN_A_ROW:
            return


def _while_slow(
    calls: Iterator[Callable[[], T]], now: Now, at_once: int, pool: Executor | None
) -> Iterator[T]:
    under_way: deque[Future[tuple[T, float]]] = deque()
    quick_in_a_row = 0
    with nullcontext(pool) if pool else ThreadPoolExecutor(at_once, "logstore-side") as threads:
        try:
            for call in calls:
                under_way.append(_begun(threads, call, now))
                if len(under_way) == at_once:
                    result, took_s = under_way.popleft().result()
                    quick_in_a_row = quick_in_a_row + 1 if took_s < QUICK_S else 0
                    yield result
                    if quick_in_a_row == _IN_A_ROW:
                        break
            while under_way:
                yield under_way.popleft().result()[0]
        finally:
            for future in under_way:
                future.cancel()
