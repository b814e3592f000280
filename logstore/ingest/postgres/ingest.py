"""PostgresIngest: a logical replication slot in, topics out, and the slot confirmed only as far as all of
it is stored.

    with PostgresIngest(lambda: logstore.open(url), PostgresSettings(dsn=…, publication="shop")) as ingest:
        ingest.run()                 # until ingest.stop(), from any thread

Contract:

* The first run reads every published row in the slot's own snapshot, then the stream goes on from exactly
  there. A crash before the snapshot is stored starts it over; readers see a truncate event first, so a fold
  stays right.
* What is confirmed to the server is the collector's boundary. Everything committed before it is in the object
  store; the rest is sent again after a crash, and each partition skips what it has.
* Connection lost, server restarted, object store down: it waits and goes on by itself. It gives up, with
  the error that says what to do, only when waiting cannot help: another ingester took a partition over, the
  slot has lost WAL, a record is too large, the configuration is wrong.
* Memory is bounded, whatever the size of a table or a transaction.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
import psycopg.errors

from logstore.errors import AppendTimeout, BufferFull, LogStoreError, OutcomeUnknown, StoreError, UnknownTopic
from logstore.ingest.aside import aside
from logstore.ingest.collector import Collector
from logstore.ingest.postgres.envelope import Envelope
from logstore.ingest.postgres.follow import Follower
from logstore.ingest.postgres.origin import Origin, check_origin, read_origin
from logstore.ingest.postgres.pgoutput import SNAPSHOT_XID, Begin, Change, format_lsn
from logstore.ingest.postgres.settings import PostgresSettings
from logstore.ingest.postgres.slot import (
    check_may_replicate,
    check_server,
    check_topics,
    connect,
    connect_stream,
    end_of_wal,
    ensure_publication,
    lost_slot,
    publication_oid,
    slot_state,
)
from logstore.ingest.postgres.snapshot import Table, copy_rows, published_tables, snapshot_session
from logstore.ingest.postgres.stream import Stream
from logstore.objects.wrappers.retrying import RetryPolicy
from logstore.store import Store

_IDLE_S = 1.0
_ANSWER_S = 0.02
_WORDS_IN_PATIENCE = 4

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Of the store's errors, these may pass by themselves; every other one means that somebody has to act.
_PASSING = (StoreError, OutcomeUnknown, BufferFull)


class _Stopped(Exception):
    """`stop` was called in the middle of something long."""


@dataclass(frozen=True, slots=True)
class Status:
    """What an operator wants to see at a glance."""

    phase: str
    confirmed: int
    transactions: int
    records: int
    unstored_bytes: int
    held_by: str | None

    def __str__(self) -> str:
        held = "" if self.held_by is None else f" · held by {self.held_by}"
        return (
            f"{self.phase} · {self.records:,} records in {self.transactions:,} transactions · "
            f"confirmed {format_lsn(self.confirmed)} · unflushed {self.unstored_bytes:,} B{held}"
        )


class PostgresIngest:
    """See the module's docstring. `open_store` is called again if a partition's writer is lost for good."""

    def __init__(self, open_store: Callable[[], Store], settings: PostgresSettings) -> None:
        self._open_store = open_store
        self._settings = settings
        self._store: Store | None = None
        self._collector: Collector[Change] | None = None
        self._stream: Stream | None = None
        self._stored = 0  # the collector's boundary: what the server may be told
        self._confirmed = 0  # what it was told, and its slot is there to keep
        self._phase = "connecting"
        # A plain flag and a socket, because `stop` may be called by a signal handler: no lock to wait for.
        self._stopping = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def __enter__(self) -> PostgresIngest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ask `run` to end, from any thread or a signal handler."""
        self._stopping = True
        self._poke()

    def close(self) -> None:
        """Let go of everything. `run` must have ended."""
        self._drop_store()
        self._woken.close()
        self._wake.close()

    def status(self) -> Status:
        collector = self._collector
        if collector is None:
            return Status(self._phase, self._confirmed, 0, 0, 0, None)
        counts, held_by, opening = collector.counts, collector.explain(1).held_by, collector.opening
        return Status(
            self._phase if opening is None else f"{self._phase}, opening {opening}",
            self._confirmed,
            counts.transactions,
            counts.records,
            counts.unstored_bytes,
            str(held_by[0]) if held_by else None,
        )

    def run(self, *, until_caught_up: bool = False) -> None:
        """Ingest until `stop()`; with `until_caught_up`, until what is committed now is stored and confirmed."""
        target = None
        with connect(self._settings.dsn) as connection:  # a wrong DSN is an error here, not a reason to retry
            self._check(connection)
            if until_caught_up:
                target = end_of_wal(connection)
        retries, failures = RetryPolicy(None, base_s=0.1, cap_s=self._settings.retry_max), 1
        while not self._stopping:
            before = self._confirmed
            try:
                self._session(target)
                return
            except _Stopped:
                return
            except psycopg.Error as error:
                if not _passes(error):
                    raise
                self._retry(error)
            except _PASSING as error:
                self._drop_store()
                self._retry(error)
            failures = 1 if self._confirmed > before else failures + 1
            self._sleep(retries.limit_s(failures))

    def _retry(self, error: Exception) -> None:
        self._phase = f"retrying after {type(error).__name__}"
        logger.warning("ingest from slot %r was interrupted and goes on: %s", self._settings.slot, error)

    def _session(self, target: int | None) -> None:
        """One connection's life. Returns when asked to stop, or when `target` is confirmed."""
        settings = self._settings
        self._phase = "connecting"
        with connect(settings.dsn) as connection:
            self._check(connection)
            state = slot_state(connection, settings.slot)
            publication = publication_oid(connection, settings.publication)
        if state is not None and state.lost:
            raise lost_slot(settings.slot, state.confirmed)
        if state is not None and not state.is_free:
            # Whoever had it before us, perhaps we, may have told the server more than it has read: to begin at less, and
            # say so, would move the slot back on servers that allow it, behind what they still have of transactions.
            raise psycopg.errors.ObjectInUse(f"slot {settings.slot!r} is still in use by another connection")
        stream = self._stream = self._connect_stream()
        try:
            origin = stream.identify()
            if state is None:
                self._drop_collector()
                collector = self._collect(0, origin)
                origin = self._take_snapshot(stream, collector, origin)
            else:
                collector = self._collector or self._collect(state.confirmed, origin)
                origin = origin._replace(publication=publication)
                noted = self._aside(lambda: read_origin(self._opened_store(), settings.slot))
                check_origin(noted, settings.slot, origin)
                collector.source_ends_at(state.current)
            stream.start(settings.publication, collector.rewind())
            self._confirm(stream, force=True)
            self._phase = "streaming"
            # From before the publication was noted; the slot is ours now.
            if state is not None and noted != origin:
                collector.note_origin(origin._asdict())
            self._follow(stream, collector, target, origin)
        finally:
            self._stream = None
            stream.close()

    def _check(self, connection: Any) -> None:
        """Raises what waiting cannot help, and makes the publication if it is missing."""
        settings = self._settings
        tables = None if settings.tables is None else list(settings.tables)
        check_server(connection)
        ensure_publication(connection, settings.publication, tables, settings.slot)
        check_topics(connection, settings.publication)

    def _connect_stream(self) -> Stream:
        settings = self._settings
        try:
            return connect_stream(settings.dsn, settings.slot)
        except psycopg.OperationalError as error:
            with connect(settings.dsn) as connection:
                check_may_replicate(connection, error)
            raise

    def _follow(
        self, stream: Stream, collector: Collector[Change], target: int | None, origin: Origin
    ) -> None:
        """Messages into the collector, boundaries back to the server."""
        follower = Follower(stream, collector, self._settings)
        # The server's ping stands behind everything that it has sent before: to wait for it may be too late.
        speak_s = min(self._settings.status_interval, stream.patience_s / _WORDS_IN_PATIENCE)
        spoke_s = looked_s = time.monotonic()
        while not self._stopping:
            at_hand = follower.step()
            self._confirm(stream)
            said = target is not None and stream.confirmed >= target
            if said and self._is_confirmed(target):
                self._look_after(collector, origin)
                return
            if not at_hand:
                stream.wait(self._woken, _ANSWER_S if said else min(_IDLE_S, speak_s))
                self._forget_pokes()
            now_s = time.monotonic()
            if now_s - spoke_s > speak_s:
                spoke_s = now_s
                self._confirm(stream, force=True)
            if now_s - looked_s > self._settings.status_interval:
                looked_s = now_s
                self._look_after(collector, origin)
        with suppress(AppendTimeout):  # what is not stored yet is sent again next time
            collector.flush(self._settings.stop_timeout)
        self._confirm(stream)
        collector.check()

    def _confirm(self, stream: Stream, *, force: bool = False) -> None:
        stream.confirm(self._stored, force=force)
        self._confirmed = stream.confirmed

    def _is_confirmed(self, target: int | None) -> bool:
        """Has the server taken in what we told it? Feedback has no answer, so it has to be asked."""
        with connect(self._settings.dsn) as connection:
            state = slot_state(connection, self._settings.slot)
        return state is not None and target is not None and state.confirmed >= target

    def _take_snapshot(self, stream: Stream, collector: Collector[Change], origin: Origin) -> Origin:
        """Rows first, durable; then the slot gets its lasting name. Returns where they come from, as it was noted."""
        settings = self._settings
        self._phase = "snapshot"
        consistent_point, snapshot = self._create_temporary(stream)
        # Every commit in the stream is at or after the consistent point, so this sorts before all of them.
        begin = Begin(consistent_point - 1, time.time_ns() // 1_000_000, SNAPSHOT_XID)
        collector.source_ends_at(begin.final_lsn)
        collector.begin(begin.final_lsn, "snapshot", timestamp_ms=begin.commit_ms, starts_over=True)
        if settings.snapshot:
            with snapshot_session(settings.dsn, snapshot) as session:
                tables = published_tables(session, settings.publication, settings.keys)
                publication = publication_oid(session, settings.publication)
                take = partial(self._take_rows, collector)
                used = self._aside(lambda: self._used(tables))
                take([Change(begin, consistent_point, table.relation, "t") for table in used])
                for table in tables:
                    rows = copy_rows(session, table, begin, consistent_point, take)
                    logger.info("snapshot of %s: %d rows", table.relation.name, rows)
        else:
            with connect(settings.dsn) as connection:
                tables = published_tables(connection, settings.publication, settings.keys)
                publication = publication_oid(connection, settings.publication)
            for table in self._aside(lambda: self._used(tables)):
                collector.own(self._topic_of(table))
        collector.commit(consistent_point)
        self._aside(collector.flush)
        origin = origin._replace(publication=publication)
        collector.note_origin(origin._asdict())
        stream.make_lasting()
        return origin

    def _create_temporary(self, stream: Stream) -> tuple[int, str]:
        """On a thread of its own: the server waits until every transaction that is open now has ended, and whoever waits for
        it inside of libpq handles no signal."""
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(stream.create_temporary)
            creating.add_done_callback(lambda _: self._poke())
            while not creating.done():
                select.select([self._woken], [], [], _IDLE_S)
                self._forget_pokes()
                if self._stopping:
                    stream.cancel()
        if self._stopping:
            raise _Stopped
        return creating.result()

    def _take_rows(self, collector: Collector[Change], rows: list[Change]) -> None:
        if self._stopping:
            raise _Stopped
        collector.changes(rows)

    def _used(self, tables: list[Table]) -> list[Table]:
        """Those whose topics hold anything: there a truncate has to tell readers that it starts over."""
        return [table for table in tables if self._holds_anything(table)]

    def _holds_anything(self, table: Table) -> bool:
        try:
            topic = self._opened_store().topic(self._topic_of(table))
        except UnknownTopic:
            return False
        logs = [topic.partition(number) for number in range(topic.partitions)]
        for log in logs:
            # First own it, then look: an attempt that was cut off may still have an append on its way.
            log._internal.open_writer(ack="durable", alone=True)
            log.flush()
        return any(log.durable_high_watermark > log.low_watermark for log in logs)

    def _topic_of(self, table: Table) -> str:
        return self._settings.topic_prefix + table.relation.name

    def _opened_store(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _collect(self, start: int, origin: Origin) -> Collector[Change]:
        settings = self._settings
        envelope = Envelope(
            settings.slot, origin.database, topic_prefix=settings.topic_prefix, tombstones=settings.tombstones
        )
        self._stored = self._confirmed = start
        self._collector = Collector(
            self._aside(self._opened_store),
            envelope.route,
            self._flushed,
            start=start,
            source=settings.slot,
            partitions=settings.partitions,
            max_buffered_bytes=settings.max_buffered_bytes,
            chunk_bytes=settings.chunk_bytes,
            on_wait=self._keep_alive,
        )
        return self._collector

    def _flushed(self, boundary: int) -> None:
        """The collector's report, on any thread; the server learns of it on ours."""
        self._stored = boundary
        self._poke()

    def _aside(self, call: Callable[[], T]) -> T:
        """What asks the store, and may have to wait for it, while `stop` is obeyed."""
        return aside(call, self._keep_alive)

    def _keep_alive(self) -> None:
        """While the collector waits for room, the server must not take us for dead; nor may `stop` wait."""
        if self._stopping:
            raise _Stopped
        if self._stream is not None and self._phase == "streaming":
            self._confirm(self._stream, force=True)

    def _look_after(self, collector: Collector[Change], origin: Origin) -> None:
        """Now and then: who holds the slot back, and is the stream still all that there is?"""
        with connect(self._settings.dsn) as connection:
            publication = publication_oid(connection, self._settings.publication)
        check_origin(origin, self._settings.slot, origin._replace(publication=publication))
        for finding in collector.check():
            logger.warning("slot %r is held back: %s", self._settings.slot, finding)

    def _poke(self) -> None:
        with suppress(OSError):  # a full buffer wakes as well; a closed socket has nobody to wake
            self._wake.send(b"x")

    def _forget_pokes(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._stopping and (left_s := until_s - time.monotonic()) > 0:
            select.select([self._woken], [], [], left_s)
            self._forget_pokes()

    def _drop_collector(self) -> None:
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _drop_store(self) -> None:
        """The source still has everything that was not confirmed, so nothing here is worth waiting for."""
        self._drop_collector()
        store, self._store = self._store, None
        if store is not None:
            with suppress(LogStoreError):
                store.close(timeout=1.0)


def _passes(error: psycopg.Error) -> bool:
    """Is the connection or the server the trouble, rather than what was asked of it?

    libpq reports some broken connections as a plain `DatabaseError`, without a code of the server's. A
    temporary slot that exists is one whose session the server has not given up yet: we were killed a moment
    ago.
    """
    passing = psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.DuplicateObject
    return isinstance(error, passing) or error.sqlstate is None


def slot_lag_bytes(connection: Any, slot: str) -> int | None:
    """How much WAL the server keeps for the slot beyond what is confirmed; None without a slot."""
    state = slot_state(connection, slot)
    return None if state is None else state.lag_bytes
