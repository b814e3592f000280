"""Reporter: gives rising boundaries to a callback, one at a time, with no lock of anybody's held.

Many threads learn that something was stored; the source must learn of it in order, once, and may take its
time. A boundary that settles while the callback runs is reported by the thread that is at it. If the
callback raises, the boundary counts as not reported, the exception reaches the thread that delivered, and
the next `deliver` tries again, with a newer boundary if there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Reporter:
    """`settle` says what may be reported, `deliver` reports it. Both from any thread."""

    def __init__(self, start: int, on_flushed: Callable[[int], object]) -> None:
        self._on_flushed = on_flushed
        self._turn = threading.Condition()  # guards the fields below; never held while the callback runs
        self._settled = self._delivered = start
        self._busy: int | None = None  # the thread that is reporting
        self._stopped = False

    @property
    def settled(self) -> int:
        return self._settled

    def settle(self, boundary: int) -> None:
        with self._turn:
            self._settled = boundary

    def deliver(self, *, wait: bool = False) -> None:
        """Report what has settled. With `wait`, also see a report of another thread's to its end."""
        here = threading.get_ident()
        while True:
            with self._turn:
                while wait and self._busy not in (None, here):
                    self._turn.wait()
                if self._busy is not None or self._stopped or self._delivered >= self._settled:
                    return
                self._busy, boundary = here, self._settled
            delivered = False
            try:
                self._on_flushed(boundary)
                delivered = True
            finally:
                with self._turn:
                    self._busy = None
                    self._delivered = boundary if delivered else self._delivered
                    self._turn.notify_all()

    def stop(self) -> None:
        """Report nothing from here on."""
        with self._turn:
            self._stopped = True
