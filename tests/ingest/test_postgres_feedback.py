"""What the server is told: the collector's boundary and nothing else, whatever it pings and whenever it does."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from logstore.ingest.postgres.pgoutput import Commit, Decoder
from logstore.ingest.postgres.slot import connect_stream
from logstore.objects import MemoryStore
from tests.support.ingest.ingester import switch_for
from tests.support.ingest.pg_end import ROOT, wait_for_the_end
from tests.support.ingest.pg_story import catch_up, events, session, settings
from tests.support.ingest.pg_waits import wait_until
from tests.support.patience import PATIENCE_S

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


KILLS = 8


class Interleaved:
    """Long transactions, each open while many short ones commit, into tables of their own; until it is left."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.failures: list[BaseException] = []
        self._dsn = dsn
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,)) for run in (self._long, self._short)
        ]

    def __enter__(self) -> Interleaved:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.failures == []

    def _guarded(self, run: Callable[[Any], None]) -> None:
        try:
            with session(self._dsn) as sql:
                run(sql)
        except BaseException as error:
            self.failures.append(error)

    def _long(self, sql: Any) -> None:
        while not self._stop.is_set():
            sql.execute("begin")
            for _ in range(4):
                sql.execute("insert into long (v) select repeat('y', 500) from generate_series(1, 800)")
                self._stop.wait(0.3)
            sql.execute("commit")

    def _short(self, sql: Any) -> None:
        while not self._stop.wait(self._rng.uniform(0.0, 0.05)):
            sql.execute("insert into short (v) values ('x')")


def holds_the_slot(dsn: str, slot: str) -> bool:
    with session(dsn) as sql:
        return sql.execute(  # type: ignore[no-any-return]
            "select active from pg_replication_slots where slot_name = %s", (slot,)
        ).fetchone()[0]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_F02_the_slot_is_never_confirmed_past_the_boundary_and_no_row_is_lost_or_doubled(
    dsn: str, tmp_path: Path, seed: int
) -> None:
    """The store goes away and comes back, the ingester is stopped for so long that the server pings it in the middle of
    something, and is killed with -9."""
    store, notes, slot = tmp_path / "store", tmp_path / "notes", "watched" + str(seed)
    off, pause, rng = switch_for(store), threading.Event(), random.Random(seed)
    impatient = f"{dsn} options='-c wal_sender_timeout=3s'"
    command = [sys.executable, "-m", "tests.support.ingest.ingester", impatient, str(store), slot, str(notes)]
    with session(dsn) as sql:
        for table in ("long", "short"):
            sql.execute(f"create table {table} (id serial primary key, v text)")
    catch_up(str(store), settings(dsn, slot=slot))
    with Interleaved(dsn, seed):
        for number in range(KILLS + 1):
            child = subprocess.Popen(command, cwd=ROOT)
            wait_until(lambda: holds_the_slot(dsn, slot))
            for _ in range(2):
                pause.wait(rng.uniform(0.2, 1.5))
                off.touch()
                pause.wait(rng.uniform(0.2, 1.0))
                child.send_signal(signal.SIGSTOP)
                pause.wait(rng.uniform(1.5, 2.5))
                child.send_signal(signal.SIGCONT)
                pause.wait(rng.uniform(0.0, 0.5))
                off.unlink()
            if number < KILLS:
                child.send_signal(signal.SIGKILL)
                child.wait(PATIENCE_S)
    try:
        wait_for_the_end(dsn, slot, child)
    finally:
        child.terminate()
        child.wait(PATIENCE_S)
    assert not notes.exists(), notes.read_text()
    assert len(notes.with_suffix(".looks").read_text()) > KILLS, "it was looked at all the time"
    with session(dsn) as sql:
        for table in ("long", "short"):
            rows = [row for (row,) in sql.execute(f"select id from {table} order by id").fetchall()]
            assert sorted(event["after"]["id"] for event in events(str(store), f"public.{table}")) == rows
