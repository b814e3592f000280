"""What the tests of tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import logstore
from logstore import Record, Topic
from tests.support.arrow import MakeLog


@pytest.fixture
def reader(make_log: MakeLog) -> Iterator[Callable[..., Topic]]:
    """`reader(segments of partition 0, …)`: the topic in a store that only reads."""
    opened: list[logstore.Store] = []

    def make(*partitions: list[list[Record]], **settings: object) -> Topic:
        opened.append(logstore.open(make_log("orders", *partitions, **settings), writer="read_only"))
        return opened[0].topic("orders")

    yield make
    for store in opened:
        store.close()
