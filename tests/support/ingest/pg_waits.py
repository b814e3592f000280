"""An ingest that runs beside a test, and waiting for what it confirms."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

import logstore
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.ingest.postgres.slot import slot_state
from logstore.objects import ObjectStore
from tests.support.ingest.pg_story import session
from tests.support.patience import PATIENCE_S


class running:
    """An ingester on a thread of its own, stopped in order at the end."""

    def __init__(self, objects: ObjectStore, config: PostgresSettings, lanes: int = 1) -> None:
        self.ingest = PostgresIngest(lambda: logstore.open(objects, lanes=lanes), config)
        self.ended: list[BaseException] = []
        self.thread = threading.Thread(target=_run, args=(self.ingest, self.ended))

    def __enter__(self) -> PostgresIngest:
        self.thread.start()
        return self.ingest

    def __exit__(self, *_: object) -> None:
        self.ingest.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.ingest.close()
        assert self.ended == []


def _run(ingest: PostgresIngest, ended: list[BaseException]) -> None:
    try:
        ingest.run()
    except BaseException as error:
        ended.append(error)


def wait_until(done: Callable[[], object]) -> None:
    """Look until it is so: what is waited for happens in another process, which cannot tell us."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if done():
            return
        pause.wait(0.02)
    raise AssertionError("it never happened")


def wait_confirmed(ingest: PostgresIngest, dsn: str) -> None:
    """Until everything that is committed now is confirmed to the server."""
    with session(dsn) as sql:
        sql.execute("select pg_current_wal_lsn() - '0/0'")
        (end,) = sql.fetchone()
    wait_until(lambda: ingest.status().confirmed >= end)


def confirmed_of(connection: psycopg.Connection[Any], slot: str) -> int:
    """What the slot, which is there, says was confirmed to it."""
    state = slot_state(connection, slot)
    assert state is not None
    return state.confirmed
