"""What the PostgreSQL tests share: statements in, row states out, and the proof that topics and tables are
equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

import logstore
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from logstore.ingest.postgres.values import UNAVAILABLE
from tests.support.ingest.story import position_of


@contextmanager
def session(dsn: str) -> Iterator[Any]:
    """A cursor; each statement is a transaction of its own unless the test begins one."""
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        cursor_factory=psycopg.ClientCursor,
        options="-c TimeZone=UTC -c extra_float_digits=3",
    )
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def settings(dsn: str, **changes: Any) -> PostgresSettings:
    given = {
        "dsn": dsn,
        "publication": "pub",
        "slot": "s" + dsn.split("dbname=")[1].split()[0],
        "partitions": 2,
    }
    return PostgresSettings(**{**given, **changes})


def catch_up(objects: Any, config: PostgresSettings, **store_settings: Any) -> PostgresIngest:
    """Run an ingester until everything committed so far is stored and confirmed."""
    with PostgresIngest(lambda: logstore.open(objects, **store_settings), config) as ingest:
        ingest.run(until_caught_up=True)
        return ingest


def events(objects: Any, topic: str) -> list[dict[str, Any]]:
    """The topic's values in source order, decoded; each with its key, position and transaction."""
    found = []
    with logstore.open(objects, writer="read_only") as store:
        log = store.topic(topic)
        for partition in range(log.partitions):
            for record in log.partition(partition).records(visibility="durable"):
                headers = dict(record.headers)
                event = {"value": None} if record.value is None else json.loads(record.value)
                event["key"] = None if record.key is None else json.loads(record.key)
                event["position"] = position_of(record)
                event["end"] = "source-end" in headers
                event["partition"] = partition
                found.append(event)
    return sorted(found, key=lambda event: (event["position"], event["partition"]))


def fold(changes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows that are left when the events are applied in order, by key."""
    rows: dict[str, dict[str, Any]] = {}
    for event in changes:
        if "op" not in event:
            continue
        key = json.dumps(event["key"])
        if event["op"] == "t":
            for other in [name for name, row in rows.items() if row["_partition"] == event["partition"]]:
                del rows[other]
        elif event["op"] == "d":
            rows.pop(key, None)
        else:
            known = rows.get(key, {})
            row = {
                name: known.get(name) if value == UNAVAILABLE else value
                for name, value in event["after"].items()
            }
            rows[key] = {**row, "_partition": event["partition"]}
    return rows


def table_rows(dsn: str, table: str, key: str = "id") -> dict[str, dict[str, Any]]:
    """The table as it is, in the shape of `fold`."""
    with session(dsn) as cursor:
        cursor.execute(f"select * from {table}")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {json.dumps({key: row[key]}): row for row in rows}


def same_rows(objects: Any, dsn: str, table: str) -> bool:
    """Are the topic, folded, and the table equal? Compared as text: JSON numbers and strings are both exact."""
    rows = fold(events(objects, table))
    folded = {
        key: {name: text(value) for name, value in row.items() if name != "_partition"}
        for key, row in rows.items()
    }
    actual = {
        key: {name: text(value) for name, value in row.items()} for key, row in table_rows(dsn, table).items()
    }
    return folded == actual


def text(value: Any) -> str | None:
    return None if value is None else str(value)
