"""A PostgreSQL source whose past is not what it seems: more partitions, a topic or a publication that went, trimmed records,
a store that hangs while a topic is opened. Right rows, or an error that says what to do; never a hole without a word."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import logstore
from logstore.errors import UnsupportedStore
from logstore.ingest.postgres.slot import connect
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.ingest.pg_server import PostgresServer
from tests.support.ingest.pg_story import catch_up, events, same_rows, session, settings
from tests.support.ingest.pg_waits import confirmed_of, running, wait_confirmed, wait_until
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.postgres


def ids(objects: ObjectStore, topic: str = "public.t") -> list[int]:
    return sorted(event["after"]["id"] for event in events(objects, topic) if event["op"] != "t")


@pytest.mark.parametrize("stuck", [0, 1])
def test_F14_partitions_added_between_a_crash_and_the_replay_lose_and_double_nothing(
    dsn: str, stuck: int
) -> None:
    faulty, config = FaultyStore(MemoryStore(), seed=1), settings(dsn, stop_timeout=0.0)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t select generate_series(1, 40)")
        catch_up(faulty, config)
        with logstore.open(faulty, writer="read_only") as store:
            incarnation = store.topic("public.t")._internal.descriptor.incarnation
        with running(faulty, config, lanes=0) as ingest:  # of a lane, all have their share or none has
            sql.execute("insert into t values (41), (42), (43), (44), (45), (46), (47)")  # both are open
            wait_confirmed(ingest, dsn)
            before = len(ids(faulty))
            rule = faulty.fail("put", prefix=f"topics/public.t/{incarnation}/{stuck}/", times=None)
            sql.execute("insert into t select generate_series(101, 180)")
            wait_until(lambda: len(ids(faulty)) > before)
        faulty.remove(rule)
        assert before < len(ids(faulty)) < before + 80, "one partition has its share"
        with logstore.open(faulty) as store:
            store.add_partitions("public.t", 4)
        catch_up(faulty, config)
        assert ids(faulty) == [*range(1, 48), *range(101, 181)]
        sql.execute("insert into t select generate_series(201, 280)")
    catch_up(faulty, config)
    assert ids(faulty) == [*range(1, 48), *range(101, 181), *range(201, 281)]
    assert {event["partition"] for event in events(faulty, "public.t")} == {0, 1, 2, 3}


def test_F14_a_topic_that_was_deleted_is_said_at_every_start_until_it_starts_over(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t values (1)")
        catch_up(objects, config)
        with logstore.open(objects) as store:
            store.delete_topic("public.t")
        sql.execute("insert into t values (2)")
        for _ in range(2):  # a supervisor starts it again
            with pytest.raises(UnsupportedStore, match=r"'public\.t' was deleted.*drop the slot"):
                catch_up(objects, config)
        _drop_slot(sql, config.slot)
        catch_up(objects, config)
    assert ids(objects) == [1, 2]


def _drop_slot(sql: Any, slot: str) -> None:
    """The server may not have noticed yet that our connection has ended."""
    sql.execute(
        "select pg_terminate_backend(active_pid, 60000) from pg_replication_slots where slot_name = %s and active",
        (slot,),
    )
    sql.execute("select pg_drop_replication_slot(%s)", (slot,))


@pytest.mark.parametrize("is_running", [True, False])
def test_F14_a_publication_that_was_dropped_and_made_again_is_said(dsn: str, is_running: bool) -> None:
    """From version 18 on the server passes over what was committed in between, and says so in its own log alone."""
    objects, config = MemoryStore(), settings(dsn, status_interval=0.05)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        sql.execute("insert into t values (1)")

        def replace_it() -> None:
            sql.execute("drop publication pub")
            sql.execute("insert into t values (2)")
            sql.execute("create publication pub for all tables")
            sql.execute("insert into t values (3)")

        catch_up(objects, config)
        if is_running:
            ingest = running(objects, config)
            ingest.thread.start()
            try:
                wait_until(lambda: ingest.ingest.status().phase == "streaming")
                replace_it()
                ingest.thread.join(PATIENCE_S)
                assert not ingest.thread.is_alive()
            finally:
                ingest.ingest.stop()
                ingest.thread.join(PATIENCE_S)
                ingest.ingest.close()
            (error,) = ingest.ended
            # Until 17 the server ends the stream itself, at the change that it cannot judge.
            assert isinstance(error, UnsupportedStore) or "publication" in str(error)
        else:
            replace_it()
        with pytest.raises(UnsupportedStore, match=r"publication that slot .*Drop the slot"):
            catch_up(objects, config)
        _drop_slot(sql, config.slot)
    catch_up(objects, config)
    assert same_rows(objects, dsn, "public.t")


def trim(objects: ObjectStore, topic: str) -> None:
    with logstore.open(objects) as store:
        for log in map(store.topic(topic).partition, range(2)):
            log.delete_before(log.durable_high_watermark)


def confirmed(dsn: str, slot: str) -> int:
    with connect(dsn) as connection:
        return confirmed_of(connection, slot)


def test_F14_after_a_trim_to_the_end_and_a_crash_of_the_server_no_row_comes_twice(
    dsn: str, postgres: PostgresServer
) -> None:
    """The crash takes the slot back to what the server last wrote down of it: that is not with every confirmation, and
    happens by itself every few seconds. Hence a few attempts."""
    objects, config = MemoryStore(), settings(dsn)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
    catch_up(objects, config)
    catch_up(objects, config)
    for attempt in range(10):
        with session(dsn) as sql:
            sql.execute("insert into t select generate_series(%s, %s)", (attempt * 20, attempt * 20 + 19))
        catch_up(objects, config)
        assert ids(objects) == list(range(attempt * 20, attempt * 20 + 20))
        trim(objects, "public.t")
        before = confirmed(dsn, config.slot)
        postgres.stop(signal.SIGQUIT)
        postgres.start()
        went_back = confirmed(dsn, config.slot) < before
        catch_up(objects, config)
        assert ids(objects) == []
        if went_back:
            return
    raise AssertionError("the slot never went back")


def test_F10_a_store_that_hangs_while_a_topic_is_opened_is_said_and_pings_and_a_stop_are_noticed(
    dsn: str,
) -> None:
    gated, config = GatedStore(MemoryStore()), settings(dsn, status_interval=0.05)
    reply = (
        "select r.reply_time from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid "
        "where s.slot_name = %s"
    )
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        with gated.hold("put", prefix="catalog/public.late") as gate:
            with running(gated, config) as ingest:
                wait_confirmed(ingest, dsn)
                sql.execute("create table late (id int primary key); insert into late values (1)")
                gate.wait_held(PATIENCE_S)
                assert ingest.status().phase == "streaming, opening public.late"
                for _ in range(2):
                    before = sql.execute(reply, (config.slot,)).fetchone()
                    wait_until(lambda: sql.execute(reply, (config.slot,)).fetchone() != before)  # noqa: B023
            gate.open()
    catch_up(gated, config)
    assert ids(gated, "public.late") == [1]


def test_W05_an_ingester_that_waits_for_the_slot_fences_nobody(dsn: str) -> None:
    objects, config = MemoryStore(), settings(dsn, retry_max=0.05)
    with session(dsn) as sql:
        sql.execute("create table t (id int primary key)")
        with running(objects, config) as first:
            wait_confirmed(first, dsn)
            with running(objects, config) as second:
                wait_until(lambda: second.status().phase == "retrying after ObjectInUse")
                sql.execute("insert into t select generate_series(1, 20)")
                wait_confirmed(first, dsn)
    assert ids(objects) == list(range(1, 21))
