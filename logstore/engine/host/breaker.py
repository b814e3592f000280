"""A circuit breaker: while the object store is down, one upload at a time finds out whether it is back.

Closed (all is well): every upload may go. After `FAILURES_TO_OPEN` failures in a row it opens: no upload goes until
`probe_interval` has passed, then exactly one does (half open). Its success closes the breaker and wakes everybody; its
failure opens it for another interval. So a store that is down sees one request an interval, and a healed one is used again
within one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from logstore.engine.host.clock import Clock

FAILURES_TO_OPEN = 3


class CircuitBreaker:
    """The lock guards the four fields below it and is held for nothing slow. `on_close` is called without it."""

    def __init__(self, probe_interval: float, clock: Clock, on_close: Callable[[], None]) -> None:
        self._probe_interval = probe_interval
        self._clock = clock
        self._on_close = on_close
        self._lock = threading.Lock()
        self.answered_at = clock.monotonic()
        self._failures = 0
        self._next_probe: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._next_probe is not None

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def delay(self) -> float:
        """0.0 if an upload may go now (then report `success` or `failure`), else how long to wait before asking again."""
        with self._lock:
            if self._next_probe is None:
                return 0.0
            left = self._next_probe - self._clock.monotonic()
            if left <= 0 and not self._probing:
                self._probing = True
                return 0.0
            # While somebody else's probe is under way, its end is what matters: success wakes us, failure sets a new time.
            return left if left > 0 else self._probe_interval / 2

    def success(self) -> None:
        """The store answered, whatever the answer."""
        with self._lock:
            was_open = self._next_probe is not None
            self._failures, self._next_probe, self._probing = 0, None, False
            self.answered_at = self._clock.monotonic()
        if was_open:
            self._on_close()

    def failure(self) -> None:
        """The store did not answer, or said that it cannot serve."""
        with self._lock:
            self._failures += 1
            self._probing = False
            if self._failures >= FAILURES_TO_OPEN:
                self._next_probe = self._clock.monotonic() + self._probe_interval
