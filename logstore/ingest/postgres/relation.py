"""A table as the stream describes it: its columns, which of them identify a row, and its rows as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from logstore.errors import InvalidRecord, InvalidTopicName
from logstore.ingest.postgres.values import UNAVAILABLE_JSON, Encoder, encoder_for


class _Unchanged:
    """A large value that the update did not touch: the server does not send it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()

Row = Sequence[bytes | _Unchanged | None]
"""One value for each column, as PostgreSQL prints it."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    is_key: bool


class Relation:
    """`schema.table` at one moment of its life; a change of its columns makes a new one.

    `key` names the columns that identify a row, when they are not those of the replica identity.
    """

    __slots__ = ("_columns", "_keys", "columns", "key_is_in_identity", "schema", "table")

    def __init__(
        self, schema: str, table: str, columns: Sequence[Column], key: Iterable[str] | None = None
    ) -> None:
        self.schema = schema
        self.table = table
        self.columns = tuple(columns)
        self._columns = [
            (encode_basestring(column.name).encode() + b":", encoder_for(column.type_oid))
            for column in self.columns
        ]
        self._keys = self._key_indexes(None if key is None else list(key))
        self.key_is_in_identity = all(self.columns[index].is_key for index in self._keys)

    def _key_indexes(self, key: list[str] | None) -> list[int]:
        if key is None:
            return [index for index, column in enumerate(self.columns) if column.is_key]
        names = [column.name for column in self.columns]
        for name in key:
            if name not in names:
                raise InvalidRecord(
                    f"the key of {self.name} names a column {name!r}; there are: {', '.join(names)}"
                )
        return [names.index(name) for name in key]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def key_json(self, row: Row) -> bytes | None:
        """The record key: the identifying columns. None for a table that has none."""
        if not self._keys:
            return None
        columns = self._columns
        fields = []
        for index in self._keys:
            name, encode = columns[index]
            value = row[index]
            if value is UNCHANGED:
                raise self._no_key("is large, and an update that does not touch it leaves it out")
            fields.append(name + _json(value, encode))
        return b"{" + b",".join(fields) + b"}"

    def key_json_of_identity(self, row: Row) -> bytes | None:
        """The same for a row of which the stream sent only the replica identity."""
        if not self.key_is_in_identity:
            raise self._no_key("is not in the replica identity, and nothing else is sent of an old row")
        return self.key_json(row)

    def _no_key(self, why: str) -> InvalidRecord:
        chosen = ", ".join(repr(self.columns[index].name) for index in self._keys)
        return InvalidRecord(
            f"a change of {self.name} without its key: {chosen} was chosen, which {why}. Choose a key within the replica "
            "identity, or alter the table to replica identity full; then drop the slot, to start over with a snapshot"
        )

    def row_json(self, row: Row) -> bytes:
        """A whole row."""
        fields = []
        for (name, encode), value in zip(self._columns, row, strict=True):
            if type(value) is bytes:
                fields.append(name + (value if encode is None else encode(value)))
            else:
                fields.append(name + (b"null" if value is None else UNAVAILABLE_JSON))
        return b"{" + b",".join(fields) + b"}"

    def identity_json(self, row: Row) -> bytes:
        """A row of which the stream sent only the replica identity: the other columns are unknown, not null."""
        fields = [
            name + _json(value, encode)
            for (name, encode), value, column in zip(self._columns, row, self.columns, strict=True)
            if column.is_key
        ]
        return b"{" + b",".join(fields) + b"}"


def _json(value: bytes | _Unchanged | None, encode: Encoder) -> bytes:
    if type(value) is not bytes:
        return b"null"
    return value if encode is None else encode(value)


def one_topic(table: tuple[str, str], other: tuple[str, str]) -> InvalidTopicName:
    """What is raised when two tables, each (schema, name), would share a topic: rows of one key would be mixed."""
    first, second = ('"{}"."{}"'.format(*names) for names in (table, other))
    return InvalidTopicName(
        f"the tables {first} and {second} would both be the topic {'.'.join(table)!r}: take one of them out of the "
        "publication, or rename it; if it has changed already, drop the slot, to start over with a snapshot"
    )
