"""What requests that were counted have cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from logstore.cost.prices import Prices


class Counted(Protocol):
    """What `Store.metrics()` says of one operation."""

    @property
    def requests(self) -> int: ...
    @property
    def bytes(self) -> int: ...


def dollars_so_far(counted: Mapping[str, Counted], prices: Prices) -> dict[str, float]:
    """By operation; storage is not in it."""
    return {
        operation: prices.of(operation, stats.requests, stats.bytes) for operation, stats in counted.items()
    }
