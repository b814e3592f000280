"""What the tests of views share."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.objects import MemoryStore
from logstore.store import Store
from logstore.upsert import UpsertView
from tests.support.upsert import TOPIC, Views


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def view(objects: MemoryStore, stores: list[Store]) -> Views:
    """A view in a process of its own, on `objects` or on a wrapper of them."""

    def open_one(name: str = "a", home: Any = None, **kw: Any) -> UpsertView:
        store = logstore.open(home if home is not None else objects, probe_interval=0.001)
        stores.append(store)
        return UpsertView(store.create_topic(TOPIC, exist_ok=True).partition(0), name, **kw)

    return open_one
