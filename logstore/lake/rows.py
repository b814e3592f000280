"""The row of a table: what the log knows of a record, and its value, raw or as columns."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import pyarrow as pa

from logstore.arrow.scan.columns import arrow_schema
from logstore.lake.values.decoded_columns import DecodedColumns, Decoder
from logstore.lake.values.extremes import up_to_9999
from logstore.lake.values.json_columns import ValueColumns
from logstore.lake.values.protocol import Values

Schema: TypeAlias = "pa.Schema | Decoder | Literal['infer'] | None"
LOG_COLUMNS = ("partition", "offset", "timestamp", "key", "headers")
READ_COLUMNS = (*LOG_COLUMNS, "value")
_OURS = (*LOG_COLUMNS, "incarnation", "value", "value_raw")
_TAKEN = frozenset((*_OURS, "topic", "day", "hour"))


def values_of(schema: Schema) -> Values | None:
    """How values become columns; None if they stay as they are."""
    if schema is None:
        return None
    if isinstance(schema, pa.Schema):
        if wrong := [f"{field.name} ({field.type})" for field in schema if not _takes_json(field.type)]:
            raise ValueError(f"schema: no JSON value becomes a column of such a type: {', '.join(wrong)}")
        return ValueColumns(schema, _TAKEN, infer=False)
    if schema == "infer":
        return ValueColumns(pa.schema([]), _TAKEN, infer=True)
    if not hasattr(schema, "decoder"):
        raise TypeError(
            f'schema is a pyarrow.Schema, "infer", an Avro or a Protobuf, or None, not {type(schema).__name__}'
        )
    return DecodedColumns(cast(Decoder, schema), _TAKEN)


def _takes_json(kind: pa.DataType) -> bool:
    """Arrow's parser makes neither maps nor bytes of a fixed length: each and every value would be one that does not fit."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_takes_json(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _takes_json(kind.value_type)
    return not (pa.types.is_null(kind) or pa.types.is_map(kind) or pa.types.is_fixed_size_binary(kind))


def table_schema(values: Values | None) -> pa.Schema:
    """Of a new table."""
    log = [*arrow_schema(LOG_COLUMNS), pa.field("incarnation", pa.string())]
    if values is None:
        return pa.schema([*log, pa.field("value", pa.binary())])
    return pa.schema([*log, *values.columns, pa.field("value_raw", pa.binary())])


def typed_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a table that are fields of values."""
    return pa.schema([field for field in schema if field.name not in _OURS])


def values_of_table(columns: pa.Schema, encoding: str, schema: Schema) -> Values:
    """How values become exactly the columns of a table that was filled with values of this encoding."""
    typed = typed_columns(columns)
    if encoding == ValueColumns.encoding:
        return ValueColumns.of_table(typed, _TAKEN)
    values = values_of(schema)
    if values is None or values.encoding != encoding:
        raise ValueError(
            f"the table was filled from {encoding.title()}: schema= says how the rest is decoded"
        )
    values.learn(typed)
    return values


def lake_rows(batch: pa.RecordBatch, incarnation: str, values: Values | None) -> tuple[pa.Table, int]:
    """The table's rows for records, and how many of their values did not fit. `batch` has some of `READ_COLUMNS`: the rows
    have what comes of these."""
    columns = {name: batch.column(name) for name in LOG_COLUMNS if name in batch.schema.names}
    if "timestamp" in columns:
        columns["timestamp"] = up_to_9999(columns["timestamp"])
    # As runs of one value: a column that is the same throughout costs nothing in a file.
    columns["incarnation"] = pa.array([incarnation], pa.string()).take(
        pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
    )
    if "value" not in batch.schema.names:
        return pa.table(columns), 0
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
    if pa.types.is_map(known) and pa.types.is_map(kind):
        return _covers(known.key_type, kind.key_type) and _covers(known.item_type, kind.item_type)
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
    if pa.types.is_map(kind):
        key, item = known.type.key_field, known.type.item_field
        return known.with_type(pa.map_(_filed(key, kind.key_type), _filed(item, kind.item_type)))
    return known
