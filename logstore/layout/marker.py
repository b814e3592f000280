"""The store's marker: the object that says that a place is a log store, of which format, and which one.

Entering a place also tests what everything stands on: creating an object that exists must fail. Where the place is new, all
of the conditions that we use are tried first, on an object of their own.
"""

from __future__ import annotations

import random

from logstore.errors import (
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedStore,
)
from logstore.format.stored.document import pack_document
from logstore.layout.documents import read_document
from logstore.layout.paths import PROBE_PREFIX, STORE_KEY
from logstore.objects.probe import check_conditions
from logstore.objects.protocol import ObjectStore, get_if_there
from logstore.objects.settled import put_settled

FORMAT_VERSION = 1


def enter(objects: ObjectStore, rng: random.Random, *, read_only: bool) -> str:
    """Check that the place is a log store, or make it one; returns the store's id. Safe to repeat, wherever it failed,
    and to be repeated by the caller when an answer is lost."""
    found = _read(objects)
    if read_only:
        if found is None:
            raise UnsupportedStore(
                f"{objects!r}: there is no log store here. Check the path or URL; "
                "a store is created where it is first opened to write"
            )
        return found
    if found is None:
        found = _create(objects, rng)
    try:
        objects.put(STORE_KEY, _pack(found), if_absent=True)
    except PreconditionFailed:
        return found  # that is what was asked: whether the store refuses to create what exists
    raise UnsupportedStore(
        f"{objects!r} ignores conditions: it let an object that exists be created again (If-None-Match: *). "
        "Two writers would overwrite each other's records there. Use a store with conditional PutObject"
    )


def _create(objects: ObjectStore, rng: random.Random) -> str:
    foreign = _foreign(objects)
    if foreign is not None and (found := _read(objects)) is not None:
        return found  # another process made it a log store while we looked
    if foreign is not None:
        raise UnsupportedStore(
            f"{objects!r} is not empty and is no log store (it holds {foreign!r}): use an empty place, or a prefix"
        )
    check_conditions(objects, PROBE_PREFIX)
    put_settled(objects, STORE_KEY, _pack(rng.randbytes(8).hex()), None)  # or another process was faster
    found = _read(objects)
    if found is None:
        raise StoreUnavailable(f"{objects!r}: the store's marker was written and is not there")
    return found


def _foreign(objects: ObjectStore) -> str | None:
    """The first object that is none of ours to be here. A probe that a crash left behind does no harm."""
    keys = (info.key for info in objects.list("") if not info.key.startswith(PROBE_PREFIX))
    return next(keys, None)


def _pack(identity: str) -> bytes:
    return pack_document({"format": FORMAT_VERSION, "id": identity})


def _read(objects: ObjectStore) -> str | None:
    data, what = get_if_there(objects, STORE_KEY), f"the marker of {objects!r}"
    if data is None:
        return None
    return read_document(STORE_KEY, data, what, (FORMAT_VERSION,), lambda marker: str(marker["id"]))
