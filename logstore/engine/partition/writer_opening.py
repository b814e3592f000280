"""Opening the writer for the append that needs it, by that append's deadline.

Whoever opens a writer waits for the store: to load the partition, to commit a fence. A store that does not answer must not
hold a caller past its deadline, so that is done on a thread of its own. It goes on when the caller has given up, and the
next append finds the writer, or joins the wait.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from logstore.config import Ack
from logstore.engine.host.clock import waitable
from logstore.engine.host.stall_watch import GIVEN_UP
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import LogStoreError, StoreUnavailable, fresh
from logstore.layout.paths import PartitionPaths

_LAST_WORD_S = 0.005
"""An opening that fails says why at its deadline, which is that of whoever waits for it: well within the 10 ms of L07."""


class _Opening(NamedTuple):
    outcome: Future[Writer]
    deadline: float


class Openable(Protocol):
    @property
    def paths(self) -> PartitionPaths: ...
    def open_writer(self, *, timeout: float, ack: Ack) -> Writer:
        """It may take its time."""


class WriterOpening:
    """`_lock` guards `_under_way`."""

    def __init__(self, runtime: Runtime, log: Openable) -> None:
        self._runtime = runtime
        self._log = log
        self._lock = threading.Lock()
        self._under_way: _Opening | None = None

    def writer(self, deadline: float, ack: Ack) -> Writer:
        """The open writer. Raises why it could not be opened, or `StoreUnavailable` at the deadline."""
        while True:
            opening = self._join(deadline, ack)
            left = deadline - self._runtime.clock.monotonic()
            try:
                error = opening.outcome.exception(waitable(left + _LAST_WORD_S))
            except TimeoutError:
                raise StoreUnavailable(
                    f"{self._log.paths}: the writer could not be opened in time, nothing was appended: the store has not "
                    "answered yet; try again"
                ) from None
            if error is None:
                return opening.outcome.result()
            if opening.deadline < deadline and self._runtime.clock.monotonic() >= opening.deadline:
                continue  # it gave up at the deadline of somebody who had less time
            raise fresh(error) if isinstance(error, LogStoreError) else error

    def _join(self, deadline: float, ack: Ack) -> _Opening:
        with self._lock:
            opening = self._under_way
            if opening is None or opening.outcome.done():
                opening = _Opening(Future(), deadline)
                self._runtime.spawn("open", lambda: self._open(opening, ack))
                self._under_way = opening  # not one that no thread could be started for
            return opening

    def _open(self, opening: _Opening, ack: Ack) -> None:
        left = max(0.0, opening.deadline - self._runtime.clock.monotonic())
        self._runtime.watch.began(self, self._log.paths)
        try:
            writer = self._log.open_writer(timeout=left, ack=ack)
            self._runtime.watch.ended(self)
            opening.outcome.set_result(writer)
        except BaseException as error:
            self._runtime.watch.ended(self, GIVEN_UP)
            opening.outcome.set_exception(error)
