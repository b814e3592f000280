"""`MeteredStore`: how many requests, bytes and errors there were, and how long they took, for each operation.

A listing counts as one request for each 1,000 keys, which is what S3 makes of it, and its time is the time
spent in the store, not in the caller's loop. Counting costs a microsecond and no I/O.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from logstore.objects.protocol import OPERATIONS, Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")

LIST_PAGE = 1000
# Upper bounds in seconds, 1 ms to 16 s, each twice the one before; a last bucket takes the rest.
LATENCY_BOUNDS_S = tuple(0.001 * (1 << n) for n in range(15))


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


class MeteredStore:
    """An `ObjectStore` round `inner` that counts. Thread-safe."""

    def __init__(self, inner: ObjectStore, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.inner = inner
        self._clock = clock
        self._lock = threading.Lock()  # guards the tallies; held for a few additions
        self._tallies = {name: _Tally() for name in OPERATIONS}

    def __repr__(self) -> str:
        return repr(self.inner)  # messages name the place, not how it is wrapped

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

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._timed("get", lambda: self.inner.get(key, start, end), len)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._timed(
            "put", lambda: self.inner.put(key, data, if_absent=if_absent, if_match=if_match), _size
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._timed("head", lambda: self.inner.head(key), _nothing)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        started = self._clock()
        try:
            found = iter(self.inner.list(prefix, start_after))  # a store of somebody else's may give a list
        except Exception as error:
            self._count("list", self._clock() - started, error=error)
            raise
        return self._counted(found)

    def _counted(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Counts by the page, and what was read of the last one when the caller stops."""
        pages, keys, spent = 0, 0, 0.0
        failed: Exception | None = None
        try:
            while True:
                started = self._clock()
                try:
                    info = next(found, None)
                except Exception as error:
                    failed = error
                    raise
                finally:
                    spent += self._clock() - started
                if info is None:
                    return
                keys += 1
                if keys == LIST_PAGE:
                    self._count("list", spent)
                    pages, keys, spent = pages + 1, 0, 0.0
                yield info
        finally:
            if keys or failed or not pages:
                self._count("list", spent, error=failed)

    def delete(self, key: str) -> None:
        self._timed("delete", lambda: self.inner.delete(key), _nothing)

    def _timed(self, operation: str, call: Callable[[], T], size: Callable[[T], int]) -> T:
        started = self._clock()
        try:
            answer = call()
        except Exception as error:
            self._count(operation, self._clock() - started, error=error)
            raise
        self._count(operation, self._clock() - started, size(answer))
        return answer

    def _count(self, operation: str, took_s: float, size: int = 0, error: Exception | None = None) -> None:
        bucket = bisect_left(LATENCY_BOUNDS_S, took_s)
        with self._lock:
            tally = self._tallies[operation]
            tally.requests += 1
            tally.bytes += size
            tally.seconds += took_s
            tally.buckets[bucket] += 1
            if error is not None:
                tally.errors[type(error).__name__] += 1


def _size(info: ObjectInfo) -> int:
    return info.size


def _nothing(answer: object) -> int:
    return 0
