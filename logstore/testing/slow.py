"""`SlowStore`: an object store as far away as you like.

    SlowStore(MemoryStore(), put=0.040)                     # each PUT takes 40 ms
    SlowStore(MemoryStore(), **S3_LATENCY, seed=1)          # as S3 in the same region was measured

The wait comes before the call, through the `sleep` that is passed in. With one thread a seed gives the same
waits each time.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")

# In a log-normal distribution the 99th percentile lies this many sigmas above the median.
_SIGMAS_P99 = 2.3263


@dataclass(frozen=True)
class Latency:
    """Log-normal, given by median and 99th percentile in seconds, growing with size between two measured
    points.

    `p50_large_s` and `p99_large_s` are those of a request of `large_bytes`; None: size makes no difference.
    """

    p50_s: float
    p99_s: float
    p50_large_s: float | None = None
    p99_large_s: float | None = None
    small_bytes: int = 4 << 10
    large_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if not 0 < self.p50_s <= self.p99_s:
            raise ValueError(f"{self}: the median must be above 0 and not above the 99th percentile")

    def draw_s(self, size: int, rng: random.Random) -> float:
        """One latency for a request of `size` bytes."""
        share = max(0.0, (size - self.small_bytes) / (self.large_bytes - self.small_bytes))
        p50 = self.p50_s + share * ((self.p50_large_s or self.p50_s) - self.p50_s)
        p99 = self.p99_s + share * ((self.p99_large_s or self.p99_s) - self.p99_s)
        return p50 * math.exp(rng.gauss(0.0, math.log(p99 / p50) / _SIGMAS_P99))


S3_PUT = Latency(0.028, 0.067, 0.141, 0.252)
S3_GET = Latency(0.024, 0.077)
S3_LATENCY = {"get": S3_GET, "put": S3_PUT, "head": S3_GET, "list": S3_GET, "delete": S3_GET}


class SlowStore(WrappedStore):
    """An `ObjectStore` round `inner` that waits before each call: a number of seconds, or one drawn from a
    `Latency`.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        get: float | Latency = 0.0,
        put: float | Latency = 0.0,
        head: float | Latency = 0.0,
        list: float | Latency = 0.0,
        delete: float | Latency = 0.0,
        seed: int = 0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._latency = {"get": get, "put": put, "head": head, "list": list, "delete": delete}
        self._sleep = sleep
        self._lock = threading.Lock()  # guards the random generator
        self._rng = random.Random(seed)

    def _wait(self, operation: str, size: int) -> None:
        latency = self._latency[operation]
        if isinstance(latency, Latency):
            with self._lock:
                latency = latency.draw_s(size, self._rng)
        if latency > 0:
            self._sleep(latency)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        size = 0
        try:
            answer = self.inner.get(key, start, end)
            size = len(answer)
        finally:
            self._wait("get", size)  # also for the answer that there is nothing
        return answer

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self._wait("put", len(data))
        return self.inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self._wait(operation, 0)
        return call()
