"""Protobuf: columns by a message type of yours, decoded by `protobuf` (extra `protobuf`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any, TypeAlias

import pyarrow as pa

from logstore.errors import needs
from logstore.lake.values.decoded_columns import Decode, Decoded

Convert: TypeAlias = "Callable[[Any], Any]"

_WRAPPERS = "google.protobuf."
_WRAPPED = {
    f"{_WRAPPERS}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


class Protobuf:
    """Values are messages of one type, whose fields become columns. `message` is a generated class; or the bytes of a
    `FileDescriptorSet` (`protoc --include_imports --descriptor_set_out`), with the message's full `name`.

    `framed`: a value begins as Confluent's serializers write it, with a zero byte, the number of a schema and the place
    of the message in its file. A field that knows whether it is set is null where it is not; others have their defaults, as
    Protobuf says. `Timestamp` and the wrappers become plain columns, enums their names, unsigned 64-bit numbers decimals. A
    value with fields that this type does not know is in the columns as far as it is known, and whole in `value_raw`.
    """

    encoding = "protobuf"

    def __init__(self, message: Any, name: str | None = None, *, framed: bool = False) -> None:
        if isinstance(message, bytes):
            if name is None:
                raise TypeError("name= says which message of the descriptor set it is")
            self._files, self._name = message, name
        else:
            self._files, self._name = _files_of(message.DESCRIPTOR), message.DESCRIPTOR.full_name
        self._framed = framed
        self.fields = pa.schema(
            [(one.name, _kind(one, (self._name,))) for one in self._type().DESCRIPTOR.fields]
        )

    def _type(self) -> Any:
        with needs("protobuf"):
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(self._files).file:
            pool.Add(file)
        try:
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._name))
        except KeyError:
            raise ValueError(f"the descriptor set has no message {self._name}") from None

    def decoder(self) -> Decode:
        from google.protobuf.unknown_fields import UnknownFieldSet

        made = self._type()
        convert, place = _message(made.DESCRIPTOR), _place(made.DESCRIPTOR)
        is_flat = all(field.message_type is None for field in made.DESCRIPTOR.fields)

        def is_known(message: Any) -> bool:
            """All of it, also what is in messages inside of it. What is unknown there shows by its size alone."""
            if is_flat:
                return not len(UnknownFieldSet(message))
            size = message.ByteSize()
            message.DiscardUnknownFields()
            return bool(message.ByteSize() == size)

        def decode(value: bytes) -> Decoded:
            message = made.FromString(_unframed(value, place) if self._framed else value)
            return Decoded(convert(message), is_known(message))

        return decode


def _files_of(descriptor: Any) -> bytes:
    """The file of a message and all that it imports, in an order in which they can be loaded."""
    from google.protobuf import descriptor_pb2

    found: dict[str, Any] = {}

    def add(file: Any) -> None:
        if file.name not in found:
            for needed in file.dependencies:
                add(needed)
            file.CopyToProto(found.setdefault(file.name, descriptor_pb2.FileDescriptorProto()))

    add(descriptor.file)
    return bytes(descriptor_pb2.FileDescriptorSet(file=found.values()).SerializeToString())


def _place(descriptor: Any) -> list[int]:
    """Which message of its file it is, by the numbers of it and of those around it."""
    outer = descriptor.containing_type
    siblings = (
        list(outer.nested_types)
        if outer is not None
        else list(descriptor.file.message_types_by_name.values())
    )
    number = [one.full_name for one in siblings].index(descriptor.full_name)
    return [*(_place(outer) if outer is not None else ()), number]


def _unframed(value: bytes, place: list[int]) -> bytes:
    if len(value) < 6 or value[0]:
        raise ValueError("no number of a schema")
    count, at = _zigzag(value, 5)
    found = []
    for _ in range(count):
        number, at = _zigzag(value, at)
        found.append(number)
    if (found or [0]) != place:
        raise ValueError(f"message {found} of its file, not {place}")
    return value[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def _kind(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = field.message_type.fields
        return pa.map_(_single(key, inside), _single(value, inside))
    kind = _single(field, inside)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _single(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type != field.CPPTYPE_MESSAGE:
        return {
            field.CPPTYPE_INT32: pa.int32(),
            field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.int64(),
            field.CPPTYPE_UINT64: pa.decimal128(20, 0),
            field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_BOOL: pa.bool_(),
            field.CPPTYPE_ENUM: pa.string(),
            field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
        }[field.cpp_type]
    name = field.message_type.full_name
    if name == f"{_WRAPPERS}Timestamp":
        return pa.timestamp("us", "UTC")
    if name in _WRAPPED:
        return _single(field.message_type.fields_by_name["value"], inside)
    if name in inside:
        raise ValueError(
            f"{field.full_name} is a {name} inside of a {name}: a type that contains itself has no column"
        )
    if not field.message_type.fields:
        raise ValueError(f"{field.full_name} is a {name}, which has no field and so no column")
    return pa.struct([(one.name, _kind(one, (*inside, name))) for one in field.message_type.fields])


def _message(descriptor: Any) -> Convert:
    """A message as a dict of what its columns hold."""
    parts = [(one.name, _content(one), one.has_presence) for one in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if optional and not message.HasField(name) else content(getattr(message, name))
            for name, content, optional in parts
        }

    return convert


def _content(field: Any) -> Convert:
    if _is_map(field):
        key, value = (_one(part) for part in field.message_type.fields)
        return lambda found: [(key(k), value(found[k])) for k in found]
    one = _one(field)
    return (lambda found: [one(item) for item in found]) if field.is_repeated else one


def _one(field: Any) -> Convert:
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {one.number: one.name for one in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.cpp_type != field.CPPTYPE_MESSAGE:
        return lambda content: content
    name = field.message_type.full_name
    if name == f"{_WRAPPERS}Timestamp":
        return lambda stamp: stamp.ToDatetime(tzinfo=UTC)
    if name in _WRAPPED:
        return lambda wrapped: wrapped.value
    return _message(field.message_type)
