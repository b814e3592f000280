"""Snapshot and stream say the same of a table: which rows are its own, and which columns identify them."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

import logstore
from logstore.errors import UnsupportedStore
from logstore.ingest.postgres.slot import Stream, connect
from logstore.objects import MemoryStore

from .pg_server import PostgresServer, fresh_database, postgres_server
from .pg_story import catch_up, events, session, settings

pytestmark = pytest.mark.postgres


def keys(objects, topic="public.t"):
    return [(event["op"], event["key"]) for event in events(objects, topic)]


def stored(objects, topic="public.t"):
    """The same in the order of the log, where the positions of two servers cannot be compared."""
    with logstore.open(objects, writer="read_only") as store:
        records = store.topic(topic).partition(0).records()
        return [
            (json.loads(record.value)["op"], json.loads(record.key) if record.key else None)
            for record in records
        ]


def test_F14_a_table_that_others_inherit_from_has_its_own_rows_alone(dsn):
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


def test_F14_columns_that_an_index_only_includes_are_not_in_the_key(dsn):
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int, n int, primary key (id) include (n))")
        sql.execute("insert into t values (1, 0)")
        catch_up(objects, settings(dsn))
        sql.execute("update t set n = 1")
        sql.execute("delete from t")
    catch_up(objects, settings(dsn))
    assert keys(objects) == [(op, {"id": 1}) for op in "rud"]


def test_F14_a_deferrable_primary_key_identifies_nothing(dsn):
    """The server does not take it for a replica identity."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key deferrable, n int)")
        sql.execute("insert into t values (1, 0)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (2, 0)")
    catch_up(objects, settings(dsn))
    assert keys(objects) == [("r", None), ("c", None)]


def test_F14_generated_columns_are_in_both_or_in_neither(dsn):
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


def test_F14_a_snapshot_of_a_server_that_is_behind_the_store_is_refused(postgres: PostgresServer, dsn):
    """Another cluster, or this one restored to an earlier time: its positions have been used, so its rows would be taken
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
            catch_up(objects, settings(other, slot=config.slot, partitions=1))
        with session(other) as sql:
            sql.execute("select count(*) from pg_replication_slots")
            assert sql.fetchone() == (0,)
        catch_up(objects, settings(other, slot="another", partitions=1))
    assert [op for op, _ in stored(objects)][:2] == ["r", "t"]
    assert stored(objects)[2:] == [("r", {"id": 2}), ("r", {"id": 3})]


def test_F10_a_roles_limits_end_neither_a_snapshot_nor_the_session_that_holds_it(dsn):
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
    stream = Stream(odd, "limits")
    with connect(odd) as connection, connection.cursor() as cursor, closing(stream):
        for each in (cursor, stream._cursor):
            found = {}
            for name in limits:
                each.execute(f"show {name}")
                (found[name],) = each.fetchone()
            assert found == dict.fromkeys(limits, "0")
