"""Typed columns out of values that are JSON objects, by Arrow's parser: a batch at a time, and no value is ever lost.

A value that is no JSON object, or does not fit the columns' types, stays as it is and is counted. Arrow's parser
knows no rows: it takes one run of text, and an error in one value fails all. So each object gets a field of ours,
its number, under a name that nobody can guess: what comes out must be exactly these numbers, in order, or some value
is not what it seems. Then the batch is cut in halves, down to the value that does not fit. (The field also keeps a
bare `null` from being the first that the parser sees, which crashes it: pyarrow 26.)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from logstore.lake.values.column_names import ColumnNames
from logstore.lake.values.extremes import (
    NESTING_MAX,
    Judge,
    beyond_calendars,
    inexact,
    is_too_deep,
    rows_with,
)
from logstore.lake.values.protocol import Parsed

logger = logging.getLogger(__name__)

COLUMNS_MAX = 1000
"""Of an inferred schema, and of fields in one struct: objects whose field names are data would make a column of each."""

FIELDS_MAX = 10_000
"""Of all columns together: a struct in each of many structs would be too much for a table's log long before each is full."""
NAME_MAX = 255
DEPTH_MAX = 20
"""Of an inferred column: lists and structs in each other. delta-rs makes a table whose schema is about 40 deep, and never
loads it again; Parquet's readers stop at 100, of which a list takes two."""

_ROWS_AT_ONCE = 1 << 12
"""For the parser: it needs some times as much memory as their text."""
_MARK = f"logstore-{uuid.uuid4().hex}"
_EMPTY = b'{"%s-":0}' % _MARK.encode()


class ValueColumns:
    """Makes columns of values. `fields` are the columns that there are; with `infer` it finds new ones as they come."""

    encoding = "json"

    def __init__(self, fields: pa.Schema, taken: frozenset[str], *, infer: bool) -> None:
        self.fields = fields
        self._names = ColumnNames(taken)
        self._infer = infer
        self._is_complete = True
        self._room = 0  # for new fields, while some are looked at
        self._left_out: set[str] = set()
        """Fields that the table cannot have, or not as they have become."""

    @classmethod
    def of_table(cls, columns: pa.Schema, taken: frozenset[str]) -> ValueColumns:
        """Exactly what a table has."""
        made = cls(pa.schema([]), taken, infer=False)
        made.learn(columns)
        return made

    @property
    def columns(self) -> pa.Schema:
        """The fields under the names of their columns."""
        return pa.schema([field.with_name(self._names.column(field.name)) for field in self.fields])

    def learn(self, columns: pa.Schema) -> None:
        """Of a table: its columns are the fields from now on, and types that are already there win."""
        self.fields = _merged(
            pa.schema([field.with_name(self._names.field(field.name)) for field in columns]), self.fields
        )

    def leave_out(self, columns: Iterable[str]) -> bool:
        """The table refuses them: what it has of them stays, and no more becomes a column. False if somebody gave the
        schema, and has to decide."""
        if self._infer:
            self._left_out |= {self._names.field(name) for name in columns}
            self.fields = pa.schema([field for field in self.fields if field.name not in self._left_out])
        return self._infer

    def parse(self, values: pa.Array) -> Parsed:
        """`values` are binary, or null for a tombstone."""
        text = _texts(values)
        good = np.array(pc.fill_null(pc.starts_with(text, "{"), False))
        if self._infer:
            sizes = np.asarray(pc.fill_null(pc.binary_length(text), 0))
            for number in np.flatnonzero(good & (sizes >= NESTING_MAX)):
                good[number] = not is_too_deep(text[int(number)].as_py())
        while True:
            known, self._is_complete = self.fields, True
            parts: list[tuple[np.ndarray, pa.Table]] = []
            self._collect(text, np.flatnonzero(good), parts)
            if self.fields.equals(known):
                break  # else a part came out with fewer columns than the next
        rows = np.full(len(values), -1, np.int64)
        at = 0
        for numbers, table in parts:
            rows[numbers] = np.arange(at, at + table.num_rows)
            at += table.num_rows
        fits = rows >= 0
        whole = pa.concat_tables([table for _, table in parts]) if parts else self.fields.empty_table()
        if at < len(values):
            whole = whole.take(pa.array(rows, mask=~fits))
        lost = ~fits & np.asarray(values.is_valid())
        kept = np.zeros(len(values), bool) if self._is_complete else fits
        if self._infer:  # nobody said that it is a double: whole numbers of any length become one
            for column in whole.columns:
                if (large := _rows_with(inexact, column)) is not None:
                    kept = kept | large
        raw = pc.if_else(pa.array(lost | kept), values, pa.scalar(None, values.type))
        columns = whole.rename_columns([self._names.column(name) for name in whole.column_names])
        return Parsed(columns, raw, int(lost.sum()))

    def _collect(self, text: pa.Array, numbers: np.ndarray, parts: list[tuple[np.ndarray, pa.Table]]) -> None:
        """Tables of all rows that fit, with their numbers, in order."""
        for first in range(0, len(numbers), _ROWS_AT_ONCE):
            some = numbers[first : first + _ROWS_AT_ONCE]
            found = self._parsed(_some_of(text, some))
            if found is None and len(some) == 1 and _is_empty_object(text[int(some[0])].as_py()):
                found = self._parsed(pa.array(["{}"]))
            if found is not None:
                parts.append((some, found))
            elif len(some) > 1:
                half = len(some) // 2
                self._collect(text, some[:half], parts)
                self._collect(text, some[half:], parts)

    def _parsed(self, text: pa.Array) -> pa.Table | None:
        """A row for each value, or None if one of them does not fit."""
        is_empty = pc.equal(text, "{}")
        if pc.any(is_empty).as_py():
            text = pc.if_else(is_empty, pa.scalar(_EMPTY.decode()), text)
        # Not binary_slice, which fails on some arrays: pyarrow 26.
        body = pc.binary_replace_slice(text.cast(pa.binary()), 0, 1, b"")
        if isinstance(body, pa.ChunkedArray):
            body = body.combine_chunks()
        joined = pc.binary_join_element_wise(_marks(len(text)), body, b"")
        try:
            found = self._read(joined, "infer" if self._infer else "ignore")
            if self._infer and (self._grow(found.schema) or not self._is_typed(found.schema)):
                found = self._read(joined, "ignore")
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        numbers = found.column(_MARK)
        if (
            len(numbers) != len(text)
            or numbers.null_count
            or not np.array_equal(numbers.to_numpy(), np.arange(len(text)))
        ):
            return None
        columns = found.select(self.fields.names).combine_chunks()
        return None if any(_rows_with(beyond_calendars, one) is not None for one in columns) else columns

    def _read(self, joined: pa.Array, unexpected: str) -> pa.Table:
        first, last = joined.offset, joined.offset + len(joined)
        offsets = np.frombuffer(joined.buffers()[1], np.int32)[first : last + 1]
        data = joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        wanted = pa.schema([pa.field(_MARK, pa.int64()), *self.fields])
        return pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior=unexpected),
        )

    def _is_typed(self, found: pa.Schema) -> bool:
        """Whether it has our fields, with nothing in them that we do not know."""
        return all(found.field(field.name).type.equals(field.type) for field in self.fields)

    def _grow(self, found: pa.Schema) -> bool:
        """Whether there are fields, at any depth, that we did not know."""
        self._room = FIELDS_MAX - _count(self.fields)
        theirs = []
        for field in found:
            if field.name in self._left_out:
                at = self.fields.get_field_index(field.name)
                self._is_complete &= at >= 0 and field.type.equals(self.fields.field(at).type)
            elif not field.name.startswith(_MARK):
                theirs.append(field)
        grown = _merged(self.fields, pa.schema(self._settled_fields(theirs, self.fields)))
        if grown.equals(self.fields):
            return False
        logger.info(
            "new columns: %s", ", ".join(sorted(set(grown.names) - set(self.fields.names)) or ["in structs"])
        )
        self.fields = grown
        return True

    def _settled_fields(
        self, found: Iterable[pa.Field], known: Iterable[pa.Field], depth: int = 0
    ) -> list[pa.Field]:
        """Of an object, or of one in it, with the types of columns. Two names that differ in their case alone would be one
        column, and one with a zero in it ends there for libraries in C."""
        types = {field.name: field.type for field in known}
        names = {name.lower() for name in types}
        fields: list[pa.Field] = []
        for field in found:
            kind = self._settled(field.type, types.get(field.name), depth + 1)
            if kind is None:
                continue
            name = field.name.lower()
            if field.name not in types:
                is_name = 0 < len(name) <= NAME_MAX and name.isprintable()
                if name in names or len(names) >= COLUMNS_MAX or self._room <= 0 or not is_name:
                    self._is_complete = False
                    continue
                self._room -= 1
            names.add(name)
            fields.append(pa.field(field.name, kind))
        return fields

    def _settled(self, kind: pa.DataType, known: pa.DataType | None, depth: int) -> pa.DataType | None:
        """The type of a column, by what the parser made of some values. None: they say nothing of it, being null or empty.

        What looks like a time in these values may be any text in the next, so it is text.
        """
        if pa.types.is_null(kind):
            return None
        if pa.types.is_temporal(kind):
            return pa.string()
        if depth > DEPTH_MAX and pa.types.is_nested(kind):
            self._is_complete = False
            return None
        if pa.types.is_list(kind):
            within = known.value_type if known is not None and pa.types.is_list(known) else None
            inner = self._settled(kind.value_type, within, depth + 1)
            return None if inner is None else pa.list_(pa.field("element", inner))
        if pa.types.is_struct(kind):
            there = known if known is not None and pa.types.is_struct(known) else ()
            fields = self._settled_fields(kind, there, depth)
            return pa.struct(fields) if fields else None
        return kind


def _rows_with(judge: Judge, column: pa.ChunkedArray) -> np.ndarray | None:
    return rows_with(judge, column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


_made: list[pa.Array] = []


def _marks(count: int) -> pa.Array:
    if not _made:
        _made.append(
            pa.array([b'{"%s":%d,' % (_MARK.encode(), n) for n in range(_ROWS_AT_ONCE)], pa.binary())
        )
    return _made[0].slice(0, count)


def _texts(values: pa.Array) -> pa.Array:
    """As text without spaces around it; null where it is none."""
    try:
        text = values.cast(pa.string())
    except pa.ArrowInvalid:
        text = pa.array([_text(value) for value in values.to_pylist()], pa.string())
    first = pc.starts_with(text, "{")
    return text if pc.all(first, skip_nulls=True).as_py() is not False else pc.ascii_trim_whitespace(text)


def _is_empty_object(text: str) -> bool:
    """Also with spaces in it."""
    return text.startswith("{") and text.endswith("}") and not text[1:-1].strip(" \t\r\n")


def _some_of(text: pa.Array, numbers: np.ndarray) -> pa.Array:
    """Without a copy, where they follow each other."""
    first, last = int(numbers[0]), int(numbers[-1])
    return (
        text.slice(first, len(numbers)) if last - first + 1 == len(numbers) else text.take(pa.array(numbers))
    )


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _count(fields: Iterable[pa.Field]) -> int:
    """Of the fields, and of all in them."""
    total = 0
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        total += 1 + (_count(kind) if pa.types.is_struct(kind) else 0)
    return total


def _merged(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """All fields of both. Where they disagree about a type, `known` is right."""
    fields = [
        pa.field(
            field.name,
            field.type
            if (at := new.get_field_index(field.name)) < 0
            else _both(field.type, new.field(at).type),
        )
        for field in known
    ]
    return pa.schema([*fields, *(field for field in new if known.get_field_index(field.name) < 0)])


def _both(known: pa.DataType, new: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(list(_merged(pa.schema(list(known)), pa.schema(list(new)))))
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(known.value_field.with_type(_both(known.value_type, new.value_type)))
    return known
