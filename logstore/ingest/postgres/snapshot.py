"""The initial snapshot: every published row as it was at the slot's consistent point, no gap and no overlap.

Rows come by COPY in the snapshot that the slot exported, so the stream begins with exactly the first change
that the snapshot does not have. Column lists and row filters of the publication apply to both. One chunk of
rows is in memory at a time, whatever the table's size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from psycopg import sql

from logstore.ingest.postgres.pgoutput import Begin, Change
from logstore.ingest.postgres.relation import Column, Relation
from logstore.ingest.postgres.slot import connect

CHUNK_ROWS = 1_000

_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)

_TABLES = """
    select p.schemaname, p.tablename, p.attnames, p.rowfilter, c.oid, c.relreplident, c.relkind = 'p'
    from pg_publication_tables p
    join pg_namespace n on n.nspname = p.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
    where p.pubname = %s order by 1, 2
"""
_COLUMNS = """
    select a.attname, a.atttypid::bigint, case %(identity)s when 'f' then true when 'n' then false else
    coalesce(a.attnum = any(i.indkey[0:i.indnkeyatts - 1]), false) end from pg_attribute a left join pg_index
    i on i.indrelid = a.attrelid and case %(identity)s when 'i' then i.indisreplident else i.indisprimary and
    i.indimmediate end where a.attrelid = %(oid)s and a.attname = any(%(names)s::text[]) order by a.attnum
"""


class Table(NamedTuple):
    """A published table, as the stream would describe it. `in_parts`: its rows lie in partitions, and the stream tells of
    them as of its own. Otherwise the rows of tables that inherit from it are theirs alone."""

    relation: Relation
    row_filter: str | None
    in_parts: bool


@contextmanager
def snapshot_session(dsn: str, snapshot: str) -> Iterator[Any]:
    """A connection that sees the database as the slot's consistent point does."""
    with connect(dsn) as connection:
        with connection.cursor() as cursor:
            cursor.execute("begin isolation level repeatable read read only")
            cursor.execute("set transaction snapshot %s", (snapshot,))
        yield connection


def published_tables(connection: Any, publication: str, keys: dict[str, list[str]]) -> list[Table]:
    """The publication's tables, with the columns that it publishes."""
    tables = []
    with connection.cursor() as cursor:
        cursor.execute(_TABLES, (publication,))
        for schema, table, names, row_filter, oid, identity, in_parts in cursor.fetchall():
            cursor.execute(_COLUMNS, {"identity": identity, "oid": oid, "names": names})
            columns = [Column(*row) for row in cursor.fetchall()]
            relation = Relation(schema, table, columns, keys.get(f"{schema}.{table}"))
            tables.append(Table(relation, row_filter, in_parts))
    return tables


def copy_rows(
    connection: Any, table: Table, begin: Begin, lsn: int, take: Callable[[list[Change]], None]
) -> int:
    """Read a table; `take` gets its rows in chunks. Returns how many there were."""
    relation = table.relation
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
    query = sql.SQL("select {} from {} {}").format(
        columns, sql.SQL("" if table.in_parts else "only"), sql.Identifier(relation.schema, relation.table)
    )
    if table.row_filter is not None:
        query += sql.SQL(" where " + table.row_filter)
    rows = _Rows(relation, begin, lsn, take)
    with connection.cursor() as cursor, cursor.copy(sql.SQL("copy ({}) to stdout").format(query)) as lines:
        for line in lines:
            rows.write(bytes(line))
    rows.finish()
    return rows.count


class _Rows:
    """What COPY sends, a message for each row: lines in, chunks of changes out."""

    def __init__(
        self, relation: Relation, begin: Begin, lsn: int, take: Callable[[list[Change]], None]
    ) -> None:
        self.count = 0
        self._relation = relation
        self._begin = begin
        self._lsn = lsn
        self._take = take
        self._chunk: list[Change] = []

    def write(self, line: bytes) -> None:
        fields = [parse_field(field) for field in line[:-1].split(b"\t")] if self._relation.columns else []
        self._chunk.append(Change(self._begin, self._lsn, self._relation, "r", None, fields))
        if len(self._chunk) >= CHUNK_ROWS:
            self.finish()

    def finish(self) -> None:
        if self._chunk:
            self.count += len(self._chunk)
            self._take(self._chunk)
            self._chunk = []


def parse_field(field: bytes) -> bytes | None:
    """A field of COPY's text format: `\\N` is null, and a backslash quotes what would end a field or a line."""
    if b"\\" not in field:
        return field
    if field == b"\\N":
        return None
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), field)
