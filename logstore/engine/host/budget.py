"""Backpressure: how many bytes of the whole store may wait to be stored.

The sum of all that was taken and not yet given back never passes the limit. A taker waits up to its timeout and then gets
`BufferFull`, having taken nothing. First come, first served is not promised; progress is: every release wakes all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from logstore.engine.host.clock import Clock
from logstore.errors import BufferFull, Closed


class Budget:
    """The lock guards the fields below it, nothing else, and no other lock is taken while it is held.

    `waits`, `refused`, `waited_s`: how often somebody had to wait for room, got none in time, and for how long in all.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._freed = threading.Condition(threading.Lock())
        self._used = 0
        self._waiting = 0
        self._closed = False
        self.used_max = 0
        self.waits = 0
        self.refused = 0
        self.waited_s = 0.0

    @property
    def used(self) -> int:
        return self._used

    @property
    def pressed(self) -> bool:
        """Whether somebody waits for room: then whatever can be flushed should be."""
        return self._waiting > 0

    @contextmanager
    def pressing(self) -> Iterator[None]:
        """Around a wait for room, from before the flushes are asked for: one that begins later must see it too."""
        with self._freed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._freed:
                self._waiting -= 1

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if there is room now."""
        with self._freed:
            if self._closed or self._used + size > self.limit:
                return False
            self._add(size)
            return True

    def take(self, size: int, timeout: float) -> None:
        """Take `size` bytes, waiting up to `timeout` seconds for room."""
        began = self._clock.monotonic()
        deadline = began + timeout
        with self._freed:
            waits = self._used + size > self.limit
            self.waits += waits
            while self._used + size > self.limit and not self._closed:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    self.refused += 1
                    self.waited_s += timeout
                    raise BufferFull(
                        f"{self._used} of {self.limit} buffered bytes are waiting to be stored and {size} more did not "
                        f"fit within {timeout:g} s: nothing was appended; try again, or raise max_buffered_bytes"
                    )
                self._clock.wait(self._freed, left)
            if waits:
                self.waited_s += self._clock.monotonic() - began
            if self._closed:
                raise Closed("the store is closed; nothing was appended")
            self._add(size)

    def _add(self, size: int) -> None:
        self._used += size
        if self._used > self.used_max:
            self.used_max = self._used

    def give_back(self, size: int) -> None:
        with self._freed:
            self._used -= size
            assert self._used >= 0, "more bytes were given back than taken"
            self._freed.notify_all()

    def close(self) -> None:
        """Wake every waiter with `Closed`."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()
