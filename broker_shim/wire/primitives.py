"""Kafka's primitive types: a bounds-checked reader, a writer that collects parts, and the request header.

Nothing here believes a length: each is compared with the bytes that are there before anything is allocated.
Whatever is wrong with the bytes, the reader raises `MalformedRequest` and nothing else, and the connection
that sent them is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from broker_shim.wire.apis import NEVER, Api

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_HEADER = struct.Struct(">hhih")

MAX_ELEMENTS = 50_000
"""In one request, over all its arrays: an element of one byte becomes an object of a hundred."""
MAX_STRING_BYTES = 0x7FFF
"""As in Kafka, in the flexible versions too: what is told to a client of another version has to fit there."""


Topic = TypeVar("Topic", str, UUID)


class MalformedRequest(ValueError):
    """The bytes are not the request that they claim to be."""


class Reader:
    """Walks one frame. `flexible` chooses between the two spellings of strings and arrays (KIP-482)."""

    __slots__ = ("_data", "_elements", "_end", "flexible", "position")

    def __init__(
        self, data: bytes | bytearray | memoryview, position: int = 0, *, flexible: bool = False
    ) -> None:
        self._data = memoryview(data)
        self._end = len(self._data)
        self.position = position
        self.flexible = flexible
        self._elements = MAX_ELEMENTS

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def take(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or size > self._end - start:
            raise MalformedRequest(f"{size} bytes announced at byte {start}, {self._end - start} left")
        self.position = start + size
        return self._data[start : self.position]

    def unpack(self, packer: struct.Struct) -> tuple[Any, ...]:
        """Several fixed fields at once: one bounds check and one call, on the paths where that counts."""
        start = self.position
        if packer.size > self._end - start:
            raise MalformedRequest(f"{packer.size} bytes expected at byte {start}, {self._end - start} left")
        self.position = start + packer.size
        return packer.unpack_from(self._data, start)

    def i8(self) -> int:
        value: int = self.unpack(_I8)[0]
        return value

    def boolean(self) -> bool:
        return self.i8() != 0

    def i16(self) -> int:
        value: int = self.unpack(_I16)[0]
        return value

    def i32(self) -> int:
        value: int = self.unpack(_I32)[0]
        return value

    def i64(self) -> int:
        value: int = self.unpack(_I64)[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequest(f"a varint longer than 5 bytes ends at byte {self.position}")

    def array_length(self) -> int:
        """-1 is null. An element takes at least one byte, so a longer array than the frame is a lie."""
        length = self.uvarint() - 1 if self.flexible else self.i32()
        self._elements -= length
        if length < -1 or length > self.remaining or self._elements < 0:
            raise MalformedRequest(f"an array of {length} elements in {self.remaining} bytes")
        return length

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.i16()
        if length < 0:
            return None
        if length > MAX_STRING_BYTES:
            raise MalformedRequest(f"a string of {length} bytes at byte {self.position}")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"a string that is not UTF-8 ends at byte {self.position}") from error

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedRequest(f"null in place of a string at byte {self.position}")
        return value

    def nullable_bytes(self) -> memoryview | None:
        length = self.uvarint() - 1 if self.flexible else self.i32()
        return None if length < 0 else self.take(length)

    def tags(self) -> None:
        """Step over tagged fields: none of those that clients send changes what we answer."""
        if not self.flexible:
            return
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    """Where the body starts in the frame."""


def read_header(frame: bytes | memoryview) -> RequestHeader:
    """Header v1 or v2. An unknown API has no known header version: its body position is that of v1."""
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"a frame of {len(frame)} bytes is shorter than a request header")
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    body = _HEADER.size + max(length, 0)
    if body > len(frame):
        raise MalformedRequest(f"a client id of {length} bytes in a frame of {len(frame)}")
    try:
        client_id = str(frame[_HEADER.size : body], "utf-8") if length >= 0 else None
    except UnicodeDecodeError as error:
        raise MalformedRequest("a client id that is not UTF-8") from error
    if version >= _FLEXIBLE_FROM.get(api_key, NEVER):
        reader = Reader(frame, body, flexible=True)
        reader.tags()
        body = reader.position
    return RequestHeader(api_key, version, correlation_id, client_id, body)


_FLEXIBLE_FROM = {int(api): api.flexible_from for api in Api}


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def array_header(length: int | None, flexible: bool) -> bytes:
    count = -1 if length is None else length
    return uvarint(count + 1) if flexible else _I32.pack(count)


def string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = value.encode()
    return uvarint(len(data) + 1) + data if flexible else _I16.pack(len(data)) + data


def binary(value: bytes | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    return uvarint(len(value) + 1) + value if flexible else _I32.pack(len(value)) + value


def response_header(api: int, version: int, correlation_id: int) -> bytes:
    """Header v0, or v1 for flexible versions; ApiVersions stays at v0, so that any client can read it."""
    if api != Api.API_VERSIONS and version >= _FLEXIBLE_FROM.get(api, NEVER):
        return _I32.pack(correlation_id) + b"\x00"
    return _I32.pack(correlation_id)


def by_topic(partitions: Iterable[tuple[Topic, int]]) -> dict[Topic, list[int]]:
    """Sorted, as requests and records name partitions."""
    found: dict[Topic, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
