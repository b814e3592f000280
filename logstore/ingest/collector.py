"""Collector: transactions in, in fragments; partition logs out; and the source is told what it may forget.

    collector.begin(position=1200, txid="742")      a fragment is whatever arrives between two calls:
    collector.changes([...])                        first, middle, last or the whole of a transaction
    collector.changes([...])
    collector.commit(boundary=1288)

Contract:

* `route(change)` says which records a change becomes. It is deterministic: the same change, the same records.
* A record is appended to its partition once, however often the source replays it. Each partition's own log
  says what it has (the headers of `logstore.ingest.position`): there is no second place that could disagree.
* `on_flushed(boundary)` is called with a boundary only once everything routed at or below it is in the object
  store; strictly rising, never twice at a time, from any thread, with no lock held. If it raises it is tried
  again at the next event, and a call on the source's thread raises what it raised.
* A transaction of less than `chunk_bytes` in a partition is one append there: no crash leaves a part of it.
  A larger one streams through in parts, whatever its size, in `max_buffered_bytes`. At the limit `changes`
  and `commit` wait, through an outage of any length, and call `on_wait` about once a second meanwhile.
* Whatever was routed is owed, delivered or not. When a partition fails (fenced, an unknown outcome) the next
  call raises its error. After *any* error of `begin`, `changes` or `commit`, and after a broken connection:
  call `rewind()`, and replay from the boundary that it returns. If `rewind` raises, the partition's writer is
  gone for good: open the store again and make a new collector, which starts from the same boundary.
* No debt waits for a later event: `commit` hands everything to the logs at once, unless `more=True` says that
  the next transaction is at hand already. Then they share an append, up to `chunk_bytes`.

One thread feeds a collector. The store stays the caller's: the collector never closes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    LogStoreError,
    OutcomeUnknown,
    StraddlingTransaction,
    UnknownTopic,
)
from logstore.format.murmur2 import partition_for_key
from logstore.format.record import Record
from logstore.ingest.findings import Challenge, Explanation, Lease, Stalled
from logstore.ingest.flush_tracker import MAX_OUTSTANDING, Clock, FlushTracker
from logstore.ingest.position import POSITION, TRANSACTION, Upper, check_source, position_prefix
from logstore.ingest.reporter import Reporter
from logstore.ingest.route import EVERY_PARTITION, Routed
from logstore.ingest.sink import Sink
from logstore.store import Store
from logstore.topic import Topic

MIB = 1 << 20
_LOOK_AGAIN_S = 1.0

Change = TypeVar("Change")
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """The transaction that is being taken in."""

    transaction: int
    prefix: bytes
    id_header: tuple[str, bytes]
    timestamp_ms: int | None
    starts_over: bool
    routed: int = 0
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What went through so far, and how much of it is not stored yet."""

    transactions: int
    records: int
    skipped: int
    unstored_bytes: int


class Collector(Generic[Change]):
    """Feeds one source into a store; see the module's docstring.

    `start` is the boundary that the source was told last. `source` names it in the records' headers.
    `partitions` is how many a topic gets when a route names one that does not exist.
    """

    def __init__(
        self,
        store: Store,
        route: Callable[[Change], Iterable[tuple[Any, ...]]],
        on_flushed: Callable[[int], object],
        *,
        start: int = 0,
        source: str = "source",
        partitions: int = 1,
        max_buffered_bytes: int = 32 * MIB,
        chunk_bytes: int = 1 * MIB,
        grace: float = 60.0,
        clock: Clock | None = None,
        max_outstanding: int = MAX_OUTSTANDING,
        on_wait: Callable[[], object] | None = None,
    ) -> None:
        self._store = store
        self._route = route
        self._source = check_source(source)
        self._partitions = partitions
        self._max_buffered_bytes = max_buffered_bytes
        self._chunk_bytes = min(chunk_bytes, max_buffered_bytes)
        self._on_wait = on_wait
        self._topics: dict[str, tuple[Topic, list[Sink | None]]] = {}
        self._sinks: list[Sink] = []
        self._open: _Open | None = None
        self._newest = -1
        self._touched: dict[Sink, None] = {}
        self._unsent: dict[Sink, None] = {}
        self._unsent_bytes = 0
        self._transactions = 0
        self._records = 0
        self._reporter = Reporter(start, on_flushed)
        # Guards what follows, and of each sink its lease, failure and alignment. Held for memory work only.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tracker: FlushTracker[int] = FlushTracker(
            start, self._reporter.settle, grace=grace, clock=clock, max_outstanding=max_outstanding
        )
        self._sent_bytes = 0
        self._failed: list[Sink] = []
        self._closed = False

    def __enter__(self) -> Collector[Change]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    @property
    def flushed_boundary(self) -> int:
        """Everything routed at or below it is in the object store."""
        return self._tracker.flushed_boundary

    @property
    def counts(self) -> Counts:
        skipped = sum(sink.skipped for sink in list(self._sinks))
        return Counts(self._transactions, self._records, skipped, self._sent_bytes + self._unsent_bytes)

    def begin(
        self,
        position: int,
        txid: str | int = "",
        *,
        timestamp_ms: int | None = None,
        starts_over: bool = False,
    ) -> None:
        """A transaction begins. `position` rises from one to the next and is the same when it is replayed.

        `starts_over`: this one replaces everything before it (a new snapshot, say), so a transaction that an
        earlier run left unfinished in some partition will never be replayed, and need not be.
        """
        self._raise_trouble()
        if self._open is not None:
            raise StraddlingTransaction(
                f"transaction {position} of source {self._source!r} begins inside {self._open.transaction}, "
                f"which has no commit yet: rewind(), and replay from a boundary"
            )
        if position <= self._newest:
            # Without this a position used twice would look like a replay, and its records would be skipped.
            raise StraddlingTransaction(
                f"transaction {position} of source {self._source!r} comes after {self._newest}: positions are "
                f"not negative and rise; before a replay, call rewind()"
            )
        prefix = position_prefix(self._source, position)
        id_header = (TRANSACTION, str(txid).encode())
        self._open = _Open(position, prefix, id_header, timestamp_ms, starts_over)

    def changes(self, changes: Iterable[Change]) -> None:
        """A fragment of the open transaction."""
        self._raise_trouble()
        opened = self._opened("changes")
        for change in changes:
            for given in self._route(change):
                routed = given if type(given) is Routed else Routed(*given)
                if routed[5] == EVERY_PARTITION:
                    for partition in range(self._topic(routed.topic)[0].partitions):
                        self._take(opened, routed._replace(partition=partition))
                else:
                    self._take(opened, routed)

    def commit(self, boundary: int, *, more: bool = False) -> None:
        """The open transaction ends at `boundary`; from here on each partition it was routed to owes it."""
        self._raise_trouble()
        opened = self._opened("a commit")
        for sink in self._touched:
            sink.end(opened.transaction)
        self._owe(boundary, opened)
        self._open = None
        self._touched = {}
        self._newest = opened.transaction
        self._transactions += 1
        self._records += opened.taken
        if not more or self._unsent_bytes >= self._chunk_bytes:
            self.push()
        self._reporter.deliver()

    def push(self) -> None:
        """Hand every whole transaction that is buffered to the logs."""
        for sink in list(self._unsent):
            self._send(sink)

    def heartbeat(self, position: int) -> bool:
        """The source has sent everything before `position`. Counts only while nothing is owed or open."""
        self._raise_trouble()
        if self._open is not None:
            return False
        with self._lock:
            counts = self._tracker.heartbeat(position)
        self._reporter.deliver()
        return counts

    def rewind(self) -> int:
        """Forget the fragments of an open transaction and get ready for a replay from the boundary returned.

        A partition that failed is handed over to a new incarnation, which reads from the log what it has.
        """
        self._open = None
        self._newest = -1
        self._touched = {}
        self._unsent = {}
        self._unsent_bytes = 0
        for sink in self._sinks:
            sink.rewind(sink.sent)
        while self._failed:
            self._hand_over(self._failed[0])
        self._reporter.deliver()
        return self.flushed_boundary

    def flush(self, timeout: float | None = None) -> None:
        """Push, and wait until everything sent is stored and reported."""
        self.push()
        with self._lock:
            if not self._changed.wait_for(
                lambda: not self._sent_bytes or self._failed or self._closed, timeout
            ):
                raise AppendTimeout(
                    f"{self._sent_bytes} bytes are not stored after {timeout} s: {self._tracker.explain(1)}"
                )
        self._raise_trouble()
        self._reporter.deliver(wait=True)

    def close(self) -> None:
        """Stop. Nothing is discarded and nothing new is reported; what is on its way may still be stored."""
        self._reporter.stop()
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> list[Challenge[int] | Stalled[int]]:
        """Who owes and does not move; see `FlushTracker.check`. Call it now and then."""
        with self._lock:
            findings = self._tracker.check()
        self._reporter.deliver()
        return findings

    def explain(self, limit: int = 10) -> Explanation[int]:
        """What holds the report back."""
        with self._lock:
            return self._tracker.explain(limit)

    def _opened(self, what: str) -> _Open:
        if self._open is None:
            raise StraddlingTransaction(
                f"{what} of a transaction of source {self._source!r} whose beginning was never seen: "
                f"rewind(), and replay from a boundary"
            )
        return self._open

    def _take(self, opened: _Open, routed: Routed) -> None:
        while self._sent_bytes and self._sent_bytes + self._unsent_bytes > self._max_buffered_bytes:
            self._wait()
        topic, key, value, headers, timestamp_ms, partition = routed
        known = self._topics.get(topic) or self._topic(topic)
        if partition is None:
            partition = 0 if key is None else partition_for_key(key, len(known[1]))
        sink = known[1][partition] or self._open_sink(topic, partition)
        self._touched[sink] = None
        ordinal = opened.routed
        opened.routed += 1
        record = Record(
            value,
            key,
            (*headers, (POSITION, opened.prefix + str(ordinal).encode()), opened.id_header),
            opened.timestamp_ms if timestamp_ms is None else timestamp_ms,
        )
        size = sink.take(opened.transaction, ordinal, record, opened.starts_over)
        if size:
            opened.taken += 1
            self._unsent[sink] = None
            self._unsent_bytes += size
            if sink.pending_bytes >= self._chunk_bytes:
                self._send(sink, parts=True)
            elif self._unsent_bytes * 2 >= self._max_buffered_bytes:
                for each in list(self._unsent):
                    self._send(each, parts=True)

    def _open_sink(self, name: str, partition: int) -> Sink:
        topic, sinks = self._topic(name)
        sink = Sink((name, partition), topic.partition(partition), self._source)
        sink.learn()
        with self._lock:
            self._adopt(sink, self._tracker.register(sink.name, alive=sink.is_alive))
        sinks[partition] = sink
        self._sinks.append(sink)
        return sink

    def _topic(self, name: str) -> tuple[Topic, list[Sink | None]]:
        known = self._topics.get(name)
        if known is None:
            try:
                topic = self._store.topic(name)
            except UnknownTopic:
                topic = self._store.create_topic(name, self._partitions, exist_ok=True)
            known = self._topics[name] = topic, [None] * topic.partitions
        return known

    def _owe(self, boundary: int, opened: _Open) -> None:
        touched = list(self._touched)
        while True:
            with self._lock:
                if boundary <= self._tracker.flushed_boundary:
                    return self._check_settled(boundary, opened)
                for sink in touched:
                    reached = sink.owe(boundary)
                    if reached is not None:
                        self._tracker.flushed(sink.lease, reached)
                with suppress(BufferFull):
                    return self._tracker.commit(boundary, [sink.name for sink in touched])
            self.push()
            self._wait()

    def _check_settled(self, boundary: int, opened: _Open) -> None:
        if opened.taken:
            raise StraddlingTransaction(
                f"transaction {opened.transaction} of source {self._source!r} ends at {boundary}, which was "
                f"reported as stored, yet {opened.taken} of its records were not: the routing has changed, or "
                f"boundaries do not rise"
            )

    def _send(self, sink: Sink, *, parts: bool = False) -> None:
        records, upper, size = sink.cut(parts=parts)
        if not sink.pending_bytes:
            self._unsent.pop(sink, None)
        if not records or upper is None:
            return
        self._unsent_bytes -= size
        try:
            future = self._submit(sink, records)
        except BaseException as error:
            # The sink counts them as sent. Only its log can tell now, so it is asked before a replay.
            with self._lock:
                self._fail(sink, error)
            raise
        with self._lock:
            self._sent_bytes += size
        future.add_done_callback(partial(self._answered, sink, sink.lease, upper, size))

    def _submit(self, sink: Sink, records: list[Record]) -> Future[Any]:
        while True:
            try:
                return sink.log.submit(records, ack="durable")
            except BufferFull:
                self._wait()

    def _wait(self) -> None:
        """For room: until storage has answered something, or a moment has passed."""
        with self._lock:
            self._changed.wait(_LOOK_AGAIN_S)
        self._raise_trouble()
        if self._on_wait is not None:
            self._on_wait()

    def _answered(self, sink: Sink, lease: Lease, upper: Upper, size: int, future: Future[Any]) -> None:
        """Storage has answered, on one of its threads."""
        error = future.exception()
        with self._lock:
            self._sent_bytes -= size
            self._changed.notify_all()
            if lease != sink.lease or self._closed:
                return None
            if error is not None:
                return self._fail(sink, error)
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

    def _fail(self, sink: Sink, error: BaseException) -> None:
        if sink.failure is None:
            sink.failure = (
                error if isinstance(error, LogStoreError) else OutcomeUnknown(f"{sink.name}: {error!r}")
            )
            self._failed.append(sink)

    def _hand_over(self, sink: Sink) -> None:
        sink.learn()
        with self._lock:
            self._failed.remove(sink)
            sink.failure = None
            self._adopt(sink, self._tracker.hand_over(sink.lease, alive=sink.is_alive))

    def _adopt(self, sink: Sink, lease: Lease) -> None:
        """A new incarnation of a sink reports what its log proves."""
        sink.lease = lease
        if sink.upper is not None:
            sink.alignment.stored(sink.upper.position)
        if sink.alignment.reached is not None:
            self._tracker.flushed(lease, sink.alignment.reached)

    def _raise_trouble(self) -> None:
        if self._closed:
            raise Closed(f"the collector of source {self._source!r} is closed")
        for sink in self._failed:
            assert sink.failure is not None, "that is what makes it failed, until this thread hands it over"
            raise sink.failure
