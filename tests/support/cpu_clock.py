"""The CPU clock of another process: what it has used, all its threads together, in nanoseconds and not in ticks of 10 ms."""

from __future__ import annotations

import time


def cpu_seconds_of(pid: int) -> float:
    """User and system time that the process has used so far."""
    return time.clock_gettime(~pid << 3 | 2)  # the clock that clock_getcpuclockid(3) names, on Linux
