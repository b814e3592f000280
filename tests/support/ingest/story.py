"""A source that can be replayed: transactions with changes for several tables, and a store to feed them into."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import logstore
from logstore.errors import OutcomeUnknown
from logstore.ingest import Collector
from logstore.ingest.journal import PREFIX
from logstore.testing import FaultyStore

PARTITIONS = 2

Change = tuple[str, bytes, bytes]
"""Table, key, value: what `route` makes a record of."""


@dataclass(frozen=True)
class Transaction:
    """`position` is where it is, `boundary` what may be confirmed once it is stored."""

    position: int
    boundary: int
    changes: tuple[Change, ...]


def transactions(*shapes: dict[str, int], value_bytes: int = 10) -> list[Transaction]:
    """One transaction for each shape: `{"orders": 3}` is three changes of the table `orders`."""
    made = []
    for number, shape in enumerate(shapes, 1):
        changes = [
            (
                table,
                f"{table}-{index}".encode(),
                f"{number}/{table}/{index}".encode().ljust(value_bytes, b"."),
            )
            for table, count in shape.items()
            for index in range(count)
        ]
        made.append(Transaction(number * 100, number * 100 + 50, tuple(changes)))
    return made


def route(change: Change) -> list[Change]:
    return [change]


def feed(
    collector: Collector[Any],
    story: Iterable[Transaction],
    *,
    after: int = 0,
    fragment: int = 1_000,
    more: bool = False,
) -> None:
    """Replay what lies past the boundary `after`, in fragments of so many changes."""
    for transaction in story:
        if transaction.boundary > after:
            collector.begin(transaction.position, f"tx{transaction.position}")
            for start in range(0, len(transaction.changes), fragment):
                collector.changes(transaction.changes[start : start + fragment])
            collector.commit(transaction.boundary, more=more)


def stored(objects: Any) -> dict[tuple[str, int], list[logstore.Record]]:
    """What a fresh process finds in the object store."""
    found = {}
    with logstore.open(objects, writer="read_only") as store:
        for name in store.topics():
            if name.startswith(PREFIX):
                continue  # the source's own notes
            topic = store.topic(name)
            for partition in range(topic.partitions):
                records = list(topic.partition(partition).records(visibility="durable"))
                if records:
                    found[name, partition] = records
    return found


def position_of(record: logstore.Record) -> tuple[int, int]:
    """Where the source had it: the transaction, and its place in it."""
    position = dict(record.headers)["source-position"]
    assert position is not None
    _, transaction, ordinal = position.decode().split("/")
    return int(transaction), int(ordinal)


def values(objects: Any) -> dict[str, list[bytes]]:
    """The values of each topic in source order."""
    found: dict[str, list[tuple[tuple[int, int], bytes]]] = {}
    for (name, _), records in stored(objects).items():
        for record in records:
            assert record.value is not None
            found.setdefault(name, []).append((position_of(record), record.value))
    return {name: [value for _, value in sorted(pairs)] for name, pairs in found.items()}


def expected(story: Iterable[Transaction]) -> dict[str, list[bytes]]:
    wanted: dict[str, list[bytes]] = {}
    for transaction in story:
        for table, _, value in transaction.changes:
            wanted.setdefault(table, []).append(value)
    return wanted


@dataclass
class Reports:
    """`on_flushed` that remembers, and lets a test wait for a boundary instead of sleeping."""

    seen: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, boundary: int) -> None:
        with self.changed:
            self.seen.append(boundary)
            self.changed.notify_all()

    def wait_for(self, boundary: int, timeout: float = 20.0) -> None:
        with self.changed:
            reached = self.changed.wait_for(lambda: self.seen and self.seen[-1] >= boundary, timeout)
        assert reached, f"{boundary} was never reported: {self.seen}"


@contextmanager
def collecting(
    objects: Any,
    reports: Callable[[int], object],
    start: int = 0,
    *,
    routing: Callable[[Any], Iterable[tuple[Any, ...]]] = route,
    lanes: int = 1,
    **settings: Any,
) -> Iterator[Collector[Any]]:
    """A collector over a store of its own, closed in order."""
    with logstore.open(objects, flush_interval=0.01, lanes=lanes) as store:
        collector: Collector[Any] = Collector(
            store, routing, reports, start=start, partitions=PARTITIONS, **settings
        )
        try:
            yield collector
        finally:
            collector.close()


@contextmanager
def crashing(
    objects: Any, reports: Callable[[int], object], start: int = 0, *, lanes: int = 1, **settings: Any
) -> Iterator[Collector[Any]]:
    """The same, but at the end the process is gone: nothing of it reaches the object store any more."""
    link = FaultyStore(objects, seed=0)
    store = logstore.open(link, flush_interval=0.01, lanes=lanes)
    collector: Collector[Any] = Collector(
        store, route, reports, start=start, partitions=PARTITIONS, **settings
    )
    try:
        yield collector
    finally:
        link.down()
        collector.close()
        with suppress(OutcomeUnknown):
            store.close(timeout=0)
