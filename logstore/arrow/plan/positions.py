"""Where a read starts and ends, as Spark's Kafka source lets people say it.

The JSON is Kafka's: `{"orders": {"0": 23, "1": -2}}`, with −2 for the earliest and −1 for the latest offset.
Unlike Kafka's source, a partial one is allowed: a partition that is not named starts at its earliest and ends at
its latest offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

EARLIEST = -2
LATEST = -1

Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range. `timestamp_ms` wins over `timestamps_ms`, that over `offsets`, and `default` is for the rest."""

    default: int
    offsets: Mapping[str, Mapping[int, int]] | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] | None = None
    timestamp_ms: int | None = None

    @property
    def has_timestamps(self) -> bool:
        return self.timestamp_ms is not None or bool(self.timestamps_ms)

    def timestamp_of(self, topic: str, partition: int) -> int | None:
        """The timestamp that decides for this partition, if one does."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        if self.timestamps_ms is not None:
            return self.timestamps_ms.get(topic, {}).get(partition)
        return None

    def offset_of(self, topic: str, partition: int) -> int:
        """The offset for this partition, or `EARLIEST` or `LATEST`; only where no timestamp decides."""
        if self.timestamps_ms is not None or self.offsets is None:
            return self.default
        return self.offsets.get(topic, {}).get(partition, self.default)

    def named(self) -> Iterable[tuple[str, int]]:
        """The partitions that the bound names: a read must know all of them."""
        for given in (self.offsets, self.timestamps_ms):
            for topic, partitions in (given or {}).items():
                for partition in partitions:
                    yield topic, partition


def parse_map(name: str, text: str, *, lowest: int) -> Offsets:
    """`{"topic": {"partition": number}}`, every number at least `lowest`."""
    example = '{"orders": {"0": 23, "1": -2}}' if lowest < 0 else '{"orders": {"0": 1700000000000}}'
    wrong = f"{name}={text[:200]!r} is not of the form {example}"
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wrong}: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(wrong)
    found: Offsets = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, dict):
            raise ValueError(wrong)
        found[topic] = {_partition(wrong, key): _number(wrong, n, lowest) for key, n in partitions.items()}
    return found


def _partition(wrong: str, key: str) -> int:
    if not key.isascii() or not key.isdigit():
        raise ValueError(f"{wrong}: {key!r} is no partition number")
    return int(key)


def _number(wrong: str, value: object, lowest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ValueError(f"{wrong}: {value!r} must be a whole number, at least {lowest}")
    return value


def to_json(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """As Spark keeps it: in one order always, because it compares offsets as text."""
    return {
        topic: {str(partition): offsets[topic][partition] for partition in sorted(offsets[topic])}
        for topic in sorted(offsets)
    }


def from_json(offsets: Mapping[str, Any]) -> Offsets:
    """What `to_json` made, after Spark has kept it."""
    return {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in offsets.items()
    }
