"""What groups need of the store that they are opened from: `Store` itself lies above this room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from logstore.engine.runtime import Runtime
from logstore.topic import Topic


class Host(Protocol):
    """A `logstore.Store`."""

    @property
    def _runtime(self) -> Runtime: ...
    def topic(self, name: str) -> Topic:
        """The topic as it is now."""


def find_topics(host: Host, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Incarnation and number of partitions of each, as the store says now."""
    found = [host.topic(name)._internal.descriptor for name in names]
    return {each.name: (each.incarnation, each.partitions) for each in found}
