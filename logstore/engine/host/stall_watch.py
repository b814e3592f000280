"""Uploads that the store has not answered: which, since when, and one line in the log when that lasts.

A store that hangs raises nothing: the thread that asked it waits, and nobody else learns of it. So whoever uploads says here
when it begins and when it has been answered. A failed attempt is no answer: the wait goes on until one comes. One timer is
set while an upload is under way, for the moment at which it is late; an idle store has none.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable

from logstore.engine.host.clock import Clock
from logstore.engine.host.task_pool import TaskPool

logger = logging.getLogger(__name__)

GIVEN_UP = "nobody waits for the store any longer"


class StallWatch:
    """The lock guards the two fields below it, for memory work only. It may be taken inside a partition's lock.

    `_waiting`: who waits, with a name for the log and the time at which it began, oldest first. `_stalled_since`: when the
    wait began that the log was told of; None while there is no such.
    """

    def __init__(self, clock: Clock, stall_after: float) -> None:
        self._clock = clock
        self._stall_after = stall_after
        # Of its own: all threads of the other one may wait for the store.
        self._timer = TaskPool(clock, 1, "watch")
        self._lock = threading.Lock()
        self._waiting: dict[object, tuple[object, float]] = {}
        self._stalled_since: float | None = None

    @property
    def has_threads(self) -> bool:
        return self._timer.has_threads

    def began(self, who: object, name: object) -> None:
        """`who` asks the store for something, or asks again after a failure: then it waits since the first time."""
        self._began([(who, name)])

    def all_began(self, whos: Iterable[object]) -> None:
        """The same of many that ask together, each of which is its own name."""
        self._began([(who, who) for who in whos])

    def _began(self, asking: list[tuple[object, object]]) -> None:
        now = self._clock.monotonic()
        with self._lock:
            was_idle = not self._waiting
            for who, name in asking:
                self._waiting.setdefault(who, (name, now))
            is_first = was_idle and bool(self._waiting)
        if is_first and self._stall_after < math.inf:
            self._timer.at(self, now + self._stall_after)

    def ended(self, who: object, how: str = "the store answers again") -> None:
        """It was answered, or waits no longer."""
        self.all_ended((who,), how)

    def all_ended(self, whos: Iterable[object], how: str = "the store answers again") -> None:
        """The same of many that asked together."""
        with self._lock:
            names = [ended[0] for who in whos if (ended := self._waiting.pop(who, None)) is not None]
            since = self._stalled_since
            if not names or since is None or self._is_late():
                return
            self._stalled_since = None
            due = next((began for _, began in self._waiting.values()), None)
        logger.info("%s: %s, after %.1f s", names[-1], how, self._clock.monotonic() - since)
        if due is not None:
            self._timer.at(self, due + self._stall_after)

    def seconds(self, who: object) -> float | None:
        """For how long it has waited for an answer; None if it does not wait."""
        with self._lock:
            waiting = self._waiting.get(who)
        return None if waiting is None else round(self._clock.monotonic() - waiting[1], 3)

    def oldest(self) -> float | None:
        """Since when the one waits that has waited longest, on the store's clock; None if nobody waits."""
        with self._lock:
            return next((began for _, began in self._waiting.values()), None)

    def is_late(self, who: object) -> bool:
        """Whether it has waited for longer than `stall_after`."""
        seconds = self.seconds(who)
        return seconds is not None and seconds > self._stall_after

    def run(self) -> None:
        """The timer: somebody may be late."""
        with self._lock:
            if self._stalled_since is not None or not self._waiting:
                return
            name, since = next(iter(self._waiting.values()))
            late, count = self._is_late(), len(self._waiting)
            if late:
                self._stalled_since = since
        if late:
            logger.warning(
                "%s: the store has not answered an upload for %.1f s (of %d under way it is the oldest); it goes on waiting",
                name,
                self._clock.monotonic() - since,
                count,
            )
        else:
            self._timer.at(self, since + self._stall_after)

    def _is_late(self) -> bool:
        """Whether the oldest is. Holds the lock."""
        since = next((began for _, began in self._waiting.values()), None)
        # The very sum that the timer was set to: a difference may round to less, and the timer would be set to now for ever.
        return since is not None and self._clock.monotonic() >= since + self._stall_after

    def close(self, timeout: float) -> bool:
        """Watch no more. False if the timer's thread did not end in time."""
        return self._timer.close(timeout)
