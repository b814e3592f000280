"""The messages of PostgreSQL's `pgoutput` plugin, protocol version 1, decoded.

Version 1 sends a transaction after its commit, whole and in commit order: the position of each is known at
its beginning, which is what makes replay exact. (The server spills large ones to its own disk.) Values are
asked for as text. A message that does not parse to its last byte raises: nothing is guessed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from logstore.errors import InvalidRecord
from logstore.ingest.postgres.relation import UNCHANGED, Column, Relation, Row

PROTOCOL_VERSION = "1"
SNAPSHOT_XID = 0
"""The transaction id of rows that a snapshot read: the server gives it to nobody."""
EPOCH_MS = 946_684_800_000  # 2000-01-01, where PostgreSQL's clock starts

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_COLUMN_TAIL = struct.Struct(">Ii")
_NULL, _TEXT, _TOAST = b"ntu"


class Begin(NamedTuple):
    """`final_lsn` is where the commit stands in the WAL: rises from transaction to transaction."""

    final_lsn: int
    commit_ms: int
    xid: int


class Commit(NamedTuple):
    """`end_lsn` is the first byte after the transaction: what the slot may be confirmed to."""

    commit_lsn: int
    end_lsn: int


class Change(NamedTuple):
    """One row (`c`reate, `u`pdate, `d`elete, `r`ead by a snapshot) or one table (`t`runcate) in a
    transaction.

    `before` is the whole old row, or only its identity when `before_is_identity`; None when the stream has
    neither.
    """

    begin: Begin
    lsn: int
    relation: Relation
    op: str
    before: Row | None = None
    after: Row | None = None
    before_is_identity: bool = False


Message = Begin | Commit | list[Change]


class Decoder:
    """Messages in, in stream order. Keeps the tables described so far, and the transaction that is open.

    `keys` names the identifying columns of tables (`schema.table`) for which the replica identity is not
    meant.
    """

    def __init__(self, keys: dict[str, list[str]] | None = None) -> None:
        self._keys = keys or {}
        self._relations: dict[int, Relation] = {}
        self._begin: Begin | None = None

    def decode(self, data: bytes, lsn: int) -> Message | None:
        """None for messages that say nothing about data (origin, type, relation)."""
        try:
            return self._decode(data, lsn)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise InvalidRecord(f"pgoutput message {data[:1]!r} at {format_lsn(lsn)}: {error}") from error

    def _decode(self, data: bytes, lsn: int) -> Message | None:
        kind = data[:1]
        if kind == b"I":
            relation = self._relation(data)
            _marker(data, 5, b"N")
            row, at = _row(data, 6, relation)
            _check_end(data, at, lsn)
            return [Change(self._opened(lsn), lsn, relation, "c", None, row)]
        if kind == b"U":
            return [self._update(data, lsn)]
        if kind == b"D":
            relation = self._relation(data)
            marker = _marker(data, 5, b"KO")
            row, at = _row(data, 6, relation)
            _check_end(data, at, lsn)
            return [Change(self._opened(lsn), lsn, relation, "d", row, None, marker == b"K")]
        if kind == b"B":
            _check_end(data, 1 + _BEGIN.size, lsn)
            final_lsn, commit_us, xid = _BEGIN.unpack_from(data, 1)
            self._begin = Begin(final_lsn, EPOCH_MS + commit_us // 1000, xid)
            return self._begin
        if kind == b"C":
            self._opened(lsn)
            _check_end(data, 1 + _COMMIT.size, lsn)
            _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(data, 1)
            self._begin = None
            return Commit(commit_lsn, end_lsn)
        if kind == b"R":
            self._describe(data, lsn)
            return None
        if kind == b"T":
            count = _U32.unpack_from(data, 1)[0]
            _check_end(data, 6 + 4 * count, lsn)
            oids = [_U32.unpack_from(data, 6 + 4 * index)[0] for index in range(count)]
            return [Change(self._opened(lsn), lsn, self._known(oid), "t") for oid in oids]
        if kind in (b"O", b"Y", b"M"):  # origin, type, logical message: nothing to store
            return None
        raise InvalidRecord(f"pgoutput message {data[:1]!r} at {format_lsn(lsn)} is unknown in version 1")

    def _update(self, data: bytes, lsn: int) -> Change:
        relation, at = self._relation(data), 5
        before: Row | None = None
        marker = _marker(data, at, b"KON")
        if marker != b"N":
            before, at = _row(data, at + 1, relation)
            _marker(data, at, b"N")
        after, end = _row(data, at + 1, relation)
        _check_end(data, end, lsn)
        if before is not None and UNCHANGED in after:
            # The old row, or its identity, has the large values that the new one does not repeat.
            after = [
                old if new is UNCHANGED and (marker == b"O" or column.is_key) else new
                for old, new, column in zip(before, after, relation.columns, strict=True)
            ]
        return Change(self._opened(lsn), lsn, relation, "u", before, after, marker == b"K")

    def _relation(self, data: bytes) -> Relation:
        return self._known(_U32.unpack_from(data, 1)[0])

    def _known(self, oid: int) -> Relation:
        relation = self._relations.get(oid)
        if relation is None:
            raise InvalidRecord(f"a change of table {oid}, which the stream has not described")
        return relation

    def _opened(self, lsn: int) -> Begin:
        if self._begin is None:
            raise InvalidRecord(f"a message at {format_lsn(lsn)} belongs to no transaction")
        return self._begin

    def _describe(self, data: bytes, lsn: int) -> None:
        oid = _U32.unpack_from(data, 1)[0]
        schema, at = _text(data, 5)
        table, at = _text(data, at)
        count = _U16.unpack_from(data, at + 1)[0]
        at += 3
        columns = []
        for _ in range(count):
            is_key = bool(data[at] & 1)
            name, at = _text(data, at + 1)
            columns.append(Column(name, _COLUMN_TAIL.unpack_from(data, at)[0], is_key))
            at += _COLUMN_TAIL.size
        _check_end(data, at, lsn)
        # An empty schema name stands for pg_catalog.
        name = f"{schema or 'pg_catalog'}.{table}"
        self._relations[oid] = Relation(schema or "pg_catalog", table, columns, self._keys.get(name))


def _marker(data: bytes, at: int, allowed: bytes) -> bytes:
    """What kind of row follows: the New one, the Old one, or the old Key."""
    found = data[at : at + 1]
    if not found or found not in allowed:
        raise InvalidRecord(f"pgoutput message {data[:1]!r} has {found!r} where a row should begin")
    return found


def _row(data: bytes, at: int, relation: Relation) -> tuple[Row, int]:
    count = data[at] << 8 | data[at + 1]
    if count != len(relation.columns):
        raise InvalidRecord(
            f"a row of {relation.name} has {count} values for {len(relation.columns)} columns"
        )
    at += 2
    row: list[bytes | object | None] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            start = at + 4
            at = start + int.from_bytes(data[at:start], "big")
            row.append(data[start:at])
        elif kind == _NULL:
            row.append(None)
        elif kind == _TOAST:
            row.append(UNCHANGED)
        else:
            raise InvalidRecord(f"a value of {relation.name} has the unknown kind {chr(kind)!r}")
    return row, at  # type: ignore[return-value]


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at) if 0 in data[at:] else -1
    if end < 0:
        raise IndexError("a name has no end")
    return data[at:end].decode(), end + 1


def _check_end(data: bytes, at: int, lsn: int) -> None:
    if at != len(data):
        raise InvalidRecord(
            f"pgoutput message {data[:1]!r} at {format_lsn(lsn)} ends at byte {len(data)}, not {at}"
        )


def parse_lsn(text: str) -> int:
    """`16/B374D848` as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """A number as PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
