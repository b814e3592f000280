"""Avro: columns by a schema of yours, decoded by `fastavro` (extra `avro`)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from logstore.errors import needs
from logstore.lake.values.decoded_columns import Decode, Decoded

AvroSchema: TypeAlias = "str | Mapping[str, Any]"
Registry: TypeAlias = "Mapping[int, AvroSchema] | Callable[[int], AvroSchema]"
Convert: TypeAlias = "Callable[[Any], Any] | None"

_FRAME = 5
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


class Avro:
    """Values are Avro records of `schema` (JSON text, or what `json.loads` makes of it); its fields become columns.

    Without a `registry` a value is one datum, written with this schema. With one, it begins as Confluent's serializers
    write it, with a zero byte and the number of the schema that it was written with: `registry` (a mapping, or a
    function that asks a registry) knows these, and `schema` is what they are read as, by Avro's rules of resolution. For
    Spark it must pickle.

    A field that may be null is a nullable column. Times of day and UUIDs become text, enums their names. A union of several
    types, or a type that contains itself, has no column, and is refused here.
    """

    encoding = "avro"

    def __init__(self, schema: AvroSchema, registry: Registry | None = None) -> None:
        self._schema = _loaded(schema)
        self._registry = registry
        self.fields, _ = _columns(self._schema)

    def decoder(self) -> Decode:
        with needs("avro"):
            from fastavro import parse_schema, schemaless_reader

        _, converts = _columns(self._schema)
        reader = parse_schema(self._schema)
        writers: dict[int, Any] = {}

        def writer(number: int) -> Any:
            if number not in writers:
                ask = self._registry if callable(self._registry) else (self._registry or {}).__getitem__
                writers[number] = parse_schema(_loaded(ask(number)))
            return writers[number]

        def decode(value: bytes) -> Decoded:
            data = io.BytesIO(value)
            if self._registry is None:
                found: Any = schemaless_reader(data, reader, None)
            else:
                head = data.read(_FRAME)
                if len(head) < _FRAME or head[0]:
                    raise ValueError("no number of a schema")
                found = schemaless_reader(data, writer(int.from_bytes(head[1:], "big")), reader)
            if data.tell() != len(value):
                raise ValueError("bytes behind its end")
            return Decoded({name: _converted(converts[name], content) for name, content in found.items()})

        return decode


def _loaded(schema: AvroSchema) -> Any:
    return json.loads(schema) if isinstance(schema, str) else schema


def _columns(schema: Any) -> tuple[pa.Schema, dict[str, Convert]]:
    with needs("avro"):
        from fastavro.schema import expand_schema

    whole: Any = expand_schema(schema)
    if not isinstance(whole, dict) or whole.get("type") != "record":
        raise ValueError("an Avro schema of values is a record: its fields become columns")
    found = {one["name"]: _kind(one["type"], one["name"]) for one in whole["fields"]}
    return (
        pa.schema([pa.field(name, kind) for name, (kind, _) in found.items()]),
        {name: convert for name, (_, convert) in found.items()},
    )


def _kind(schema: Any, where: str) -> tuple[pa.DataType, Convert]:
    """The type of a column for an Avro type, and what makes its values from fastavro's, if they are not the same."""
    if isinstance(schema, list):
        branches = [one for one in schema if one != "null"]
        if len(branches) != 1:
            raise ValueError(f"{where} is a union of {len(branches)} types: a column has one")
        return _kind(branches[0], where)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _kind(kind, where)
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), None
    if logical in _LOGICAL:
        return _LOGICAL[logical], None
    if logical in ("uuid", "time-millis", "time-micros"):
        return pa.string(), str
    if kind in _PLAIN:
        return _PLAIN[kind], None
    if kind == "fixed":
        return pa.binary(), None
    if kind == "enum":
        return pa.string(), None
    if kind == "array":
        inner, convert = _kind(schema["items"], f"{where}[]")
        return pa.list_(pa.field("element", inner)), _each(convert)
    if kind == "map":
        inner, convert = _kind(schema["values"], f"{where}{{}}")
        return pa.map_(pa.string(), inner), _items(convert)
    if kind == "record" and schema["fields"]:
        parts = {one["name"]: _kind(one["type"], f"{where}.{one['name']}") for one in schema["fields"]}
        return pa.struct([pa.field(name, inner) for name, (inner, _) in parts.items()]), _fields(
            {name: convert for name, (_, convert) in parts.items() if convert is not None}
        )
    raise ValueError(f"{where} has the type {kind!r}, which has no column")


def _converted(convert: Convert, content: Any) -> Any:
    return content if content is None or convert is None else convert(content)


def _each(convert: Convert) -> Convert:
    return None if convert is None else lambda content: [_converted(convert, one) for one in content]


def _items(convert: Convert) -> Convert:
    return lambda content: [(key, _converted(convert, one)) for key, one in content.items()]


def _fields(converts: Mapping[str, Convert]) -> Convert:
    if not converts:
        return None
    return lambda content: (
        content | {name: _converted(convert, content[name]) for name, convert in converts.items()}
    )
