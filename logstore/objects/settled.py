"""Put, doubt, look: the one place that interprets the answer to a conditional put.

"Precondition failed" does not say that nothing happened: a gateway may have sent the request twice, and the answer is the
second one's. No answer says nothing at all: the request may have been carried out, or will be, after we have given up. So
whatever is not a plain success is settled by looking at the object itself, and everybody who puts conditionally (chain,
manifest, catalog, marker, ledger, the broker's objects) does it through here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from logstore.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    ObjectNotFound,
    PreconditionFailed,
    UnsupportedStore,
)
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.wrappers.retrying import RetryPolicy

T = TypeVar("T")

logger = logging.getLogger(__name__)

DOUBTS = RetryPolicy(attempts=5, base_s=0.0)


class Doubts:
    """Of one operation that looks, puts and looks again. `with doubts:` takes an `Indeterminate` as a reason to look, until
    so many answers were lost, as `DOUBTS` has attempts: the last one is raised, and the caller is asked to look.
    """

    def __init__(self) -> None:
        self._lost = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Indeterminate):
            return False
        self._lost += 1
        return DOUBTS.allows(error, self._lost)


def settle(
    key: str,
    put: Callable[[], object],
    look: Callable[[], T | None],
    is_ours: Callable[[T], bool],
    may_still_come: Callable[[T], bool] = lambda _: False,
    *,
    caller_looks: bool = False,
) -> T | None:
    """Carry out a conditional put and find out what came of it. None: ours is there. Else what is there instead of it.

    `look` reads what is at the key, None if nothing is; it is asked only in doubt. `may_still_come`: what was to be
    replaced still exists, so ours may be carried out later. `caller_looks`: a refused put is raised as `PreconditionFailed`,
    and the caller finds out whose the object is, together with what else it needs to know then.

    Raises `Determinate` if surely nothing happened, and `Indeterminate` if it may have, or may yet: then the same put may be
    sent again, or nobody may count on either outcome. What `look` says of damage is raised as it is.
    """
    try:
        put()
        return None
    except Determinate:
        raise
    except Exception as error:
        if caller_looks and isinstance(error, PreconditionFailed):
            raise
        doubt = error
    try:
        found = look()
    except (CorruptData, UnsupportedStore):
        raise
    except Exception as error:
        raise Indeterminate(f"{key}: {doubt}; and it could not be read back: {error}") from error
    if found is None or may_still_come(found):
        refused = isinstance(doubt, PreconditionFailed)
        raise Indeterminate(
            f"{key}: the store refused it and does not show another; asking again"
            if refused
            else f"{key}: {doubt}; it is not there yet"
        ) from doubt
    return None if is_ours(found) else found


def create_settled(
    store: ObjectStore,
    key: str,
    data: Buffer,
    front_size: int,
    parse: Callable[[bytes], T],
    is_ours: Callable[[T], bool],
    before_replacing: Callable[[], None] = lambda: None,
    *,
    caller_looks: bool = False,
) -> T | None:
    """Create an object whose first bytes say whose it is. Returns and raises as `settle` does; so is `caller_looks`.

    An object of no bytes is what a server leaves that is killed in the middle of a put, whose caller was told nothing.
    Nobody can have committed it, and nobody could go past it: it is replaced if nobody else does, unless `before_replacing`
    raises.
    """
    is_torn = False

    def look() -> T | None:
        nonlocal is_torn
        try:
            front = store.get(key, 0, front_size)
        except ObjectNotFound:
            return None
        is_torn = front == b""
        return parse(front) if front else None

    def replace_torn() -> None:
        torn = store.head(key)
        if torn is None or torn.size:
            raise Indeterminate(f"{key}: it had no bytes and has changed since; asking again")
        logger.warning(
            "%s: an object of no bytes was there, left by a put that was cut off; replacing it", key
        )
        store.put(key, data, if_match=torn.etag)

    try:
        return settle(
            key, lambda: store.put(key, data, if_absent=True), look, is_ours, caller_looks=caller_looks
        )
    except Indeterminate:
        if not is_torn:
            raise
        before_replacing()
        return settle(key, replace_torn, look, is_ours)


def put_settled(store: ObjectStore, key: str, data: Buffer, replaces: str | None) -> ObjectInfo | None:
    """Create the object, or replace the version with the etag `replaces`. What is there then; None if it is another's.

    `data` must be unlike anything that somebody else would put there, or the same only if it means the same. Raises as
    `settle` does.
    """
    stored: ObjectInfo | None = None

    def put() -> None:
        nonlocal stored
        stored = store.put(key, data, if_absent=replaces is None, if_match=replaces)

    def look() -> tuple[ObjectInfo, bytes] | None:
        # The etag first: if the object changes in between, its bytes are not ours.
        info = store.head(key)
        try:
            return None if info is None else (info, store.get(key))
        except ObjectNotFound:
            return None

    def is_ours(found: tuple[ObjectInfo, bytes]) -> bool:
        nonlocal stored
        if found[1] != data:
            return False
        stored = found[0]
        return True

    settle(key, put, look, is_ours, lambda found: replaces is not None and found[0].etag == replaces)
    return stored
