"""How a store gives back what it holds open. The protocol has no close: most homes hold nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from logstore.objects.protocol import ObjectStore


def close_store(store: ObjectStore) -> None:
    """Call `close()` of the store, and of every store that it wraps as `.inner`, where there is one."""
    at: object | None = store
    while at is not None:
        close = getattr(at, "close", None)
        if callable(close):
            close()
        at = getattr(at, "inner", None)


@contextmanager
def closing_store(store: ObjectStore) -> Iterator[ObjectStore]:
    """The store, and `close_store` when the block ends."""
    try:
        yield store
    finally:
        close_store(store)
