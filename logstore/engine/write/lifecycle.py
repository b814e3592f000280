"""The life of a writer, the same for every kind: open, closing, stopped.

It is open when it is made; what that needs (a fence, the chain's end) was done before. Closing, it takes no more appends and
stores what it holds. It stops once and for good, with an error that every later call raises: whoever waits is told that
exactly once, and the memory it held is free. It stops when it is fenced, when what it stored is in doubt for good, when its
topic is deleted, or when the time to close is over.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.host.stall_watch import GIVEN_UP
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.waiters import fail
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_health import WriterHealth
from logstore.errors import Closed, Fenced, LogStoreError, OutcomeUnknown, fresh

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WriterStats:
    """What `health()` shows. Written under the lock that guards its writer. `failures`: attempts in a row. `wal_error`: why
    the local disk gives no acks, while it does not."""

    commits: int = 0
    failures: int = 0
    last_error: str | None = None
    last_progress_at: float = 0.0
    wal_error: str | None = None

    def progressed(self, now: float) -> None:
        """Something was stored: earlier failures are over."""
        self.failures, self.last_error = 0, None
        self.last_progress_at = now

    def failed(self, error: Exception) -> None:
        """An attempt failed, and there will be another."""
        self.failures += 1
        self.note(error)

    def note(self, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"


class WriterLifecycle(ABC):
    """`failed` says why it stopped for good, and `unstored` which acked records it took along.

    `_lock` is the partition's, so that readers see each step of a writer whole. It guards the fields of this class and, as
    each kind says, its own; it is held for memory work only.
    """

    # No dictionary: a lane's flush goes through one of these for each of its partitions, and what it looks at is seldom in
    # the processor's cache.
    __slots__ = (
        "__weakref__",
        "_chain",
        "_closing",
        "_counted",
        "_lock",
        "_moved",
        "_runtime",
        "_state",
        "failed",
        "stats",
        "unstored",
    )

    def __init__(self, runtime: Runtime, chain: Chain, state: PartitionState, stats: WriterStats) -> None:
        self.stats = stats
        self.stats.last_progress_at = runtime.clock.monotonic()
        self.failed: LogStoreError | None = None
        self.unstored: LostRange | None = None
        self._closing = False
        self._runtime = runtime
        self._chain = chain
        self._state = state
        self._lock, self._moved = state.writers_lock()
        self._counted = runtime.counters.of(chain.paths.topic, chain.paths.partition)

    @abstractmethod
    def run(self) -> None:
        """One step, on the task pool."""

    @abstractmethod
    def health_report(self) -> WriterHealth:
        """What an operator wants to see of it. Holds the lock."""

    def _told(
        self, mode: str, epoch: int, frontier: int, stalled: bool, is_open: str = "writing"
    ) -> WriterHealth:
        """The lines that all kinds have."""
        return WriterHealth(
            mode=mode,
            state="stopped" if self.failed else "stalled" if stalled else is_open,
            epoch=epoch,
            frontier=frontier,
            upload_failures=self.stats.failures,
            last_error=self.stats.last_error,
            last_progress_seconds_ago=round(self._idle_seconds(), 3),
            unanswered_seconds=self._runtime.watch.seconds(self),
        )

    def _idle_seconds(self) -> float:
        return self._runtime.clock.monotonic() - self.stats.last_progress_at

    def check_open(self) -> None:
        """Raises what an append would. Holds the lock."""
        # That a close gave up on what others had appended does not make the outcome of this append unknown.
        if self.failed is not None and not (self._closing and isinstance(self.failed, OutcomeUnknown)):
            raise fresh(self.failed)
        if self._closing:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        why = (
            "the store is closed" if self._runtime.closed else "it was reopened: go on with `Topic.partition`"
        )
        return Closed(f"{self._chain.paths}: {why}")

    def attempt_failed(self, error: Exception) -> int:
        """There will be another. Returns how many have failed in a row."""
        with self._lock:
            self.stats.failed(error)
            self._counted.failures += 1
            return self.stats.failures

    # Stopping

    def stop(self, error: LogStoreError) -> None:
        """For good: tell every waiter, free the memory, wake the readers."""
        with self._lock:
            if self.failed is not None:
                return
            self.failed = error
            self.stats.note(error)
            self._counted.fenced += isinstance(error, Fenced)
            freed, waiting = self._let_go()
            self._moved.notify_all()
        self._runtime.watch.ended(self, GIVEN_UP)
        self._runtime.budget.give_back(freed)
        self._log_stop(error)
        fail(waiting, error)
        self._state.tell_listeners()

    @abstractmethod
    def _let_go(self) -> tuple[int, list[Future[Any]]]:
        """Drop what is not stored: how many bytes that frees, and who waited for it. Holds the lock."""

    def _log_stop(self, error: LogStoreError) -> None:
        logger.error("%s", error)  # which says where

    def after_fork_in_child(self, error: LogStoreError) -> None:
        """After a fork, in the child: refuse everything, and take no lock."""
        self.failed = self.failed or error

    # Closing

    def begin_close(self) -> None:
        """Take no more appends and store what there is."""
        with self._lock:
            self._closing = True
            self._ask_to_drain()
            self._moved.notify_all()

    @abstractmethod
    def _ask_to_drain(self) -> None:
        """Ask the task pool for the last steps. Holds the lock."""

    def finish_close(self, deadline: float) -> str | None:
        """Wait for what can be stored; nobody may wait on for the rest. Returns what is not stored, in words, or None."""
        with self._lock:
            drained = self._state.wait_until(self._has_ended, self._runtime.clock, deadline)
            error = self._left_behind(drained) if self.failed is None else None
        if error is not None:
            self.stop(error)
        return self._not_stored()

    def _has_ended(self) -> bool:
        return self.failed is not None or self._is_drained()

    @abstractmethod
    def _is_drained(self) -> bool:
        """Whether there is nothing more that it could store. Holds the lock."""

    @abstractmethod
    def _left_behind(self, drained: bool) -> LogStoreError | None:
        """It is closed now: note what is `unstored`, and say with what error it stops; None if it need not. Holds the
        lock."""

    def _not_stored(self) -> str | None:
        if self.unstored is None:
            return None
        start, end = self.unstored
        return f"{self._chain.paths}: offsets {start} to {end - 1} are not in the store ({self.failed})"
