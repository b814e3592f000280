"""Time, passed in. The engine never asks the operating system itself, so a test can drive every timer."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: for timestamps, never for waiting."""

    def monotonic(self) -> float:
        """Seconds that only grow: for deadlines and durations."""

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait on `condition` (held by the caller) until it is notified or `timeout` seconds passed on *this* clock.

        May return early for no reason: callers look again.
        """


class SystemClock:
    """The real one."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if timeout is None or timeout > 0:
            condition.wait(None if timeout is None else waitable(timeout))


def waitable(seconds: float) -> float:
    """As many seconds as a lock, a future or a thread can be waited for: none below 0, and some 292 years for `inf`, which
    is how a caller says that it has no deadline."""
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)
