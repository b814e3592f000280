"""Outbox: what a collector has handed to the logs, until storage has answered for it.

The collector's other side. The source's thread sends; storage answers on threads of its own; the tracker
learns of both, and the reporter tells the source. What is here is shared by all of them, so it is guarded
by one lock, held for memory work only: never while a log, the object store or the source's callback is
called.

* Every append that was sent is counted in `unstored_bytes` until it is answered, well or badly.
* An answer to an incarnation of a sink that has been replaced says nothing any more.
* A sink whose append failed keeps what it owes. The next call of the source's thread raises its error;
  `recover` hands it over to a new incarnation, which first reads from the log what it has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Any

from logstore.engine.host.clock import waitable
from logstore.errors import AppendTimeout, BufferFull, Closed, LogStoreError, OutcomeUnknown, fresh
from logstore.format.batches.record import Record
from logstore.ingest.aside import aside
from logstore.ingest.findings import Challenge, Explanation, Lease, Stalled
from logstore.ingest.flush_tracker import Clock, FlushTracker
from logstore.ingest.journal import Mark
from logstore.ingest.position import Upper
from logstore.ingest.reporter import Reporter
from logstore.ingest.sink import Sink

_LOOK_AGAIN_S = 1.0
_offset = itemgetter(0)

logger = logging.getLogger(__name__)


class Outbox:
    """See the module's docstring. `on_wait` is called about once a second while a call waits for storage."""

    def __init__(
        self,
        start: int,
        on_flushed: Callable[[int], object],
        *,
        name: str,
        grace: float,
        clock: Clock | None,
        max_outstanding: int,
        on_wait: Callable[[], object] | None,
    ) -> None:
        self._name = name
        self._on_wait = on_wait
        self._reporter = Reporter(start, on_flushed)
        # Guards all below, and of each sink its lease, failure and alignment.
        self._lock = threading.Lock()
        self._answer = threading.Condition(self._lock)
        self._tracker: FlushTracker[int] = FlushTracker(
            start, self._reporter.settle, grace=grace, clock=clock, max_outstanding=max_outstanding
        )
        self._failed: list[Sink] = []
        self._closed = False
        self.unstored_bytes = 0

    @property
    def flushed_boundary(self) -> int:
        return self._tracker.flushed_boundary

    def raise_trouble(self) -> None:
        """On the source's thread, before anything else: what went wrong since its last call."""
        if self._closed:
            raise Closed(f"the collector of source {self._name!r} is closed")
        for sink in self._failed:
            assert sink.failure is not None, "that is what makes it failed, until this thread recovers it"
            raise fresh(sink.failure)

    def enlist(self, sink: Sink) -> None:
        """A sink that has learned what its log has: it may be sent to, and may owe."""
        with self._lock:
            self._adopt(sink, self._tracker.register(sink.name, alive=sink.is_alive))

    def send(self, sink: Sink, records: list[Record], upper: Upper, size: int) -> None:
        """Append `records`, the last of which is at `upper`; waits only for room in the log's buffer."""
        try:
            future = self._submit(sink, records)
        except BaseException as error:
            # The sink counts them as sent. Only its log can tell now, so it is asked before a replay.
            with self._lock:
                self._fail(sink, error)
            raise
        with self._lock:
            self.unstored_bytes += size
        future.add_done_callback(partial(self._answered, sink, sink.lease, upper, size))

    def owe(self, boundary: int, sinks: list[Sink]) -> bool:
        """A transaction that ends at `boundary` was routed to `sinks`. False if too much is owed already."""
        with self._lock:
            for sink in sinks:
                reached = sink.owe(boundary)
                if reached is not None:
                    self._tracker.flushed(sink.lease, reached)
            try:
                self._tracker.commit(boundary, [sink.name for sink in sinks])
            except BufferFull:
                return False
        return True

    def wait(self) -> None:
        """Until storage has answered something, or a moment has passed."""
        with self._lock:
            self._answer.wait(_LOOK_AGAIN_S)
        self.raise_trouble()
        if self._on_wait is not None:
            self._on_wait()

    def wait_empty(self, timeout: float | None) -> None:
        """Until everything sent is stored and reported."""
        with self._lock:
            if not self._answer.wait_for(self._settled, None if timeout is None else waitable(timeout)):
                raise AppendTimeout(
                    f"{self.unstored_bytes} bytes are not stored after {timeout} s: {self._tracker.explain(1)}"
                )
        self.raise_trouble()
        self._reporter.deliver(wait=True)

    def heartbeat(self, position: int) -> bool:
        with self._lock:
            return self._tracker.heartbeat(position)

    def check(self) -> list[Challenge[int] | Stalled[int]]:
        with self._lock:
            return self._tracker.check()

    def explain(self, limit: int) -> Explanation[int]:
        with self._lock:
            return self._tracker.explain(limit)

    def report(self) -> None:
        """Tell the source what has settled; raises what its callback raises."""
        self._reporter.deliver()

    def recover(self) -> None:
        """Hand every sink that failed over to a new incarnation. Raises if a log's writer is gone for good."""
        while self._failed:
            sink = self._failed[0]
            aside(sink.learn, self._on_wait)
            with self._lock:
                self._failed.remove(sink)
                sink.failure = None
                self._adopt(sink, self._tracker.hand_over(sink.lease, alive=sink.is_alive))

    def close(self) -> None:
        self._reporter.stop()
        with self._lock:
            self._closed = True
            self._answer.notify_all()

    def _submit(self, sink: Sink, records: list[Record]) -> Future[Any]:
        while True:
            try:
                return sink.log.submit(records, ack="durable")
            except BufferFull:
                self.wait()

    def _answered(self, sink: Sink, lease: Lease, upper: Upper, size: int, future: Future[Any]) -> None:
        """On one of storage's threads."""
        error = future.exception()
        with self._lock:
            self.unstored_bytes -= size
            self._answer.notify_all()
            if lease != sink.lease or self._closed:
                return None
            if error is not None:
                return self._fail(sink, error)
            sink.stored = max(sink.stored, Mark(future.result().last_offset + 1, upper), key=_offset)
            reached = sink.alignment.stored(upper.position)
            if reached is not None:
                self._tracker.flushed(lease, reached)
            else:
                self._tracker.waiting(lease, f"the rest of transaction {upper.position.transaction}")
        try:
            self._reporter.deliver()
        except Exception:
            # The source's own thread tries again at its next call, and is the one who can act on it.
            logger.warning(
                "the report of %s was refused and is repeated", self._reporter.settled, exc_info=True
            )

    def _adopt(self, sink: Sink, lease: Lease) -> None:
        """A new incarnation reports what its log proves."""
        sink.lease = lease
        if sink.upper is not None:
            sink.alignment.stored(sink.upper.position)
        if sink.alignment.reached is not None:
            self._tracker.flushed(lease, sink.alignment.reached)

    def _fail(self, sink: Sink, error: BaseException) -> None:
        if sink.failure is None:
            if not isinstance(error, LogStoreError):
                error = OutcomeUnknown(f"{sink.name}: {error!r}")
            sink.failure = error
            self._failed.append(sink)

    def _settled(self) -> bool:
        return not self.unstored_bytes or bool(self._failed) or self._closed
