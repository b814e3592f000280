"""The commit loop of a contended writer: one attempt at a time, on the task pool, with breaker and backoff.

A step tries to commit, or looks at what others have committed, and says when to take the next one. One that fails is taken
again after a pause. After an error that is final, because no further step could end otherwise, the writer stops for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from logstore.engine.host.stall_watch import GIVEN_UP
from logstore.engine.runtime import Runtime
from logstore.engine.write.lifecycle import WriterLifecycle
from logstore.errors import (
    CorruptData,
    DivergentWriters,
    Fenced,
    OutcomeUnknown,
    PartitionInUse,
    UnknownTopic,
    UnsupportedStore,
)

logger = logging.getLogger(__name__)

FINAL = (
    Fenced,
    PartitionInUse,
    UnknownTopic,
    CorruptData,
    OutcomeUnknown,
    DivergentWriters,
    UnsupportedStore,
)


class CommitLoop:
    """`name` says in the log which writer it is, and where."""

    def __init__(self, runtime: Runtime, writer: WriterLifecycle, name: str) -> None:
        self._runtime = runtime
        self._writer = writer
        self._name = name

    def take(self, step: Callable[[], float | None]) -> bool:
        """Take one, and ask for the next in as many seconds as `step` says. False if it says None, which is that there is
        nothing left to do, or if the writer has stopped."""
        wait = self._runtime.breaker.delay() or self._try(step)
        if wait is None:
            return False
        self.ask(wait)
        return True

    def ask(self, wait: float = 0.0) -> None:
        """For the next step: in so many seconds, or earlier if that was asked for before."""
        self._runtime.task_pool.at(self._writer, self._runtime.clock.monotonic() + wait)

    def _try(self, step: Callable[[], float | None]) -> float | None:
        breaker, watch = self._runtime.breaker, self._runtime.watch
        watch.began(self._writer, self._name)
        try:
            wait = step()
        except FINAL as error:
            watch.ended(self._writer)
            breaker.success()
            self._writer.stop(error)
            return None
        except Exception as error:
            breaker.failure()
            if self._writer.failed is not None:
                watch.ended(self._writer, GIVEN_UP)  # stopped meanwhile: there is no further step
            return self._failed(error)
        watch.ended(self._writer)
        breaker.success()
        return wait

    def _failed(self, error: Exception) -> float:
        failures = self._writer.attempt_failed(error)
        logger.warning("%s: failed %d times in a row, trying again: %s", self._name, failures, error)
        return self._runtime.backoff(failures)
