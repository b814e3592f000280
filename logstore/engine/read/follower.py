"""Following a partition: waiting for its high watermark to move, and asking the store when somebody else moves it.

While the writer is in this process an event ends the wait and the store is asked nothing. Otherwise the store is asked for
the next segment, at most every `follow_interval`, and only while somebody waits.
"""

from __future__ import annotations

from typing import Protocol

from logstore.config import Visibility
from logstore.engine.chain.chain import Chain
from logstore.engine.memory.catch_up import catch_up
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime

_ENOUGH = 8
"""Segments, before whoever waits gets them: shared writers commit as fast as one can be read after the other, so who goes to
the chain's end first may not get there for long."""


class Followed(Protocol):
    @property
    def follows(self) -> bool: ...
    @property
    def closed(self) -> bool: ...


class Follower:
    def __init__(self, runtime: Runtime, chain: Chain, state: PartitionState, log: Followed) -> None:
        self._runtime = runtime
        self._chain = chain
        self._state = state
        self._log = log
        self._asked_at = float("-inf")

    def refresh(
        self, min_interval: float = 0.0, since: float | None = None, enough: int | None = None
    ) -> None:
        """Take in what others have committed; nothing to do while we are the writer. `since`: what was read of a lane from
        then on will do, so that many partitions of it are asked for at once. `enough`: with so many segments it will do for
        now, and the next call asks at once."""
        now = self._runtime.clock.monotonic()
        if self._log.follows and now - self._asked_at >= min_interval:
            self._asked_at = now
            since = self._runtime.lanes.now() - min_interval if since is None else since
            found = catch_up(self._chain, self._state, since=since, enough=enough)
            if found and enough:
                self._asked_at = float("-inf")

    def wait_for(self, offset: int, visibility: Visibility, wait: float) -> None:
        """Wait until there is something at `offset`, up to `wait` seconds, or until the log is closed."""
        state, clock, interval = self._state, self._runtime.clock, self._runtime.config.follow_interval
        deadline = clock.monotonic() + wait
        while not self._log.closed:
            self.refresh(interval, enough=_ENOUGH)
            left = deadline - clock.monotonic()
            timeout = min(left, interval) if self._log.follows else left
            if left <= 0 or state.await_past(offset, visibility, clock, timeout, lambda: self._log.closed):
                return
