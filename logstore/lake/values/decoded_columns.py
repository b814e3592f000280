"""Typed columns out of values that a library decodes one by one, by a schema that somebody has given: Avro, Protobuf.

A value that cannot be decoded stays as it is and is counted, like JSON that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.lake.values.column_names import ColumnNames
from logstore.lake.values.protocol import Parsed


class Decoded(NamedTuple):
    """The fields of one value. Not whole: it has more than they show, so it is kept raw as well."""

    fields: dict[str, Any]
    is_whole: bool = True


Decode = Callable[[bytes], Decoded]


class Decoder(Protocol):
    """A schema that a user gave. Pickles."""

    @property
    def encoding(self) -> str: ...

    @property
    def fields(self) -> pa.Schema: ...

    def decoder(self) -> Decode:
        """Raises whatever it likes for a value that does not fit."""


class DecodedColumns:
    def __init__(self, decoder: Decoder, taken: frozenset[str]) -> None:
        self.encoding = decoder.encoding
        self._decoder = decoder
        self._names = ColumnNames(taken)
        self.columns = pa.schema([one.with_name(self._names.column(one.name)) for one in decoder.fields])
        lower = [name.lower() for name in self.columns.names]
        if twice := sorted({name for name in lower if lower.count(name) > 1}):
            raise ValueError(
                f"fields that differ in their case alone would be one column: {', '.join(twice)}"
            )

    def learn(self, columns: pa.Schema) -> None:
        for ours in self.columns:
            at = columns.get_field_index(ours.name)
            if at >= 0 and not columns.field(at).type.equals(ours.type):
                raise ValueError(
                    f"the table's column {ours.name} is {columns.field(at).type}, and {ours.type} by the schema: types of "
                    "a table do not change. Give the field another name, or use another target"
                )
        known = set(self.columns.names)
        self.columns = pa.schema([*self.columns, *(one for one in columns if one.name not in known)])

    def leave_out(self, columns: Iterable[str]) -> bool:
        return False

    def parse(self, values: pa.Array) -> Parsed:
        decode, column = self._decoder.decoder(), self._names.column
        rows: list[dict[str, Any]] = []
        lost, kept = np.zeros(len(values), bool), np.zeros(len(values), bool)
        for number, value in enumerate(values.to_pylist()):
            found: dict[str, Any] = {}
            if value is not None:
                try:
                    fields, is_whole = decode(value)
                    found = {column(name): content for name, content in fields.items()}
                    kept[number] = not is_whole
                except Exception:  # whatever a library says of bytes that are something else
                    lost[number] = True
            rows.append(found)
        try:
            whole = pa.Table.from_pylist(rows, schema=self.columns)
        except (pa.ArrowException, OverflowError):  # decoded, and more than a column of its type can hold
            parts = [self._row(row) for row in rows]
            lost |= np.array([part is None for part in parts])
            empty = pa.Table.from_pylist([{}], schema=self.columns)
            whole = pa.concat_tables([empty if part is None else part for part in parts])
        raw = pc.if_else(pa.array(lost | kept), values, pa.scalar(None, values.type))
        return Parsed(whole.combine_chunks(), raw, int(lost.sum()))

    def _row(self, row: dict[str, Any]) -> pa.Table | None:
        try:
            return pa.Table.from_pylist([row], schema=self.columns)
        except (pa.ArrowException, OverflowError):
            return None
