"""The control plane's messages: kio's generated schemas, our own bounds-checked codec.

kio describes every API in every version as dataclasses, generated from Kafka's own definitions. We take the
descriptions and not its native reader: that one trusts array lengths, and a 30-byte request that announces
two billion elements aborts the process when the allocation fails.

`decode` gives a `Message` with kio's field names; durations stay integers in milliseconds. `encode` takes a
mapping: fields that the version does not have are left out, fields that are missing get Kafka's default. So a
handler is written once, for the newest version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader


class Message(SimpleNamespace):
    """A decoded request or a part of one. Which fields exist depends on the version: `get` has a default."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class _FieldPlan(NamedTuple):
    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    nested: _Plan | None
    tag: int | None
    default: Any


class _Plan(NamedTuple):
    flexible: bool
    fields: tuple[_FieldPlan, ...]
    tagged: dict[int, _FieldPlan]


_INTEGERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "error_code": struct.Struct(">h"),
    "duration32": struct.Struct(">i"),
    "duration64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_OF_OUR_OWN = {"WritableTxnMarker": [_FieldPlan("started_ms", "int64", False, False, None, 10_000, -1)]}
"""Tagged fields that our brokers add to each other's requests; whoever does not know them steps over them."""
_SAME_AS = {"records": "bytes", "timedelta_i32": "duration32", "timedelta_i64": "duration64"}
_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "uuid": UUID(int=0), "float64": 0.0}


def decode(api: int, version: int, frame: bytes | memoryview, position: int) -> Message:
    """The request body at `position`. Raises `MalformedRequest`."""
    plan = _request_plan(api, version)
    reader = Reader(frame, position, flexible=plan.flexible)
    return _read_struct(plan, reader)


def encode(api: int, version: int, values: Mapping[str, Any]) -> bytes:
    """The response body."""
    out: list[bytes] = []
    _write_struct(_response_plan(api, version), values, out)
    return b"".join(out)


def encode_request(api: int, version: int, values: Mapping[str, Any]) -> bytes:
    """The request body, as a client writes it: the other end of `decode`, for those who test a broker."""
    out: list[bytes] = []
    _write_struct(_request_plan(api, version), values, out)
    return b"".join(out)


def decode_response(api: int, version: int, frame: bytes | memoryview, position: int) -> Message:
    """The response body at `position`, as a client reads it: the other end of `encode`."""
    plan = _response_plan(api, version)
    return _read_struct(plan, Reader(frame, position, flexible=plan.flexible))


# kio finds a schema by importing its name, each time; and kio itself, with what it imports where hypothesis is installed, is
# half of what a broker takes to start, which needs no schema.
def load() -> None:
    """What the first request would wait for."""
    import kio.index  # noqa: F401


@cache
def _request_plan(api: int, version: int) -> _Plan:
    from kio.index import load_request_schema

    return _plan(load_request_schema(api, version))


@cache
def _response_plan(api: int, version: int) -> _Plan:
    from kio.index import load_response_schema

    return _plan(load_response_schema(api, version))


@cache
def _plan(entity: type) -> _Plan:
    plans = [_field_plan(field) for field in fields(entity)] + _OF_OUR_OWN.get(entity.__name__, [])
    return _Plan(
        bool(vars(entity)["__flexible__"]),
        tuple(plan for plan in plans if plan.tag is None),
        {plan.tag: plan for plan in plans if plan.tag is not None},
    )


def _field_plan(field: Field[Any]) -> _FieldPlan:
    annotation: Any = field.type
    nullable = False
    if get_origin(annotation) in (UnionType, Union):
        nullable = NoneType in get_args(annotation)
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation = get_args(annotation)[0]
        if get_origin(annotation) in (UnionType, Union):
            nullable = True
            annotation = next(part for part in get_args(annotation) if part is not NoneType)
    nested = _plan(annotation) if isinstance(annotation, type) and is_dataclass(annotation) else None
    kind = "struct" if nested else _SAME_AS.get(field.metadata["kafka_type"], field.metadata["kafka_type"])
    default = field.default
    if default is MISSING:
        default = () if is_array else _ZEROS.get(kind, 0)
    elif kind.startswith("duration"):
        default = round(default.total_seconds() * 1000)
    elif kind == "datetime_i64":
        default = -1
    return _FieldPlan(field.name, kind, is_array, nullable, nested, field.metadata.get("tag"), default)


def _read_struct(plan: _Plan, reader: Reader) -> Message:
    message = Message()
    values = message.__dict__
    for field in plan.fields:
        values[field.name] = _read_field(field, reader)
    if plan.flexible:
        for field in plan.tagged.values():
            values[field.name] = field.default
        for _ in range(reader.uvarint()):
            tag, size = reader.uvarint(), reader.uvarint()
            content = Reader(reader.take(size), flexible=True)
            if tag in plan.tagged:
                field = plan.tagged[tag]
                values[field.name] = _read_field(field, content)
    return message


def _read_field(field: _FieldPlan, reader: Reader) -> Any:
    if not field.is_array:
        return _read_value(field, reader)
    length = reader.array_length()
    if length < 0:
        return None
    return [_read_value(field, reader) for _ in range(length)]


def _read_value(field: _FieldPlan, reader: Reader) -> Any:
    kind = field.kind
    if kind == "struct":
        assert field.nested is not None
        if field.is_nullable and not field.is_array and reader.i8() < 0:
            return None
        return _read_struct(field.nested, reader)
    if kind in _INTEGERS:
        packer = _INTEGERS[kind]
        return packer.unpack(reader.take(packer.size))[0]
    value = _READERS[kind](reader)
    if value is None and not field.is_nullable:
        raise MalformedRequest(f"{field.name} is null")
    return value


def _read_bytes(reader: Reader) -> bytes | None:
    value = reader.nullable_bytes()
    return None if value is None else bytes(value)


_READERS: dict[str, Callable[[Reader], Any]] = {
    "string": Reader.nullable_string,
    "bytes": _read_bytes,
    "bool": Reader.boolean,
    "uuid": lambda reader: UUID(bytes=bytes(reader.take(16))),
    "float64": lambda reader: struct.unpack(">d", reader.take(8))[0],
}


def _write_struct(plan: _Plan, values: Mapping[str, Any], out: list[bytes]) -> None:
    for field in plan.fields:
        _write_field(field, values.get(field.name, field.default), plan.flexible, out)
    if not plan.flexible:
        return
    present = [
        field for field in plan.tagged.values() if values.get(field.name, field.default) != field.default
    ]
    out.append(primitives.uvarint(len(present)))
    for field in sorted(present, key=lambda each: each.tag or 0):
        content: list[bytes] = []
        _write_field(field, values[field.name], True, content)
        body = b"".join(content)
        out += (primitives.uvarint(field.tag or 0), primitives.uvarint(len(body)), body)


def _write_field(field: _FieldPlan, value: Any, flexible: bool, out: list[bytes]) -> None:
    if not field.is_array:
        _write_value(field, value, flexible, out)
        return
    out.append(primitives.array_header(None if value is None else len(value), flexible))
    for element in value or ():
        _write_value(field, element, flexible, out)


def _write_value(field: _FieldPlan, value: Any, flexible: bool, out: list[bytes]) -> None:
    kind = field.kind
    if kind == "struct":
        assert field.nested is not None
        if field.is_nullable and not field.is_array:
            out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            _write_struct(field.nested, value, out)
    elif kind in _INTEGERS:
        out.append(_INTEGERS[kind].pack(value))
    elif kind == "string":
        # Some fields became nullable in a later version: an older client gets the empty string.
        out.append(primitives.string("" if value is None and not field.is_nullable else value, flexible))
    elif kind == "bytes":
        out.append(primitives.binary(value, flexible))
    elif kind == "bool":
        out.append(b"\x01" if value else b"\x00")
    elif kind == "uuid":
        out.append(value.bytes)
    else:
        out.append(struct.pack(">d", value))
