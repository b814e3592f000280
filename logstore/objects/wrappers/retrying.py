"""`RetryingStore`: tries again what may be tried again, with full jitter.

Repeated: get, head, list, delete and *unconditional* puts, on `Determinate` and `Indeterminate` alike,
because doing one of those twice is the same as doing it once. A listing goes on behind the last key that it
handed out.

Never repeated: a conditional put. If the first attempt landed and its answer was lost, the second meets the
caller's own object and reports a failure for a success. Only the caller can tell, by looking at what is
there.

Not worth repeating: an error whose `retriable` is False although nothing happened (no permission, no such
bucket, no credentials, a bad key). It stays the same until a person acts, so the caller learns of it at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from logstore.errors import Indeterminate, StoreError
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """At most `attempts`; before attempt n + 1 wait a random part of `base_s * 2**(n - 1)`, which is at most
    `cap_s`. None: the caller's deadline ends it, or nothing does.
    """

    attempts: int | None = 5
    base_s: float = 0.05
    cap_s: float = 2.0

    def __post_init__(self) -> None:
        if (self.attempts is not None and self.attempts < 1) or self.base_s < 0 or self.cap_s < 0:
            raise ValueError(f"{self}: attempts must be at least 1, and times not negative")

    def pause_s(self, failures: int, rng: Callable[[], float]) -> float:
        """How long to wait after `failures` failures: full jitter. `rng` gives a number in [0, 1)."""
        return rng() * self.limit_s(failures)

    def limit_s(self, failures: int) -> float:
        """The longest of these waits: what one waits who competes with nobody, for a disk of its own."""
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 64))

    def allows(self, error: StoreError, failures: int) -> bool:
        """Whether to try again what may be done twice, after so many failures, of which this is the last."""
        is_transient = error.retriable or isinstance(error, Indeterminate)
        return is_transient and (self.attempts is None or failures < self.attempts)


def repeat(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], object] = time.sleep,
    rng: Callable[[], float] = random.random,
    on_retry: Callable[[], None] | None = None,
) -> T:
    """What `call` gives, which may be done twice, whatever became of it the first time."""
    failures = 0
    while True:
        try:
            return call()
        except StoreError as error:
            failures += 1
            if not policy.allows(error, failures):
                raise
            if on_retry is not None:
                on_retry()
            sleep(policy.pause_s(failures, rng))


class RetryingStore(WrappedStore):
    """An `ObjectStore` round `inner` that rides out short failures.

    Thread-safe: it keeps no state between calls but `retries`, how often something was asked for again.
    """

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self.policy = policy or RetryPolicy()
        self._sleep = sleep
        self._rng = rng
        self._lock = threading.Lock()  # guards `retries`
        self.retries = 0

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if if_absent or if_match is not None:
            return self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        return super().put(key, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        failures = 0
        while True:
            try:
                for info in self.inner.list(prefix, start_after):
                    start_after, failures = info.key, 0
                    yield info
                return
            except StoreError as error:
                failures += 1
                if not self.policy.allows(error, failures):
                    raise
                self._retry()
                self._sleep(self.policy.pause_s(failures, self._rng))

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return repeat(call, self.policy, sleep=self._sleep, rng=self._rng, on_retry=self._retry)

    def _retry(self) -> None:
        with self._lock:
            self.retries += 1
