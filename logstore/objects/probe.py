"""Does a store keep the promise that the commit protocol is built on?

Some S3 servers take `If-None-Match` and `If-Match` and ignore them. On those two writers overwrite each other
and both report success, so such a store is refused before the first record goes there.
"""

from __future__ import annotations

import os

from logstore.errors import PreconditionFailed, UnsupportedStore
from logstore.objects.protocol import ObjectStore


def check_conditions(store: ObjectStore, prefix: str) -> None:
    """Raise `UnsupportedStore` unless `if_absent` and `if_match` hold.

    Six requests on one new object below `prefix`.
    """
    key = f"{prefix}{os.urandom(16).hex()}"
    info = store.put(key, b"first", if_absent=True)
    try:
        try:
            store.put(key, b"second", if_absent=True)
        except PreconditionFailed:
            pass
        else:
            raise _refusal(store, "create-if-absent (If-None-Match: *) overwrote an object")
        store.put(key, b"third", if_match=info.etag)
        try:
            store.put(key, b"fourth", if_match=info.etag)
        except PreconditionFailed:
            pass
        else:
            raise _refusal(store, "compare-and-set (If-Match) overwrote a newer version")
        if store.get(key) != b"third":
            raise _refusal(store, "a get after a put did not return what was put")
    finally:
        store.delete(key)


def _refusal(store: ObjectStore, why: str) -> UnsupportedStore:
    return UnsupportedStore(
        f"{store!r}: {why}. Use a store with atomic conditional writes, as AWS S3 has them"
    )
