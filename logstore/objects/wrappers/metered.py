"""`MeteredStore`: how many requests, bytes and errors there were, and how long they took, for each operation.

A listing counts as one request for each 1,000 keys, which is what S3 makes of it, and its time is the time
spent in the store, not in the caller's loop. Counting costs a microsecond and no I/O. It knows, too, which requests have no
answer yet: a store that hangs raises nothing.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from logstore.objects.protocol import OPERATIONS, ObjectInfo, ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")

LIST_PAGE = 1000
# Upper bounds in seconds, 1 ms to 16 s, each twice the one before; a last bucket takes the rest.
LATENCY_BOUNDS_S = tuple(0.001 * (1 << n) for n in range(15))
_SIZES: dict[str, Callable[[Any], int]] = {"get": len, "put": attrgetter("size")}


class OperationStats(NamedTuple):
    """What one operation did so far."""

    requests: int
    bytes: int
    errors: dict[str, int]
    seconds: float
    latency_buckets: tuple[int, ...]

    def latency_s(self, quantile: float) -> float:
        """The upper bound of the bucket that holds this quantile; infinite past the last bound."""
        rank = quantile * sum(self.latency_buckets)
        seen = 0
        for bound, count in zip(LATENCY_BOUNDS_S, self.latency_buckets, strict=False):
            seen += count
            if seen >= rank:
                return bound
        return float("inf")


@dataclass
class _Tally:
    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))


class Request(NamedTuple):
    """One request that was answered, or failed, as `MeteredStore.listeners` are told of it."""

    operation: str
    key: str
    seconds: float
    bytes: int
    error: Exception | None


class MeteredStore(WrappedStore):
    """An `ObjectStore` round `inner` that counts. Thread-safe.

    `listeners` are called with each `Request` on the thread that made it; they must be quick, and must not raise.
    """

    def __init__(self, inner: ObjectStore, *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(inner)
        self._clock = clock
        self._lock = threading.Lock()  # guards the tallies; held for a few additions
        self._tallies = {name: _Tally() for name in OPERATIONS}
        self._under_way: dict[object, tuple[str, str, float]] = {}  # a dict's single steps need no lock
        self.listeners: tuple[Callable[[Request], None], ...] = ()

    def snapshot(self) -> dict[str, OperationStats]:
        """The counts of all operations, as of one moment."""
        with self._lock:
            return {
                name: OperationStats(
                    tally.requests, tally.bytes, dict(tally.errors), tally.seconds, tuple(tally.buckets)
                )
                for name, tally in self._tallies.items()
            }

    @property
    def requests(self) -> int:
        """All requests so far."""
        with self._lock:
            return sum(tally.requests for tally in self._tallies.values())

    def oldest(self) -> tuple[str, str, float] | None:
        """Of the requests without an answer the oldest: operation, key, and for how many seconds; None if there is none."""
        waiting = min(list(self._under_way.values()), key=lambda request: request[2], default=None)
        return None if waiting is None else (waiting[0], waiting[1], self._clock() - waiting[2])

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        started = self._clock()
        try:
            found = iter(self.inner.list(prefix, start_after))  # a store of somebody else's may give a list
        except Exception as error:
            self._count("list", prefix, self._clock() - started, error=error)
            raise
        return self._counted(prefix, found)

    def _counted(self, prefix: str, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Counts by the page, and what was read of the last one when the caller stops."""
        pages, keys, spent = 0, 0, 0.0
        failed: Exception | None = None
        try:
            while True:
                started, token = self._clock(), object()
                self._under_way[token] = "list", prefix, started
                try:
                    info = next(found, None)
                except Exception as error:
                    failed = error
                    raise
                finally:
                    del self._under_way[token]
                    spent += self._clock() - started
                if info is None:
                    return
                keys += 1
                if keys == LIST_PAGE:
                    self._count("list", prefix, spent)
                    pages, keys, spent = pages + 1, 0, 0.0
                yield info
        finally:
            if keys or failed or not pages:
                self._count("list", prefix, spent, error=failed)

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        started, token = self._clock(), object()
        self._under_way[token] = operation, key, started
        try:
            answer = call()
        except Exception as error:
            self._count(operation, key, self._clock() - started, error=error)
            raise
        finally:
            del self._under_way[token]
        size = _SIZES.get(operation)
        self._count(operation, key, self._clock() - started, size(answer) if size is not None else 0)
        return answer

    def _count(
        self, operation: str, key: str, took_s: float, size: int = 0, error: Exception | None = None
    ) -> None:
        bucket = bisect_left(LATENCY_BOUNDS_S, took_s)
        with self._lock:
            tally = self._tallies[operation]
            tally.requests += 1
            tally.bytes += size
            tally.seconds += took_s
            tally.buckets[bucket] += 1
            if error is not None:
                tally.errors[type(error).__name__] += 1
        for listener in self.listeners:
            listener(Request(operation, key, took_s, size, error))
