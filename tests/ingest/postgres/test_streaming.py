"""A real PostgreSQL in: snapshot, stream, the shape of the records, and what is confirmed to the server."""

from __future__ import annotations

import signal
import threading
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

import logstore
from logstore.errors import Fenced, RecordTooLarge, UnknownTopic, UnsupportedStore
from logstore.ingest.journal import Journal
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.ingest.postgres.origin import Origin
from logstore.ingest.postgres.slot import connect, slot_state
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.ingest.pg_server import PostgresServer
from tests.support.ingest.pg_story import catch_up, events, fold, same_rows, session, settings
from tests.support.ingest.pg_waits import _run, confirmed_of, running, wait_confirmed, wait_until
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.postgres


def test_F14_snapshot_then_stream_without_a_gap_or_an_overlap(dsn: str) -> None:
    """Rows are written before, during and after the snapshot; each is in the topic exactly once."""
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute("insert into t select i, 'before ' || i from generate_series(1, 3000) i")
        inserted = threading.Thread(target=_insert, args=(dsn, 3001, 3200))
        inserted.start()
        catch_up(objects, settings(dsn))
        inserted.join()
        sql.execute("insert into t values (5000, 'after')")
    catch_up(objects, settings(dsn))
    found = events(objects, "public.t")
    assert sorted(event["after"]["id"] for event in found) == [*range(1, 3201), 5000]
    assert {event["op"] for event in found if event["after"]["id"] <= 3000} == {"r"}
    assert found[-1]["op"] == "c"
    assert same_rows(objects, dsn, "public.t")


def _insert(dsn: str, first: int, last: int) -> None:
    with session(dsn) as sql:
        for number in range(first, last + 1):
            sql.execute("insert into t values (%s, 'during')", (number,))


def test_the_shape_of_create_update_delete_and_truncate(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v text, n numeric, ok bool, raw bytea)")
        catch_up(objects, settings(dsn, tombstones=True))
        sql.execute("insert into t values (1, 'é\"\\', 1.50, true, '\\xdead')")
        sql.execute("update t set v = 'two' where id = 1")
        sql.execute("update t set id = 2 where id = 1")
        sql.execute("delete from t where id = 2")
        sql.execute("insert into t values (3)")
        sql.execute("truncate t")
    catch_up(objects, settings(dsn, tombstones=True))
    found = events(objects, "public.t")
    row = {"id": 1, "v": 'é"\\', "n": "1.50", "ok": True, "raw": "3q0="}
    shapes = [(event.get("op"), event["key"], event.get("before"), event.get("after")) for event in found]
    assert shapes == [
        ("c", {"id": 1}, None, row),
        ("u", {"id": 1}, None, {**row, "v": "two"}),
        ("d", {"id": 1}, {"id": 1}, None),
        (None, {"id": 1}, None, None),  # the tombstone
        ("c", {"id": 2}, None, {**row, "v": "two", "id": 2}),
        ("d", {"id": 2}, {"id": 2}, None),
        (None, {"id": 2}, None, None),
        ("c", {"id": 3}, None, {"id": 3, "v": None, "n": None, "ok": None, "raw": None}),
        ("t", None, None, None),
        ("t", None, None, None),  # one for each partition
    ]
    source = found[0]["source"]
    assert (source["connector"], source["schema"], source["table"]) == ("postgresql", "public", "t")
    assert source["snapshot"] == "false"
    assert fold(found) == {}


def test_replica_identity_full_gives_before_images_and_large_values_that_an_update_did_not_touch(
    dsn: str,
) -> None:
    objects, large = MemoryStore(), "x" * 100_000
    with session(dsn) as sql:
        for table in ("full_row", "key_only"):
            sql.execute(f"create table {table} (id int primary key, v text, big text)")
            sql.execute(f"alter table {table} alter big set storage external")
        sql.execute("alter table full_row replica identity full")
        keys = {"public.full_row": ["id"]}
        catch_up(objects, settings(dsn, keys=keys))
        for table in ("full_row", "key_only"):
            sql.execute(f"insert into {table} values (1, 'a', %s)", (large,))
            sql.execute(f"update {table} set v = 'b'")
    catch_up(objects, settings(dsn, keys=keys))
    update = events(objects, "public.full_row")[-1]
    assert (update["op"], update["key"], update["before"]["v"], update["after"]["v"]) == (
        "u",
        {"id": 1},
        "a",
        "b",
    )
    assert update["after"]["big"] == large
    update = events(objects, "public.key_only")[-1]
    assert (update["before"], update["after"]["big"]) == (None, "__debezium_unavailable_value")
    assert same_rows(objects, dsn, "public.full_row")
    assert same_rows(objects, dsn, "public.key_only")


def test_snapshot_and_stream_say_the_same_of_every_type(dsn: str) -> None:
    """The row as the snapshot's COPY prints it, and as the stream sends it: the same JSON."""
    objects = MemoryStore()
    columns = {
        "text": "E'tab\\t back\\\\ \\\\N line\\n quote\" é \\u2028'",
        "bool": "true",
        "int8": "-9223372036854775808",
        "float4": "1.1",
        "float8": "0.1::float8 + 0.2",
        "numeric": "12345678901234567890.5000",
        "bytea": "'\\x00ff10'",
        "timestamptz": "'2024-02-29 23:59:59.123456+05:30'",
        "timestamp": "'infinity'",
        "date": "'0044-03-15 BC'",
        "interval": "'1 year 2 days 03:04:05'",
        "jsonb": "'{\"a\": [1, null]}'",
        "uuid": "'00000000-0000-0000-0000-000000000001'",
        "int4[]": "'{1,NULL,3}'",
        "inet": "'10.0.0.1/8'",
    }
    names = ", ".join(f'"{name} value" {name}' for name in columns)
    with session(dsn) as sql:
        sql.execute(f"create table t (id int primary key, {names})")
        sql.execute(f"insert into t select 1, {', '.join(columns.values())}".replace("%", "%%"))
        catch_up(objects, settings(dsn))
        sql.execute(
            "insert into t select 2, " + ", ".join(f't."{name} value"' for name in columns) + " from t"
        )
    catch_up(objects, settings(dsn))
    snapshot, streamed = (event["after"] for event in events(objects, "public.t"))
    assert snapshot.pop("id") == 1
    assert streamed.pop("id") == 2
    assert snapshot == streamed
    assert snapshot["text value"] == 'tab\t back\\ \\N line\n quote" é \u2028'
    assert snapshot["float8 value"] == 0.1 + 0.2
    assert snapshot["numeric value"] == "12345678901234567890.5000"
    assert snapshot["timestamptz value"] == "2024-02-29 18:29:59.123456+00"


def test_a_publication_with_column_lists_and_row_filters_means_the_same_in_snapshot_and_stream(
    dsn: str,
) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, secret text, v int)")
        sql.execute("create publication pub for table t (id, v) where (v > 10)")
        sql.execute("insert into t values (1, 'a', 5), (2, 'b', 50)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (3, 'c', 5), (4, 'd', 60)")
    catch_up(objects, settings(dsn))
    assert [event["after"] for event in events(objects, "public.t")] == [
        {"id": 2, "v": 50},
        {"id": 4, "v": 60},
    ]


def test_a_column_that_is_added_later_is_in_the_rows_from_then_on(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t values (1)")
        sql.execute("alter table t add v text default 'd'")
        sql.execute("insert into t values (2)")
        sql.execute("create table later (id int primary key)")
        sql.execute("insert into later values (7)")
    catch_up(objects, settings(dsn))
    assert [event["after"] for event in events(objects, "public.t")] == [{"id": 1}, {"id": 2, "v": "d"}]
    assert [event["after"] for event in events(objects, "public.later")] == [{"id": 7}]


def test_a_table_without_a_key_is_stored_in_order_in_one_partition(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create table t (v int)")
        sql.execute("alter table t replica identity nothing")
        catch_up(objects, settings(dsn))
        sql.execute("insert into t select generate_series(1, 20)")
    catch_up(objects, settings(dsn))
    found = events(objects, "public.t")
    assert [event["after"]["v"] for event in found] == list(range(1, 21))
    assert {(event["key"], event["partition"]) for event in found} == {(None, 0)}


def test_F13_an_idle_slot_follows_the_end_of_wal_although_nothing_of_ours_is_written(dsn: str) -> None:
    objects = MemoryStore()
    config = settings(dsn, tables=("public.t",))
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("create table other (id int)")
        catch_up(objects, config)
        sql.execute("insert into other select generate_series(1, 5000)")
        sql.execute("select pg_current_wal_lsn() - '0/0'")
        (end,) = sql.fetchone()
    catch_up(objects, config)
    with connect(dsn) as connection:
        assert confirmed_of(connection, config.slot) >= end


def test_F02_the_slot_is_never_confirmed_past_what_the_store_holds(dsn: str) -> None:
    """The object store goes away in mid-load: changes keep coming, the slot stands still; then it catches up."""
    faulty, config = FaultyStore(MemoryStore(), seed=3), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v int)")
        sql.execute("insert into t select generate_series(-20, 0), 0")  # both partitions are open
        with running(faulty, config) as ingest:
            wait_confirmed(ingest, dsn)
            rule = faulty.down()
            with connect(dsn) as connection:
                sql.execute("insert into t values (1, 1)")
                sql.execute("select pg_current_wal_lsn() - '0/0'")
                (end_of_first,) = sql.fetchone()
                for number in range(2, 50):
                    sql.execute("insert into t values (%s, 1)", (number,))
                wait_until(lambda: ingest.status().unstored_bytes > 5_000)
                assert confirmed_of(connection, config.slot) < end_of_first
                assert ingest.status().held_by is not None
            faulty.remove(rule)
            wait_confirmed(ingest, dsn)
    assert sorted(event["after"]["id"] for event in events(faulty, "public.t")) == list(range(-20, 50))


def test_F02_nothing_is_said_to_be_confirmed_before_the_slot_is_there_to_keep_it(dsn: str) -> None:
    """Every row of the snapshot is stored, but the slot has no lasting name yet: a crash now would start over."""
    gated, config = GatedStore(MemoryStore()), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 20)")

    def rows() -> list[int]:
        with suppress(UnknownTopic):
            return sorted(event["after"]["id"] for event in events(gated, "public.t"))
        return []

    # The journal is written to before the first row, too: the note that is meant comes after the last one.
    with gated.hold("put", prefix="topics/_ingest.") as gate, running(gated, config, lanes=0) as ingest:
        wait_until(lambda: (gate.held and len(rows()) == 20) or gate.release())
        stored = rows()
        with connect(dsn) as connection:
            said, slot = ingest.status().confirmed, slot_state(connection, config.slot)
            gate.open()
            assert (stored, said, slot) == (list(range(1, 21)), 0, None)
            wait_confirmed(ingest, dsn)
            assert slot_state(connection, config.slot) is not None


def test_it_reconnects_by_itself_when_the_server_ends_the_connection(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        with running(objects, config) as ingest:
            for number in range(5):
                sql.execute("insert into t select generate_series(%s, %s)", (number * 100, number * 100 + 99))
                sql.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots "
                    "where slot_name = %s and active_pid is not null",
                    (config.slot,),
                )
            wait_confirmed(ingest, dsn)
    assert sorted(event["after"]["id"] for event in events(objects, "public.t")) == list(range(500))


def test_a_snapshot_that_was_cut_off_starts_over_and_a_fold_stays_right(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the first attempt that are gone by the second one do not come back: a truncate stands between
    them.
    """
    objects, config = MemoryStore(), settings(dsn, chunk_bytes=2_000)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute("insert into t select i, repeat('x', 100) from generate_series(1, 2000) i")

        with pytest.raises(Interrupted):
            with PostgresIngest(lambda: logstore.open(objects), config) as ingest:
                take = ingest._take_snapshot

                def interrupted(stream: Any, collector: Any, origin: Any) -> None:
                    whole, collector.commit = collector.commit, _interrupt
                    try:
                        take(stream, collector, origin)
                    finally:
                        collector.commit = whole

                monkeypatch.setattr(ingest, "_take_snapshot", interrupted)
                ingest.run()
        partial = events(objects, "public.t")
        assert partial
        assert {event["op"] for event in partial} == {"r"}
        with connect(dsn) as connection:
            assert slot_state(connection, config.slot) is None  # nothing is left that would hold WAL
        sql.execute("delete from t where id <= 500")
    catch_up(objects, config)
    assert same_rows(objects, dsn, "public.t")
    assert [event["op"] for event in events(objects, "public.t")].count("t") == 2


class Interrupted(Exception):
    pass


def _interrupt(*_: object, **__: object) -> None:
    raise Interrupted


def test_W05_a_second_ingester_on_the_same_partitions_fences_the_first_one_for_good(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    ended: list[BaseException] = []
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 50)")
        with PostgresIngest(lambda: logstore.open(objects), config) as ingest:
            thread = threading.Thread(target=_run, args=(ingest, ended))
            thread.start()
            wait_confirmed(ingest, dsn)
            with logstore.open(objects) as thief:
                for partition in range(2):
                    thief.topic("public.t").partition(partition).open_writer()
            sql.execute("insert into t select generate_series(51, 100)")
            thread.join(PATIENCE_S)
        assert [type(error) for error in ended] == [Fenced]
    catch_up(objects, config)
    assert sorted(event["after"]["id"] for event in events(objects, "public.t")) == list(range(1, 101))


def test_bad_settings_say_what_is_wrong(dsn: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters"):
        PostgresSettings(dsn=dsn, publication="p", slot="Not Good")
    with pytest.raises(ValueError, match=r"schema\.table"):
        PostgresSettings(dsn=dsn, publication="p", tables=("t",))
    assert dsn not in repr(PostgresSettings(dsn=dsn, publication="p"))
    with closing(
        PostgresIngest(lambda: logstore.open(MemoryStore()), settings("host=127.0.0.1 port=1 dbname=x"))
    ) as no:
        with pytest.raises(psycopg.OperationalError):
            no.run()


def test_a_slot_name_that_stands_for_something_else_is_refused(dsn: str, postgres: PostgresServer) -> None:
    config = settings(dsn)
    with session(dsn) as sql:
        sql.execute("select pg_create_physical_replication_slot(%s)", (config.slot,))
    with pytest.raises(UnsupportedStore, match="plugin physical"):
        catch_up(MemoryStore(), config)
    with session(dsn) as sql:
        sql.execute("select pg_drop_replication_slot(%s)", (config.slot,))
    with session(postgres.dsn()) as elsewhere:
        elsewhere.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (config.slot,))
        try:
            with pytest.raises(UnsupportedStore, match="database postgres"):
                catch_up(MemoryStore(), config)
        finally:
            elsewhere.execute("select pg_drop_replication_slot(%s)", (config.slot,))


def test_a_slot_that_was_filled_into_another_store_is_refused(dsn: str) -> None:
    """It would go on where the other store is, and nobody would see the hole."""
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t values (1)")
    config, right, wrong = settings(dsn), MemoryStore(), MemoryStore()
    catch_up(right, config)
    with pytest.raises(UnsupportedStore, match="not filled into this store"):
        catch_up(wrong, config)
    with logstore.open(wrong) as store:
        Journal(store, config.slot).note(origin=Origin("7", "elsewhere")._asdict())
    with pytest.raises(UnsupportedStore, match="come from Origin"):
        catch_up(wrong, config)
    catch_up(right, config)


def test_a_stop_in_the_middle_of_a_snapshot_is_noticed_and_leaves_no_slot(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 300000)")
    with running(objects, config) as ingest:
        wait_until(lambda: ingest.status().unstored_bytes > 0)
        assert ingest.status().phase.startswith(
            "snapshot"
        )  # it may be opening a partition just now, and says so
    with connect(dsn) as connection:
        assert slot_state(connection, config.slot) is None


def test_a_stop_is_noticed_while_the_slot_waits_for_transactions_of_others(dsn: str) -> None:
    """The server creates a slot once all that were open have ended, and says nothing until then."""
    with session(dsn) as sql, session(dsn) as other:
        sql.execute("create table t (id int primary key)")
        other.execute("begin; insert into t values (1)")
        with PostgresIngest(lambda: logstore.open(MemoryStore()), settings(dsn)) as ingest:
            running = threading.Thread(target=ingest.run)
            running.start()
            waits = (
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and query like 'CREATE_REPLICATION_SLOT%' and wait_event is not null and state = 'active'"
            )
            wait_until(lambda: sql.execute(waits).fetchone() == (1,))
            ingest.stop()
            running.join(PATIENCE_S)
            assert not running.is_alive()
        sql.execute("select count(*) from pg_replication_slots where database = current_database()")
        assert sql.fetchone() == (0,)


def test_a_row_larger_than_a_batch_stops_it_and_nothing_is_confirmed_past_it(dsn: str) -> None:
    """Waiting cannot help: it says so, the slot keeps the row, and a store with room for it goes on from
    there.
    """
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key, v text)")
        catch_up(objects, config)
        sql.execute("insert into t values (1, 'small')")
        sql.execute("insert into t select 2, string_agg(md5(i::text), '') from generate_series(1, 50000) i")
        sql.execute("insert into t values (3, 'small')")
    with pytest.raises(RecordTooLarge):
        catch_up(objects, config)
    catch_up(objects, config, max_batch_bytes=4 << 20)
    assert [event["after"]["id"] for event in events(objects, "public.t")] == [1, 2, 3]
    assert same_rows(objects, dsn, "public.t")


def test_the_options_of_the_dsn_are_kept_and_a_roles_limits_do_not_bind(dsn: str) -> None:
    objects = MemoryStore()
    with session(dsn) as sql:
        sql.execute("create schema shop")
        sql.execute("create table shop.t (id int primary key, at timestamptz)")
        sql.execute("insert into shop.t select i, '2020-01-01 12:00+02' from generate_series(1, 20000) i")
    odd = f"{dsn} options='-c search_path=shop -c statement_timeout=1 -c TimeZone=Asia/Tokyo -c DateStyle=German'"
    catch_up(objects, settings(odd, slot="options"))
    found = events(objects, "shop.t")
    assert len(found) == 20_000
    assert {event["after"]["at"] for event in found} == {"2020-01-01 10:00:00+00"}


def test_the_server_is_restarted_under_load_and_it_goes_on(dsn: str, postgres: PostgresServer) -> None:
    """A crash of the server and its recovery, seen from the ingester: retries, then goes on where it was."""
    objects, config = MemoryStore(), settings(dsn, retry_max=0.2)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 100)")
    with running(objects, config) as ingest:
        wait_confirmed(ingest, dsn)
        with session(dsn) as sql:
            sql.execute("insert into t select generate_series(101, 5000)")
        postgres.stop(signal.SIGQUIT)
        postgres.start()
        with session(dsn) as sql:
            sql.execute("insert into t select generate_series(5001, 5100)")
        wait_confirmed(ingest, dsn)
    assert sorted(event["after"]["id"] for event in events(objects, "public.t")) == list(range(1, 5101))
