"""Collector: transactions in, in fragments; partition logs out; and the source is told what it may forget.

    collector.begin(position=1200, txid="742")      a fragment is whatever arrives between two calls:
    collector.changes([...])                        first, middle, last or the whole of a transaction
    collector.changes([...])
    collector.commit(boundary=1288)

Contract:

* `route(change)` says which records a change becomes. It is deterministic: the same change, the same records.
* A record is appended to its partition once, however often the source replays it. Each partition's own log
  says what it has (the headers of `logstore.ingest.position`); the source's journal says which partition that
  is, also when the topic has more of them by now, and what was there when retention has taken it. What neither
  says raises `UnsupportedStore`: a topic that was deleted, or rebuilt, since it was filled.
* `on_flushed(boundary)` is called with a boundary only once everything routed at or below it is in the object
  store; strictly rising, never twice at a time, from any thread, with no lock held. If it raises it is tried
  again at the next event, and a call on the source's thread raises what it raised.
* A transaction of less than `chunk_bytes` in a partition (and half of `max_buffered_bytes` in all of them) is
  one append there: no crash leaves a part of it. A larger one streams through in parts, whatever its size, in
  `max_buffered_bytes`. At the limit `changes` and `commit` wait, through an outage of any length, and call
  `on_wait` about once a second meanwhile.
* Whatever was routed is owed, delivered or not. When a partition fails (fenced, an unknown outcome) the next
  call raises its error. After *any* error of `begin`, `changes` or `commit`, and after a broken connection:
  call `rewind()`, and replay from the boundary that it returns. If `rewind` raises, the partition's writer is
  gone for good: open the store again and make a new collector, which starts from the same boundary.
* No debt waits for a later event: `commit` hands everything to the logs at once, unless `more=True` says that
  the next transaction is at hand already. Then they share an append, up to `chunk_bytes`.

One thread feeds a collector. The store stays the caller's: the collector never closes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from logstore.errors import InvalidRecord, StraddlingTransaction, UnknownTopic, UnsupportedStore
from logstore.format.batches.record import Record
from logstore.format.murmur2 import partition_for_key
from logstore.ingest.aside import aside
from logstore.ingest.findings import Challenge, Explanation, Stalled
from logstore.ingest.flush_tracker import MAX_OUTSTANDING, Clock
from logstore.ingest.journal import UNMARKED, Journal, Mark, Route
from logstore.ingest.outbox import Outbox
from logstore.ingest.position import POSITION, TRANSACTION, check_source, position_prefix
from logstore.ingest.route import EVERY_PARTITION, Routed
from logstore.ingest.sink import Sink
from logstore.store import Store
from logstore.topic import Topic

MIB = 1 << 20

Change = TypeVar("Change")
T = TypeVar("T")


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
    is_torn: bool = False
    """An error came out of one of its fragments: nobody can tell which of the changes were taken in."""


class _Target:
    """A topic that is routed to."""

    __slots__ = ("newest", "route", "sinks", "topic")

    def __init__(self, topic: Topic, route: Route) -> None:
        self.topic = topic
        self.sinks: list[Sink | None] = [None] * topic.partitions
        self.follow(route)

    def follow(self, route: Route) -> None:
        self.route = route
        self.newest = route.counts[-1]


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
        self._outbox = Outbox(
            start,
            on_flushed,
            name=source,
            grace=grace,
            clock=clock,
            max_outstanding=max_outstanding,
            on_wait=on_wait,
        )
        self._on_wait = on_wait
        self._journal = Journal(store, source)
        self.opening: str | None = None
        """The topic or partition that is being opened: nothing else happens meanwhile."""
        self._topics: dict[str, _Target] = {}
        self._sinks: list[Sink] = []
        self._open: _Open | None = None
        self._newest = -1
        self._source_end: int | None = None
        self._touched: dict[Sink, None] = {}
        self._unsent: dict[Sink, None] = {}
        self._unsent_bytes = 0
        self._transactions = 0
        self._records = 0

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
        return self._outbox.flushed_boundary

    @property
    def counts(self) -> Counts:
        """What went through so far, and how much of it waits to be stored."""
        skipped = sum(sink.skipped for sink in list(self._sinks))
        unstored = self._outbox.unstored_bytes + self._unsent_bytes
        return Counts(self._transactions, self._records, skipped, unstored)

    def source_ends_at(self, position: int) -> None:
        """The source has no transaction at or after `position` yet. Raises `UnsupportedStore` if a partition has: what comes
        next would be taken for a replay there. So does opening one that has, from now on.
        """
        self._source_end = position
        for sink in self._sinks:
            self._check_reached(sink)

    def own(self, topic: str) -> None:
        """Open every partition of a topic now, not only when something is routed there."""
        target = self._topic(topic)
        for partition, sink in enumerate(target.sinks):
            if sink is None:
                self._open_sink(target, partition)

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
        self._outbox.raise_trouble()
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
        """A fragment of the open transaction. After an error the transaction takes no more, and no commit: `rewind()`."""
        self._outbox.raise_trouble()
        opened = self._opened("changes")
        opened.is_torn = True
        for change in changes:
            for given in self._route(change):
                routed = given if type(given) is Routed else Routed(*given)
                if routed[5] == EVERY_PARTITION:
                    target = self._topic(routed.topic)
                    for partition in range(target.route.partitions_for(opened.transaction)):
                        self._take(opened, routed._replace(partition=partition))
                else:
                    self._take(opened, routed)
        opened.is_torn = False

    def commit(self, boundary: int, *, more: bool = False) -> None:
        """The open transaction ends at `boundary`; from here on each partition it was routed to owes it."""
        self._outbox.raise_trouble()
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
        self._outbox.report()

    def push(self) -> None:
        """Hand every whole transaction that is buffered to the logs."""
        for sink in list(self._unsent):
            self._send(sink)

    def heartbeat(self, position: int) -> bool:
        """The source has sent everything before `position`. Counts only while nothing is owed or open."""
        self._outbox.raise_trouble()
        if self._open is not None:
            return False
        counts = self._outbox.heartbeat(position)
        self._outbox.report()
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
        self._outbox.recover()
        self._outbox.report()
        return self.flushed_boundary

    def flush(self, timeout: float | None = None) -> None:
        """Push, and wait until everything sent is stored and reported."""
        self.push()
        self._outbox.wait_empty(timeout)

    def close(self) -> None:
        """Stop. Nothing is discarded and nothing new is reported; what is on its way may still be stored."""
        self._outbox.close()

    def check(self) -> list[Challenge[int] | Stalled[int]]:
        """Who owes and does not move; see `FlushTracker.check`. Call it now and then: it also notes how far the partitions
        are, for the case that retention takes their last records before the source has forgotten them."""
        findings = self._outbox.check()
        self._mark()
        self._outbox.report()
        return findings

    def note_origin(self, origin: dict[str, Any]) -> None:
        """Keep in the journal, durably, what identifies the source."""
        self._aside("the journal", partial(self._journal.note, origin=origin))

    def explain(self, limit: int = 10) -> Explanation[int]:
        """What holds the report back."""
        return self._outbox.explain(limit)

    def _opened(self, what: str) -> _Open:
        if self._open is None:
            raise StraddlingTransaction(
                f"{what} of a transaction of source {self._source!r} whose beginning was never seen: "
                f"rewind(), and replay from a boundary"
            )
        if self._open.is_torn:
            # What failed was routed and not taken in: a commit would let the source forget it.
            raise StraddlingTransaction(
                f"{what} of transaction {self._open.transaction} of source {self._source!r}, of which an error kept a "
                f"part out: rewind(), and replay from a boundary"
            )
        return self._open

    def _take(self, opened: _Open, routed: Routed) -> None:
        outbox = self._outbox
        while outbox.unstored_bytes and outbox.unstored_bytes + self._unsent_bytes > self._max_buffered_bytes:
            outbox.wait()
        topic, key, value, headers, timestamp_ms, partition = routed
        target = self._topics.get(topic) or self._topic(topic)
        sinks = target.sinks
        if partition is None:
            first, partitions = target.newest
            if opened.transaction < first:
                partitions = target.route.partitions_for(opened.transaction)
            partition = 0 if key is None else _partition_of(key, partitions)
        elif type(partition) is not int or not 0 <= partition < len(sinks):
            raise InvalidRecord(
                f"a change of transaction {opened.transaction} was routed to partition {partition!r} of topic {topic!r}, "
                f"which has 0 to {len(sinks) - 1}"
            )
        sink = sinks[partition] or self._open_sink(target, partition)
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
                self._send(sink, parts=sink.open_bytes >= self._chunk_bytes)
            elif self._unsent_bytes * 2 >= self._max_buffered_bytes:
                for each in list(self._unsent):
                    self._send(each, parts=True)

    def _open_sink(self, target: _Target, partition: int) -> Sink:
        topic, sinks = target.topic, target.sinks
        mark = target.route.marks.get(partition, UNMARKED)
        if self._open is not None and self._open.starts_over:
            # Whatever was there and is gone is not replayed any more.
            mark = mark._replace(offset=sys.maxsize)
        sink = Sink((topic.name, partition), topic.partition(partition), self._source, mark)
        self._aside(f"{topic.name}/{partition}", sink.learn)
        self._check_reached(sink)
        self._outbox.enlist(sink)
        sinks[partition] = sink
        self._sinks.append(sink)
        return sink

    def _check_reached(self, sink: Sink) -> None:
        upper = sink.upper
        if (
            upper is not None
            and self._source_end is not None
            and upper.position.transaction >= self._source_end
        ):
            raise UnsupportedStore(
                f"{sink.name} has records of {self._source!r} up to {upper.position.transaction}, newer than the source "
                f"itself, which ends at {self._source_end}: it is another one, or was restored to an earlier time. Start "
                f"over with another slot or name, or in another store"
            )

    def _topic(self, name: str) -> _Target:
        target = self._topics.get(name)
        if target is None:
            starts_over = self._open is not None and self._open.starts_over
            target = self._aside(name, partial(self._find_topic, name, starts_over))
            if target.newest[1] < target.topic.partitions:
                self._take_more_partitions(target)
            self._topics[name] = target
        return target

    def _find_topic(self, name: str, starts_over: bool) -> _Target:
        """The topic, and how it was routed so far. It is noted before anything is sent there."""
        self._journal.own()
        route, is_new = self._journal.routes.get(name), False
        try:
            topic = self._store.topic(name)
        except UnknownTopic:
            if route is not None and not starts_over:
                raise self._gone(name, "was deleted") from None
            topic = self._store.create_topic(name, self._partitions, exist_ok=True)
            is_new = True
        if route is not None and route.incarnation != topic._internal.descriptor.incarnation:
            if not starts_over:
                raise self._gone(name, "was deleted and rebuilt")
            route = None
        if route is None:
            # What others had there, and deleted, is nothing of ours.
            lows = {} if is_new else _low_marks(topic)
            marks = {partition: Mark(low, None) for partition, low in lows.items() if low}
            route = Route(topic._internal.descriptor.incarnation, [(0, topic.partitions)], marks)
            self._journal.note(routes={name: route})
        return _Target(topic, route)

    def _take_more_partitions(self, target: _Target) -> None:
        """Somebody gave the topic more partitions. What any of the old ones has, a part of it or all, was routed over the
        old number, and is again when it is replayed; the new number is for what comes after."""
        name, route = target.topic.name, target.route
        for partition in range(target.newest[1]):
            self._open_sink(target, partition)
        uppers = [
            sink.upper.position.transaction
            for sink in target.sinks
            if sink is not None and sink.upper is not None
        ]
        counts = [*route.counts, (max(uppers, default=-1) + 1, target.topic.partitions)]
        grown = Route(route.incarnation, counts, route.marks)
        self._aside(name, partial(self._journal.note, routes={name: grown}))
        target.follow(grown)

    def _gone(self, name: str, how: str) -> UnsupportedStore:
        return UnsupportedStore(
            f"topic {name!r} {how} since source {self._source!r} filled it: going on would leave out, without a word, what "
            f"was stored in it. Start over with a snapshot: drop the slot, or take another slot or name"
        )

    def _mark(self) -> None:
        moved = [(sink, sink.stored) for sink in self._sinks if sink.stored is not sink.marked]
        if moved and self._journal.mark((sink.name, mark) for sink, mark in moved):
            for sink, mark in moved:
                sink.marked = mark
        if self._journal.is_long:
            self._aside("the journal", self._journal.write_whole)

    def _aside(self, what: str, call: Callable[[], T]) -> T:
        self.opening = what
        try:
            return aside(call, self._on_wait)
        finally:
            self.opening = None

    def _owe(self, boundary: int, opened: _Open) -> None:
        if boundary <= self.flushed_boundary:
            if opened.taken:
                raise StraddlingTransaction(
                    f"transaction {opened.transaction} of source {self._source!r} ends at {boundary}, which was "
                    f"reported as stored, yet {opened.taken} of its records were not: the routing has changed, "
                    f"or boundaries do not rise"
                )
            return
        touched = list(self._touched)
        while not self._outbox.owe(boundary, touched):
            self.push()
            self._outbox.wait()

    def _send(self, sink: Sink, *, parts: bool = False) -> None:
        records, upper, size = sink.cut(parts=parts)
        if not sink.pending_bytes:
            self._unsent.pop(sink, None)
        if records and upper is not None:
            self._unsent_bytes -= size
            self._outbox.send(sink, records, upper, size)


def _low_marks(topic: Topic) -> dict[int, int]:
    return {partition: topic.partition(partition).low_watermark for partition in range(topic.partitions)}


def _partition_of(key: object, partitions: int) -> int:
    if type(key) is not bytes:
        raise InvalidRecord(f"a change was routed with the key {key!r}: a key is bytes or None")
    return partition_for_key(key, partitions)
