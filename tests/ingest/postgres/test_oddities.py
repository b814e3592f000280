"""What real databases have beside plain tables, against a real PostgreSQL: right rows, or an error that says what to do."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest

from logstore.errors import InvalidRecord, InvalidTopicName, LogStoreError, UnsupportedStore
from logstore.ingest.postgres.values import UNAVAILABLE
from logstore.objects import MemoryStore
from tests.support.ingest.pg_server import postgres_server
from tests.support.ingest.pg_story import catch_up, events, same_rows, session, settings

pytestmark = pytest.mark.postgres

LONG = os.urandom(1300).hex()  # does not compress: it lies outside of its row


def test_F14_a_large_key_that_an_update_does_not_touch_stays_the_key(dsn: str) -> None:
    """The server does not repeat it in the new row: it is in the old one's identity."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id text primary key, n int)")
        sql.execute("alter table t alter id set storage external")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (%s, 1)", (LONG,))
        sql.execute("update t set n = 2")
        sql.execute("delete from t")
    catch_up(objects, settings(dsn))
    found = events(objects, "public.t")
    assert [(event["op"], event["key"]) for event in found] == [(op, {"id": LONG}) for op in "cud"]
    assert found[1]["after"] == {"id": LONG, "n": 2}


def test_a_chosen_key_that_the_stream_does_not_have_is_an_error_not_a_null(dsn: str) -> None:
    """Of a deleted row the server sends the replica identity, and the key that was asked for is not in it."""
    objects, config = MemoryStore(), settings(dsn, keys={"public.t": ["name"]})
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, name text, n int)")
        catch_up(objects, config)
        sql.execute("insert into t values (1, 'one', 0)")
        sql.execute("update t set n = 1")
        catch_up(objects, config)
        assert [event["key"] for event in events(objects, "public.t")] == [{"name": "one"}] * 2
        sql.execute("delete from t")
        with pytest.raises(InvalidRecord, match=r"public\.t.*'name'.*replica identity full"):
            catch_up(objects, config)
        assert len(events(objects, "public.t")) == 2


def test_a_chosen_key_that_is_too_large_to_be_repeated_is_an_error_not_a_null(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn, keys={"public.t": ["name"]})
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, name text, n int)")
        sql.execute("alter table t alter name set storage external")
        catch_up(objects, config)
        sql.execute("insert into t values (1, %s, 0)", (LONG,))
        catch_up(objects, config)
        sql.execute("update t set n = 1")
        with pytest.raises(InvalidRecord, match=r"public\.t.*'name'.*replica identity full"):
            catch_up(objects, config)
    assert [event["key"] for event in events(objects, "public.t")] == [{"name": LONG}]


def test_replica_identity_full_with_a_chosen_key_folds_to_the_table(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn, keys={"public.t": ["id"]})
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, name text, big text)")
        sql.execute("alter table t replica identity full")
        sql.execute("insert into t values (1, 'a', 'x'), (2, 'b', null)")
        catch_up(objects, config)
        sql.execute("insert into t values (3, 'c', %s)", (LONG,))
        sql.execute("update t set name = name || '!' where id in (1, 3)")
        sql.execute("update t set id = id + 10 where id = 2")
        sql.execute("delete from t where id = 1")
    catch_up(objects, config)
    assert same_rows(objects, dsn, "public.t")


def test_replica_identity_by_an_index_keys_the_records_by_its_columns(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, name text not null)")
        sql.execute("create unique index by_name on t (name)")
        sql.execute("alter table t replica identity using index by_name")
        sql.execute("insert into t values (1, 'a')")
        catch_up(objects, config)
        sql.execute("update t set id = 10")
        sql.execute("update t set name = 'b'")
        sql.execute("delete from t")
    catch_up(objects, config)
    found = [(event["op"], event["key"]["name"]) for event in events(objects, "public.t")]
    assert found == [("r", "a"), ("u", "a"), ("d", "a"), ("c", "b"), ("d", "b")]


def partitioned(sql: Any, *, by_root: bool) -> None:
    sql.execute("create table m (id int, at date, primary key (id, at)) partition by range (at)")
    for year in (2020, 2021):
        sql.execute(
            f"create table m_{year} partition of m for values from ('{year}-01-01') to ('{year + 1}-01-01')"
        )
    sql.execute(f"create publication pub for table m with (publish_via_partition_root = {by_root})")
    sql.execute("insert into m values (1, '2020-05-05')")


def move_a_row(sql: Any) -> None:
    sql.execute("insert into m values (2, '2021-05-05')")
    sql.execute("update m set at = '2021-06-06' where id = 1")


def test_a_partitioned_table_that_is_published_as_one_is_one_topic(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        partitioned(sql, by_root=True)
        catch_up(objects, settings(dsn))
        move_a_row(sql)
    catch_up(objects, settings(dsn))
    found = [(event["op"], event["key"]) for event in events(objects, "public.m")]
    assert found == [
        ("r", {"id": 1, "at": "2020-05-05"}),
        ("c", {"id": 2, "at": "2021-05-05"}),
        ("d", {"id": 1, "at": "2020-05-05"}),
        ("c", {"id": 1, "at": "2021-06-06"}),
    ]


def test_a_partitioned_table_that_is_published_by_its_parts_is_a_topic_for_each(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        partitioned(sql, by_root=False)
        catch_up(objects, settings(dsn))
        move_a_row(sql)
    catch_up(objects, settings(dsn))
    assert [event["op"] for event in events(objects, "public.m_2020")] == ["r", "d"]
    assert [event["after"]["id"] for event in events(objects, "public.m_2021")] == [2, 1]


def test_odd_types_values_and_names_mean_the_same_in_snapshot_and_stream(dsn: str) -> None:
    """Domains, enums, composites, arrays of them, infinities, empty strings, quotes; generated columns are left out."""
    objects = MemoryStore()
    values = """7, 'so-so "quoted"', '(1,"x, y\\\\")', array[row(1, 'a\b')::pair, null], '{{a,NULL},{"b\\\\",""}}',
        'infinity', '-infinity', 'NaN', '', '{"k": "\\u00e9\\n"}', '', E'tab\t line\n back\\ end'"""
    names = ['size "cm" ß', "m", "p", "ps", "arr", "ts", "f", "nu", "raw", "j", "empty", "control"]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    with session(dsn) as sql:
        sql.execute("""create type mood as enum ('glad', 'so-so "quoted"')""")
        sql.execute("create type pair as (a int, b text)")
        sql.execute("create domain positive as int check (value > 0)")
        types = "positive, mood, pair, pair[], text[], timestamp, float8, numeric, bytea, jsonb, text, text"
        columns = map(" ".join, zip(quoted.split(", "), types.split(", "), strict=True))
        sql.execute(
            f"create table t (id int primary key, {', '.join(columns)}, twice int generated always as (id * 2) stored)"
        )
        sql.execute(f"insert into t (id, {quoted}) values (1, {values})")
        catch_up(objects, settings(dsn))
        sql.execute(f"insert into t (id, {quoted}) values (2, {values})")
        catch_up(objects, settings(dsn))
        sql.execute(f"select {', '.join(f'{name}::text' for name in quoted.split(', '))} from t where id = 1")
        printed = dict(zip(names, sql.fetchone(), strict=True))
    first, second = (event["after"] for event in events(objects, "public.t"))
    assert {**first, "id": 2} == second
    assert first == {"id": 1, **printed, "raw": ""}


def test_a_table_that_is_renamed_goes_on_in_the_topic_of_its_new_name(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (1)")
        sql.execute("alter table t rename to u")
        sql.execute("insert into u values (2)")
        sql.execute("alter table u rename id to number")
        sql.execute("insert into u values (3)")
    catch_up(objects, settings(dsn))
    assert [event["after"] for event in events(objects, "public.t")] == [{"id": 1}]
    assert [event["after"] for event in events(objects, "public.u")] == [{"id": 2}, {"number": 3}]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_table_whose_name_cannot_be_a_topic_is_refused_by_name(dsn: str, when: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table fine (id int primary key)")
        if when == "after":
            catch_up(objects, settings(dsn))
        sql.execute('create table "no good/name" (id int primary key)')
        sql.execute('insert into "no good/name" values (1)')
        with pytest.raises(LogStoreError, match=r"public\.no good/name"):
            catch_up(objects, settings(dsn))


@pytest.mark.parametrize("when", ["before", "after", "while it runs"])
def test_two_tables_that_would_be_one_topic_are_refused_by_name(dsn: str, when: str) -> None:
    """Rows of both under one name could not be told apart, and a truncate of one would be the end of the other's."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute('create schema "a"; create schema "a.b"')
        sql.execute('create table "a"."b.c" (id int primary key)')
        sql.execute('insert into "a"."b.c" values (1)')
        if when != "before":
            catch_up(objects, settings(dsn))
        sql.execute('create table "a.b"."c" (id int primary key)')
        if when == "while it runs":  # in the stream, it is there and gone before anybody asks what there is
            sql.execute('insert into "a"."b.c" values (2); insert into "a.b"."c" values (1)')
            sql.execute('drop table "a.b"."c"')
        with pytest.raises(
            InvalidTopicName, match=r'"a"."b\.c" and "a\.b"."c" would both be the topic \'a\.b\.c\''
        ):
            catch_up(objects, settings(dsn))
        sql.execute('drop schema "a" cascade; drop schema "a.b" cascade')


def test_a_publication_that_was_dropped_is_said_and_not_made_again_over_a_hole(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        catch_up(objects, config)
        sql.execute("drop publication pub")
        sql.execute("insert into t values (1)")
        with pytest.raises(UnsupportedStore, match=r"publication 'pub' .*drop the slot"):
            catch_up(objects, config)
        sql.execute("select count(*) from pg_publication")
        assert sql.fetchone() == (0,)


def test_a_table_that_joins_the_publication_later_is_in_the_stream_from_then_on(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table a (id int primary key)")
        sql.execute("create table b (id int primary key)")
        sql.execute("create publication pub for table a")
        catch_up(objects, config)
        sql.execute("insert into b values (1)")
        sql.execute("alter publication pub add table b")
        sql.execute("insert into b values (2)")
        sql.execute("alter publication pub drop table a")
        sql.execute("insert into a values (3)")
    catch_up(objects, config)
    assert [event["after"]["id"] for event in events(objects, "public.b")] == [2]
    with pytest.raises(LogStoreError, match=r"public\.a"):
        events(objects, "public.a")


def test_a_slot_that_somebody_dropped_starts_over_with_a_snapshot_and_a_truncate(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t values (1), (2)")
        catch_up(objects, config)
        # The server may not have noticed yet that our connection has ended.
        sql.execute(
            "select pg_terminate_backend(active_pid, 60000) from pg_replication_slots where slot_name = %s and active",
            (config.slot,),
        )
        sql.execute("select pg_drop_replication_slot(%s)", (config.slot,))
        sql.execute("delete from t where id = 1")
        sql.execute("insert into t values (3)")
    catch_up(objects, config)
    assert same_rows(objects, dsn, "public.t")
    assert {event["op"] for event in events(objects, "public.t")} == {"r", "t"}


def test_a_server_without_logical_wal_is_refused_with_the_setting_to_change() -> None:
    with postgres_server(wal_level="replica") as server:
        with session(server.dsn()) as sql:
            sql.execute("create table t (id int primary key)")
        with pytest.raises(UnsupportedStore, match="wal_level"):
            catch_up(MemoryStore(), settings(server.dsn()))


def test_a_standby_is_refused_with_what_to_connect_to() -> None:
    """A slot there waits for news of the primary's transactions, without end and without a word."""
    with postgres_server() as server:
        with session(server.dsn()) as sql:
            sql.execute("create table t (id int primary key)")
            sql.execute("create publication pub for all tables")
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(psycopg.OperationalError, match="connect to the primary"):
            catch_up(MemoryStore(), settings(server.dsn()))


def test_a_user_who_may_not_replicate_is_refused_with_the_right_that_is_missing(dsn: str) -> None:
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("create publication pub for all tables")
        sql.execute("do $$ begin create role mortal login; exception when duplicate_object then null; end $$")
    mortal = dsn.replace("user=postgres", "user=mortal")
    with pytest.raises(UnsupportedStore, match="REPLICATION"):
        catch_up(MemoryStore(), settings(mortal))


def test_updates_leave_large_values_out_and_say_so(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, big text, n int)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (1, %s, 0)", (LONG * 4,))
        sql.execute("update t set n = 1")
    catch_up(objects, settings(dsn))
    assert events(objects, "public.t")[-1]["after"] == {"id": 1, "big": UNAVAILABLE, "n": 1}
    assert same_rows(objects, dsn, "public.t")
