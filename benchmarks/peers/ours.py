"""logstore itself, as one of the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import logstore
from benchmarks.material import Row
from logstore.config import Ack

LEVELS = {
    "buffered": "in this process",
    "local": "on this disk, fsynced",
    "durable": "in the object store",
}

_KEY_AND_VALUE = itemgetter(1, 0)


class Ours:
    def __init__(self, topic: logstore.Topic, ack: Ack, level: str) -> None:
        self.level = level
        self.log = topic.partition(0)
        self._topic = topic
        self._ack = ack

    def append(self, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            ((key, value),) = rows
            self._topic.append(value, key=key, ack=self._ack)
            return
        self.log.append([logstore.Record(value, key) for key, value in rows], ack=self._ack)

    def scan(self) -> Iterator[Row]:
        return map(_KEY_AND_VALUE, self.log.records())


@contextmanager
def opened(where: Any, ack: Ack, level: str | None = None, **settings: Any) -> Iterator[Ours]:
    """Values cannot be compressed, and no peer tries: neither do we."""
    with logstore.open(where, compression="none", **settings) as store:
        yield Ours(store.create_topic("t"), ack, level or LEVELS[ack])
