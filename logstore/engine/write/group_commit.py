"""Group commit's patience: after a commit, wait a moment for the producers that it released.

When a commit releases n producers, most come back at once with their next record. A flush that starts with the first of them
makes all others wait for two uploads. So from the first one on it waits until as many have come as were released or were
waiting already, at most a quarter of the last upload's time: for 64 threads of one interpreter, that long is needed before
all have run. It waits in a few short steps: whatever stops this process on a busy machine stops those it waits for as well,
and ends one step instead of all. A producer that is alone never waits, and of a crowd that leaves, the last one does so once
at most: not if it comes later than another upload would have taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from logstore.engine.host.clock import Clock
from logstore.engine.write.upload_time import LONGEST_S

_SHARE_OF_UPLOAD = 4
_STEPS = 4


class Linger:
    """Guarded by the partition's lock; `moved` is a condition on it."""

    def __init__(self, clock: Clock, moved: threading.Condition) -> None:
        self._clock = clock
        self._moved = moved
        self._for = 0
        self._gone_at = 0.0
        self._step_s = 0.0

    def after_commit(self, released: int, waiting: int, upload_s: float) -> None:
        """A commit that took `upload_s` has released so many appends, and so many wait for the next one already."""
        upload_s = min(upload_s, LONGEST_S)
        self._for = released + waiting if released > 1 else 0
        self._gone_at = self._clock.monotonic() + upload_s
        self._step_s = upload_s / _SHARE_OF_UPLOAD / _STEPS

    def came(self, waiting: int) -> None:
        """One more append; `waiting` with it. Wakes the flush that waits for the last of them."""
        if self._for and waiting >= self._for:
            self._moved.notify_all()

    def wait(self, waiting: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """Before a flush. Holds the lock, waits without it."""
        if not waiting():
            return  # for whoever comes first
        steps = _STEPS if self._clock.monotonic() < self._gone_at else 0
        for _ in range(steps):
            until = self._clock.monotonic() + self._step_s
            while waiting() < self._for and not is_over():
                left = until - self._clock.monotonic()
                if left <= 0:
                    break
                self._clock.wait(self._moved, left)
        self._for = 0
