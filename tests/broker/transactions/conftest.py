"""Each promise of transactions is kept in two steps, with a chain for each partition, and by the short cut, in one lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from logstore.objects import ObjectStore
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker


@pytest.fixture(params=[0, 1], ids=["chains", "lane"])
def lanes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def start_broker(lanes: int) -> Iterator[Callable[..., LocalBroker]]:
    """As for all broker tests, with so many lanes."""
    with ExitStack() as running:

        def start(objects: ObjectStore | None = None, **settings: Any) -> LocalBroker:
            store = objects if objects is not None else MemoryStore()
            return running.enter_context(LocalBroker(store, **{"lanes": lanes, **settings}))

        yield start
