"""Does a store keep the promise that the commit protocol is built on?

Some S3 servers take `If-None-Match` and `If-Match` and ignore them. On those two writers overwrite each other
and both report success, so such a store is refused before the first record goes there.
"""

from __future__ import annotations

import os

from logstore.errors import UnsupportedStore
from logstore.objects.protocol import ObjectInfo, ObjectStore
from logstore.objects.settled import put_settled


def check_conditions(store: ObjectStore, prefix: str) -> None:
    """Raise `UnsupportedStore` unless `if_absent` and `if_match` hold.

    Six requests on one new object below `prefix`, if every one is answered. Nobody else knows its name, so whatever
    is there was put by us, whatever was answered.
    """
    key = f"{prefix}{os.urandom(16).hex()}"
    try:
        first = _put(store, key, b"first", None)
        if _is_taken(store, key, b"second", None):
            raise _refusal(store, "create-if-absent (If-None-Match: *) overwrote an object")
        _put(store, key, b"third", first.etag)
        if _is_taken(store, key, b"fourth", first.etag):
            raise _refusal(store, "compare-and-set (If-Match) overwrote a newer version")
        if store.get(key) != b"third":
            raise _refusal(store, "a get after a put did not return what was put")
    finally:
        store.delete(key)


def _put(store: ObjectStore, key: str, data: bytes, replaces: str | None) -> ObjectInfo:
    """A put whose condition holds. One that is carried out late does no harm: nobody else puts there."""
    info = put_settled(store, key, data, replaces)
    if info is None:
        raise _refusal(store, f"another object than {data!r} is where nobody else puts one")
    return info


def _is_taken(store: ObjectStore, key: str, data: bytes, replaces: str | None) -> bool:
    """Whether a put is carried out whose condition does not hold."""
    return put_settled(store, key, data, replaces) is not None


def _refusal(store: ObjectStore, why: str) -> UnsupportedStore:
    return UnsupportedStore(
        f"{store!r}: {why}. Use a store with atomic conditional writes, as AWS S3 has them"
    )
