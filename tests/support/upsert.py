"""Upsert views in processes of their own, and what is in their log."""

from __future__ import annotations

from collections.abc import Callable

import logstore
from logstore.objects import MemoryStore
from logstore.upsert import UpsertView, decode_change

Views = Callable[..., UpsertView]
TOPIC = "accounts"


def changes(objects: MemoryStore) -> list[tuple[bytes | None, bytes | None, bytes | None, int]]:
    """What is in the log: (key, old, new, time)."""
    with logstore.open(objects, writer="read_only") as store:
        records = store.topic(TOPIC).partition(0).records()
        return [(record.key, *decode_change(record.value)) for record in records]
