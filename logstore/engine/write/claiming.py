"""Claims that go on in a lane of this process: those that are asked for at the same time share an entry.

One thread at a time puts transfers, one for each lane that the claims come from, and takes what was asked for meanwhile with
the next one. So opening a thousand partitions is a few requests, whichever way they are opened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from logstore.engine.lanes.lane_reader import Taken, Wanted
from logstore.engine.runtime import Runtime
from logstore.errors import StoreError
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.layout.paths import is_birth_lane

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 16
"""Of the lane in which a topic's partitions begin: so few, because its entries are small and are read besides others."""


class _Asked(NamedTuple):
    lane: str
    wanted: Wanted
    outcome: Future[Taken | None]
    is_patient: bool


class Claiming:
    """`_lock` guards the queue and whether a thread is at work; no I/O is done with it. `successor`: what the fences say."""

    def __init__(self, runtime: Runtime, successor: Callable[[], Claim]) -> None:
        self._runtime = runtime
        self._successor = successor
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._is_running = False
        self._failures = 0
        self._doubtful: set[ClaimKey] = set()  # of one thread at a time

    def ask(self, lane: str, wanted: Wanted, *, is_patient: bool = False) -> Future[Taken | None]:
        """For a claim of that lane. What comes of it, once it stands: None if its taker must look again. `is_patient`: it is
        tried until the store answers, or is closed."""
        asked = _Asked(lane, wanted, Future(), is_patient)
        with self._lock:
            self._asked.append(asked)
            starts, self._is_running = not self._is_running, True
        if starts:
            self._runtime.spawn("claim", self._run)
        return asked.outcome

    def _run(self) -> None:
        while True:
            with self._lock:
                asked, self._asked = self._asked, []
                if not asked:
                    self._is_running = False
                    return
            failed: list[_Asked] = []
            for lane in dict.fromkeys(one.lane for one in asked):
                failed += self._transfer(lane, [one for one in asked if one.lane == lane])
            self._failures = self._failures + 1 if failed else 0
            if failed:
                with self._lock:
                    self._asked[:0] = failed
                self._runtime.pause(self._runtime.backoff(self._failures))

    def _transfer(self, lane: str, asked: list[_Asked]) -> list[_Asked]:
        """Returns those that are to be tried again."""
        runtime = self._runtime
        try:
            taken = runtime.lanes.transfer(
                lane,
                [one.wanted for one in asked],
                self._successor(),
                runtime.new_id,
                runtime.clock.now_ms(),
                runtime.presence.show().pack(),
                self._doubtful,
            )
        except BaseException as error:
            again = isinstance(error, StoreError) and not runtime.closed
            logger.log(
                logging.WARNING if again else logging.DEBUG, "lane %s: no claim goes on yet: %s", lane, error
            )
            for one in asked:
                if not (again and one.is_patient):
                    one.outcome.set_exception(error)
            return [one for one in asked if again and one.is_patient]
        for one in asked:
            one.outcome.set_result(taken.get(one.wanted.key))
        if taken and is_birth_lane(lane):
            with suppress(StoreError):
                runtime.lanes.checkpoint_ownerless(lane, runtime.rng.randbytes(8), CHECKPOINT_EVERY)
        return []
