"""The row of a table: what the log knows of a record, and its value, raw or as columns."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pyarrow as pa

from logstore.arrow.scan.columns import arrow_schema
from logstore.lake.value_columns import ValueColumns

Schema: TypeAlias = "pa.Schema | Literal['infer'] | None"
LOG_COLUMNS = ("partition", "offset", "timestamp", "key", "headers")
READ_COLUMNS = (*LOG_COLUMNS, "value")
_OURS = (*LOG_COLUMNS, "incarnation", "value", "value_raw")
_TAKEN = frozenset((*_OURS, "topic", "day", "hour"))


def values_of(schema: Schema) -> ValueColumns | None:
    """How values become columns; None if they stay as they are."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        return ValueColumns(pa.schema([]), _TAKEN, infer=True)
    return ValueColumns(schema, _TAKEN, infer=False)


def table_schema(values: ValueColumns | None) -> pa.Schema:
    """Of a new table."""
    log = [*arrow_schema(LOG_COLUMNS), pa.field("incarnation", pa.string())]
    if values is None:
        return pa.schema([*log, pa.field("value", pa.binary())])
    return pa.schema([*log, *values.columns, pa.field("value_raw", pa.binary())])


def typed_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a table that are fields of values."""
    return pa.schema([field for field in schema if field.name not in _OURS])


def values_of_table(schema: pa.Schema) -> ValueColumns:
    """How values become exactly the columns of a table."""
    return ValueColumns.of_table(typed_columns(schema), _TAKEN)


def lake_rows(batch: pa.RecordBatch, incarnation: str, values: ValueColumns | None) -> tuple[pa.Table, int]:
    """The table's rows for records, and how many of their values did not fit. `batch` has `READ_COLUMNS`."""
    columns = {name: batch.column(name) for name in LOG_COLUMNS}
    # As runs of one value: a column that is the same throughout costs nothing in a file.
    columns["incarnation"] = pa.array([incarnation], pa.string()).take(
        pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
    )
    if values is None:
        return pa.table(columns | {"value": batch.column("value")}), 0
    parsed = values.parse(batch.column("value"))
    typed = dict(zip(parsed.columns.column_names, parsed.columns.columns, strict=True))
    return pa.table(columns | typed | {"value_raw": parsed.raw}), parsed.unparsed


def covers(known: pa.Schema, schema: pa.Schema) -> bool:
    """Whether a table with the columns `known` has a place for all columns, and fields of columns, of `schema`."""
    return all(
        (at := known.get_field_index(one.name)) >= 0 and _covers(known.field(at).type, one.type)
        for one in schema
    )


def _covers(known: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_struct(known) and pa.types.is_struct(kind):
        return covers(pa.schema(list(known)), pa.schema(list(kind)))
    if pa.types.is_list(known) and pa.types.is_list(kind):
        return _covers(known.value_type, kind.value_type)
    return bool(known.equals(kind))


def as_filed(known: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """The columns of `schema` as `known` has them: with the ids by which a format knows them in a file."""
    return pa.schema([_filed(known.field(one.name), one.type) for one in schema])


def _filed(known: pa.Field, kind: pa.DataType) -> pa.Field:
    if pa.types.is_struct(kind):
        inner = pa.schema(list(known.type))
        return known.with_type(pa.struct([_filed(inner.field(one.name), one.type) for one in kind]))
    if pa.types.is_list(kind):
        return known.with_type(pa.list_(_filed(known.type.value_field, kind.value_type)))
    return known
