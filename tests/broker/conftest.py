"""What broker tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from logstore.objects import ObjectStore
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker


@pytest.fixture
def start_broker() -> Iterator[Callable[..., LocalBroker]]:
    """Start brokers in this process; all are stopped at the end, the last one first."""
    with ExitStack() as running:

        def start(objects: ObjectStore | None = None, **settings: Any) -> LocalBroker:
            store = objects if objects is not None else MemoryStore()
            return running.enter_context(LocalBroker(store, **settings))

        yield start


@pytest.fixture
def broker(start_broker: Callable[..., LocalBroker]) -> LocalBroker:
    """One broker with its defaults, on an empty store in memory."""
    return start_broker()
