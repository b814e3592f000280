"""The object store that everything stands on: five verbs, two conditions.

`put(if_absent=True)` is the commit point of the whole project. A home for logstore must make it atomic: of
any number of concurrent calls on one absent key exactly one returns, the others raise `PreconditionFailed`,
and a returned put is durable and visible to every later `get`, `head` and `list` of every client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from logstore.errors import ObjectNotFound

Buffer = bytes | bytearray | memoryview
OPERATIONS = ("get", "put", "head", "list", "delete")


class ObjectInfo(NamedTuple):
    """What a store says about an object without reading it."""

    key: str
    size: int
    etag: str


@runtime_checkable
class ObjectStore(Protocol):
    """Errors: `ObjectNotFound`, `PreconditionFailed`, `Determinate` (nothing happened), `Indeterminate` (it
    may have).

    An exception of any other type counts as Indeterminate.
    """

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The object's bytes, or those in `[start, end)`. A negative `start` counts from the end of the
        object.

        A range that reaches past the object is cut to it; raises `ObjectNotFound`.
        """

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store the object, whole or not at all.

        `if_absent`: only if there is none. `if_match`: only if its etag is this one. Otherwise
        `PreconditionFailed`.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Size and etag, or None if there is no such object."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose key starts with `prefix` and sorts after `start_after`, in key order (UTF-8
        bytes).
        """

    def delete(self, key: str) -> None:
        """Remove the object. Removing one that is not there is no error."""


def get_if_there(
    store: ObjectStore, key: str, start: int | None = None, end: int | None = None
) -> bytes | None:
    """As `ObjectStore.get`; None if there is no such object."""
    try:
        return store.get(key, start, end)
    except ObjectNotFound:
        return None
