"""Time, passed in. The engine never asks the operating system itself, so a test can drive every timer."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: for timestamps, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for deadlines and durations."""
        ...

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait on `condition` (held by the caller) until it is notified or `timeout` seconds passed on *this* clock.

        May return early for no reason: callers look again.
        """
        ...


class SystemClock:
    """The real one."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if timeout is None or timeout > 0:
            condition.wait(timeout)
