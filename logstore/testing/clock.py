"""A clock that stands still until the test moves it."""

from __future__ import annotations

import threading
import weakref

_LOOK_AGAIN_S = 0.02


class ManualClock:
    """Starts at a fixed moment; `advance` moves it and wakes everything that waits on it.

    >>> clock = ManualClock()
    >>> before = clock.monotonic()
    >>> clock.advance(2.5)
    >>> clock.monotonic() - before
    2.5
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._start_ms = start_ms
        self._seconds = 0.0
        self._waiting: weakref.WeakSet[threading.Condition] = weakref.WeakSet()

    def now_ms(self) -> int:
        with self._lock:
            return self._start_ms + int(self._seconds * 1000)

    def monotonic(self) -> float:
        with self._lock:
            return self._seconds

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Returns early now and then: an `advance` between the caller's look at the time and this wait must not be lost."""
        if timeout is not None and timeout <= 0:
            return
        with self._lock:
            self._waiting.add(condition)
        condition.wait(_LOOK_AGAIN_S)

    def advance(self, seconds: float) -> None:
        """Move on and wake the waiters; each looks at the new time by itself."""
        with self._lock:
            self._seconds += seconds
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()
