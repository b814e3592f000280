"""Snapshot and stream say the same of a table: which rows are its own, and which columns identify them."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg.errors
import pytest

import logstore
from logstore.errors import StraddlingTransaction, UnsupportedStore
from logstore.ingest.postgres.slot import connect, connect_stream
from logstore.objects import MemoryStore, ObjectStore
from tests.support.ingest.pg_server import PostgresServer, fresh_database, postgres_server
from tests.support.ingest.pg_story import catch_up, events, session, settings
from tests.support.ingest.pg_waits import wait_until

pytestmark = pytest.mark.postgres


def keys(objects: ObjectStore, topic: str = "public.t") -> list[tuple[str, Any]]:
    return [(event["op"], event["key"]) for event in events(objects, topic)]


def stored(objects: ObjectStore, topic: str = "public.t") -> list[tuple[str, Any]]:
    """The same in the order of the log, where the positions of two servers cannot be compared."""
    with logstore.open(objects, writer="read_only") as store:
        records = store.topic(topic).partition(0).records()
        return [
            (json.loads(record.value)["op"], json.loads(record.key) if record.key else None)  # type: ignore[arg-type]
            for record in records
        ]


def test_F14_a_table_that_others_inherit_from_has_its_own_rows_alone(dsn: str) -> None:
    """The stream tells each child's changes as the child's; a plain select of the parent shows the children's rows too."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, n int)")
        sql.execute("create table child (primary key (id)) inherits (t)")
        sql.execute("insert into t values (1, 0)")
        sql.execute("insert into child values (2, 0)")
        catch_up(objects, settings(dsn))
        sql.execute("update t set n = 1")
        sql.execute("delete from t where id = 2")
    catch_up(objects, settings(dsn))
    assert keys(objects) == [("r", {"id": 1}), ("u", {"id": 1})]
    assert keys(objects, "public.child") == [("r", {"id": 2}), ("u", {"id": 2}), ("d", {"id": 2})]


def test_F14_columns_that_an_index_only_includes_are_not_in_the_key(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int, n int, primary key (id) include (n))")
        sql.execute("insert into t values (1, 0)")
        catch_up(objects, settings(dsn))
        sql.execute("update t set n = 1")
        sql.execute("delete from t")
    catch_up(objects, settings(dsn))
    assert keys(objects) == [(op, {"id": 1}) for op in "rud"]


def test_F14_a_deferrable_primary_key_identifies_nothing(dsn: str) -> None:
    """The server does not take it for a replica identity."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key deferrable, n int)")
        sql.execute("insert into t values (1, 0)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (2, 0)")
    catch_up(objects, settings(dsn))
    assert keys(objects) == [("r", None), ("c", None)]


def test_F14_generated_columns_are_in_both_or_in_neither(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute(
            "create table t (id int primary key, n int, twice int generated always as (n * 2) stored)"
        )
        sql.execute("insert into t values (1, 1)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (2, 2)")
    catch_up(objects, settings(dsn))
    snapshot, stream = (set(event["after"]) for event in events(objects, "public.t"))
    assert snapshot == stream


@pytest.mark.parametrize("snapshot", [True, False])
def test_F14_a_server_that_is_behind_the_store_is_refused(
    postgres: PostgresServer, dsn: str, snapshot: bool
) -> None:
    """Another cluster, or this one restored to an earlier time: its positions have been used, so its changes would be taken
    for a replay and left out without a word."""
    objects, config = MemoryStore(), settings(dsn, partitions=1)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        for _ in range(3):
            sql.execute("select pg_switch_wal()")
            sql.execute("create table if not exists filler (n int)")
            sql.execute("insert into filler values (1)")
        sql.execute("insert into t values (1)")
        catch_up(objects, config)
    with postgres_server() as restored, fresh_database(restored, "earlier") as other:
        with session(other) as sql:
            sql.execute("create table t (id int primary key)")
            sql.execute("insert into t values (2), (3)")
        with pytest.raises(UnsupportedStore, match="another slot"):
            catch_up(objects, settings(other, slot=config.slot, partitions=1, snapshot=snapshot))
        with session(other) as sql:  # the server drops the temporary one when it notices that we have gone
            wait_until(lambda: sql.execute("select from pg_replication_slots").fetchone() is None)
        catch_up(objects, settings(other, slot="another", partitions=1))
    assert [op for op, _ in stored(objects)][:2] == ["r", "t"]
    assert stored(objects)[2:] == [("r", {"id": 2}), ("r", {"id": 3})]


def _written(server: PostgresServer, first: int, last: int) -> None:
    with session(server.dsn()) as sql:
        for number in range(first, last):
            sql.execute("insert into t values (%s)", (number,))


@pytest.mark.parametrize("went_on", [0, 100])
def test_F14_a_server_that_was_restored_together_with_its_slot_is_refused(
    tmp_path: Path, went_on: int
) -> None:
    """A disk's snapshot brings the slot back as it was. What is committed from then on is at positions that the store
    has already, of transactions that are gone. `went_on`: its WAL may have passed the store's position before we look."""
    objects = MemoryStore()
    with postgres_server() as server:
        config = settings(server.dsn(), partitions=1)
        with session(server.dsn()) as sql:
            sql.execute("create table t (id int primary key)")
        _written(server, 0, 1)
        catch_up(objects, config)
        server.stop()
        subprocess.run(["cp", "-a", server.data, tmp_path / "disk"], check=True)
        server.start()
        _written(server, 1, 40)
        catch_up(objects, config)
        before = stored(objects)
        server.stop()
        shutil.rmtree(server.data)
        subprocess.run(["cp", "-a", tmp_path / "disk", server.data], check=True)
        server.start()
        with session(server.dsn()) as sql:
            # Without it the same transactions would stand at the same positions as before.
            sql.execute("create table filler (n int)")
        _written(server, 1000, 1005 + went_on)
        with pytest.raises((UnsupportedStore, StraddlingTransaction)):
            catch_up(objects, config)
    assert stored(objects) == before


def test_F14_a_policy_on_rows_does_not_leave_any_out_of_the_snapshot_without_a_word(dsn: str) -> None:
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t values (1), (2)")
        sql.execute("create publication pub for all tables")
        sql.execute("alter table t enable row level security")
        sql.execute("create policy odd on t for select using (id % 2 = 1)")
        sql.execute("create role restricted login replication")
        try:
            sql.execute("grant select on t to restricted")
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                catch_up(MemoryStore(), settings(dsn.replace("user=postgres", "user=restricted")))
        finally:
            sql.execute("drop owned by restricted; drop role restricted")


def test_F10_a_roles_limits_end_neither_a_snapshot_nor_the_session_that_holds_it(dsn: str) -> None:
    """While rows are read for hours the one is in a transaction, and the other in one too, and idle."""
    with session(dsn) as sql:
        sql.execute("select name from pg_settings where name like '%timeout' and context = 'user'")
        names = {name for (name,) in sql.fetchall()}
    limits = names & {
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "transaction_timeout",  # since 17
    }
    odd = f"{dsn} options='{' '.join(f'-c {name}=60000' for name in sorted(limits))}'"
    stream = connect_stream(odd, "limits")
    with connect(odd) as connection, closing(stream):
        for each in (connection, stream.connection):
            found = {}
            for name in limits:
                (found[name],) = each.execute(f"show {name}").fetchone()  # type: ignore[misc]
            assert found == dict.fromkeys(limits, "0")
