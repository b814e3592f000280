"""The replication slot: what the server keeps for us, and what it must be asked first.

The slot exists if and only if the initial snapshot is stored. A snapshot is read under a *temporary* slot,
which the server drops by itself when the connection ends, however it ends; when every row is durable the
temporary slot is copied under its lasting name. So there is no state of ours about "how far the snapshot
was" to be kept or to be wrong, and a crash leaves nothing behind that holds WAL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from logstore.errors import UnsupportedStore
from logstore.ingest.postgres.pgoutput import format_lsn, parse_lsn
from logstore.ingest.postgres.relation import one_topic
from logstore.ingest.postgres.stream import Stream
from logstore.ingest.postgres.values import SESSION_SETTINGS

_NO_LIMITS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "row_security": "off",
}
"""A role's own limits are meant for queries, not for reading a whole table or following a stream. Policies on rows would
leave rows out of a snapshot without a word, while the stream has them all: like this they are an error."""
_OPTIONS = " ".join(f"-c {name}={value}" for name, value in {**SESSION_SETTINGS, **_NO_LIMITS}.items())
_TRANSACTION_TIMEOUT_SINCE = 17_00_00
_OLDEST_SERVER = 15_00_00
"""The publication's column lists and row filters, which a snapshot has to apply too, are in the catalog since
15.
"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the server says of a slot."""

    confirmed: int
    current: int
    lost: bool
    is_free: bool
    """Nobody streams from it: what is confirmed stays, until somebody does."""

    @property
    def lag_bytes(self) -> int:
        return max(0, self.current - self.confirmed)


def _connected(dsn: str, **kind: str) -> psycopg.Connection[Any]:
    """Autocommit, the values of `%s` put in by us (the commands of replication take no parameters), and without the limits
    of a role: after the DSN's own options come ours, which win."""
    options = f"{conninfo_to_dict(dsn).get('options') or ''} {_OPTIONS}".strip()
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,
        cursor_factory=psycopg.ClientCursor,
        options=options,
        **kind,  # type: ignore[arg-type]
    )
    try:
        # An older one may not be asked for it.
        if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute("set transaction_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """An ordinary connection that prints values as the stream does; autocommit."""
    connection = _connected(dsn)
    try:
        version = connection.info.server_version
        if version < _OLDEST_SERVER:
            raise UnsupportedStore(f"PostgreSQL {version // 10_000} is too old to be read: use 15 or newer")
        yield connection
    finally:
        connection.close()


def connect_stream(dsn: str, slot: str) -> Stream:
    """A connection that replicates."""
    return Stream(_connected(dsn, replication="database"), slot)


def slot_state(connection: Any, name: str) -> SlotState | None:
    """None if there is no such slot. Raises if the name stands for something that we cannot follow."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select confirmed_flush_lsn::text, pg_current_wal_lsn()::text, coalesce(wal_status, ''), "
            "coalesce(plugin, 'physical'), coalesce(database, 'none'), current_database(), not active "
            "from pg_replication_slots where slot_name = %s",
            (name,),
        )
        row = cursor.fetchone()
    if row is None:
        return None
    confirmed, current, wal_status, plugin, database, ours, is_free = row
    if (plugin, database) != ("pgoutput", ours):
        raise UnsupportedStore(
            f"slot {name!r} is taken (plugin {plugin}, database {database}): choose another name for this one"
        )
    return SlotState(parse_lsn(confirmed or "0/0"), parse_lsn(current), wal_status == "lost", is_free)


def end_of_wal(connection: psycopg.Connection[Any]) -> int:
    """Everything committed so far comes before this."""
    row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
    assert row is not None, "it always has an answer"
    return parse_lsn(row[0])


def check_server(connection: Any) -> None:
    """Raises if the server does not do logical replication: retrying would not help, unless it is a standby and about to
    be promoted, which is the server's trouble and not what was asked of it."""
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('wal_level'), pg_is_in_recovery()")
        level, is_standby = cursor.fetchone()
    if is_standby:
        raise psycopg.OperationalError(
            "the server is a standby, where a slot may wait without end to be created: connect to the primary "
            "(target_session_attrs=primary finds it among several hosts)"
        )
    if level != "logical":
        raise UnsupportedStore(
            f"the server has wal_level = {level}, which does not hold what a slot needs: set wal_level = logical and "
            f"restart it"
        )


def check_may_replicate(connection: Any, refused: Exception) -> None:
    """A replication connection was refused. Raises if that is because the user has no right to it.

    libpq gives a refusal no code, so its text is looked at, and the role only then: some managed servers let users
    replicate in ways of their own.
    """
    if not any(name in str(refused).lower() for name in ("wal sender", "walsender")):
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "select rolname from pg_roles where rolname = current_user and not (rolreplication or rolsuper)"
        )
        row = cursor.fetchone()
    if row is not None:
        raise UnsupportedStore(
            f"user {row[0]!r} may not replicate: alter role {row[0]} replication. The server said: {str(refused).strip()}"
        ) from refused


def publication_oid(connection: psycopg.Connection[Any], name: str) -> int | None:
    """Which publication has that name now: one that is dropped and made again is another one."""
    row = connection.execute("select oid::bigint from pg_publication where pubname = %s", (name,)).fetchone()
    return None if row is None else int(row[0])


def ensure_publication(connection: Any, name: str, tables: list[str] | None, slot: str) -> None:
    """Create the publication if it is missing: of `tables` (`schema.table`), or of all of them.

    Raises if the slot exists already: the publication was there when it was made, and what was committed since it went
    would be left out without a word.
    """
    if publication_oid(connection, name) is not None:
        return
    if slot_state(connection, slot) is not None:
        raise UnsupportedStore(
            f"publication {name!r} is gone, and what was committed since cannot be read from slot {slot!r}: create it "
            f"again, and drop the slot to start over with a new snapshot"
        )
    if tables is None:
        what: sql.Composable = sql.SQL("all tables")
    else:
        named = [sql.Identifier(*table.split(".", 1)) for table in tables]
        what = sql.SQL("table {}").format(sql.SQL(", ").join(named))
    connection.execute(sql.SQL("create publication {} for {}").format(sql.Identifier(name), what))


def check_topics(connection: Any, publication: str) -> None:
    """Raises `InvalidTopicName` if two of the publication's tables have one topic: `a."b.c"` and `"a.b".c`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select array_agg(array[schemaname::text, tablename::text] order by schemaname) from pg_publication_tables "
            "where pubname = %s group by schemaname || '.' || tablename having count(*) > 1 limit 1",
            (publication,),
        )
        row = cursor.fetchone()
    if row is not None:
        (first, second, *_) = row[0]
        raise one_topic((first[0], first[1]), (second[0], second[1]))


def lost_slot(name: str, confirmed: int) -> UnsupportedStore:
    return UnsupportedStore(
        f"slot {name!r} has lost WAL that was not confirmed (it was at {format_lsn(confirmed)}): "
        f"max_slot_wal_keep_size was too small for the lag. Drop the slot to start over with a new snapshot"
    )
