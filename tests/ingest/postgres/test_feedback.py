"""What the server is told: the collector's boundary and nothing else, whatever it pings and whenever it does."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from logstore.ingest.postgres.pgoutput import Commit, Decoder
from logstore.ingest.postgres.slot import connect_stream
from logstore.objects import MemoryStore
from tests.support.ingest.pg_story import catch_up, session, settings
from tests.support.ingest.pg_waits import running, wait_until

pytestmark = pytest.mark.postgres

TIMEOUT_S = 5
"""The server pings after half of it."""
LONG_ROWS = 10_000
"""Of 2 kB: more than the sockets' buffers hold, so the server is still inside of the transaction when it pings."""


def confirmed(sql: Any, slot: str) -> int:
    sql.execute("select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = %s", (slot,))
    return int(sql.fetchone()[0])


def silent(sql: Any, slot: str, timeout_s: float) -> Any:
    """Has the server waited for an answer so long that it has pinged, with the transaction half sent?"""
    sql.execute(
        "select a.wait_event = 'WalSenderWriteData' and clock_timestamp() - r.reply_time > make_interval(secs => %s) "
        "from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid "
        "join pg_stat_activity a on a.pid = r.pid where s.slot_name = %s",
        (timeout_s * 0.6, slot),
    )
    return sql.fetchone()[0]


def answered(sql: Any, slot: str) -> Any:
    sql.execute(
        "select r.reply_time from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid "
        "where s.slot_name = %s",
        (slot,),
    )
    return sql.fetchone()[0]


def test_F02_a_ping_inside_of_a_long_transaction_confirms_nothing_that_was_not_confirmed(dsn: str) -> None:
    """Rows of a long transaction stand before the end of a short one that was stored meanwhile. So "the last message lies
    below what was confirmed" says nothing about the transactions between them."""
    config = settings(dsn)
    with session(dsn) as sql, session(dsn) as other:
        sql.execute("create table t (id int primary key, v text)")
        catch_up(MemoryStore(), config)
        other.execute("begin")
        other.execute("insert into t select i, repeat('x', 2000) from generate_series(1, %s) i", (LONG_ROWS,))
        sql.execute("insert into t values (-1, 'stored')")
        sql.execute("insert into t values (-2, 'owed')")
        other.execute("commit")
        impatient = f"{dsn} options='-c wal_sender_timeout={TIMEOUT_S}s'"
        with closing(connect_stream(impatient, config.slot)) as stream:
            stream.start(config.publication, 0)
            decoder, ends, messages = Decoder(), [], []

            def read() -> Any:
                message = stream.read()
                if message is not None:
                    messages.append(message)
                    decoded = decoder.decode(message.payload, message.data_start)
                    if type(decoded) is Commit:
                        ends.append(decoded.end_lsn)
                return message

            while len(ends) < 1:
                read()
            stored = ends[0]
            stream.confirm(stored)
            while len(ends) < 2:
                read()
            while not messages or messages[-1].data_start >= stored:
                read()  # the long one begins
            wait_until(lambda: silent(sql, config.slot, TIMEOUT_S))
            before = answered(sql, config.slot)
            while answered(sql, config.slot) == before and len(ends) == 2:
                for _ in range(100):
                    read()  # up to the ping, which has its answer then
            assert len(ends) == 2, "it came in the middle of the transaction"
            assert messages[-1].data_start < stored
            assert confirmed(sql, config.slot) == stored < ends[1]


def test_F02_where_to_begin_is_read_when_nobody_can_move_it_any_more(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection before ours may have told the server more than it has read yet. Before May 2025 PostgreSQL believed
    whoever came next with less, and the slot went back behind the WAL that it keeps."""
    config, store = settings(dsn, retry_max=0.1), MemoryStore()
    starts: list[int] = []
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v text)")
        catch_up(store, config)
        sql.execute("insert into t values (1, 'stored by the one before us')")
        sql.execute("select pg_current_wal_lsn() - '0/0'")
        end = int(sql.fetchone()[0])
        after = running(store, config)
        collect = after.ingest._collect
        monkeypatch.setattr(
            after.ingest, "_collect", lambda start, origin: starts.append(start) or collect(start, origin)
        )
        with closing(connect_stream(dsn, config.slot)) as stream:
            stream.start(config.publication, 0)
            with after as ingest:
                wait_until(lambda: ingest.status().phase == "retrying after ObjectInUse")
                stream.confirm(end)
                wait_until(lambda: confirmed(sql, config.slot) == end)
                stream.close()
                wait_until(lambda: ingest.status().phase == "streaming")
    assert starts == [end]
