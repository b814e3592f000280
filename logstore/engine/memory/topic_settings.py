"""A topic's settings as this process last saw them: one object for all its open partitions, so that a change reaches all.

A change made here is seen at once. One made elsewhere is seen when the topic is asked for again, and with each checkpoint
of a partition that is written here, before anything is merged or expired: `refresh` asks the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from logstore.config import TopicConfig


class TopicLimits(Protocol):
    """What a partition is kept to: a `TopicConfig`, or one that may change."""

    @property
    def retention_seconds(self) -> float | None: ...
    @property
    def retention_bytes(self) -> int | None: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def compact(self) -> bool: ...
    @property
    def tombstone_seconds(self) -> float: ...
    @property
    def compact_after_seconds(self) -> float: ...
    @property
    def compact_within_seconds(self) -> float | None: ...
    @property
    def dirty_ratio(self) -> float: ...


class TopicSettings:
    """Read without a lock: a reference to an object that does not change is replaced by another. `learn` is called with the
    store's lock held; `look` asks the store and calls `learn`."""

    def __init__(self, config: TopicConfig, revision: int, look: Callable[[], None]) -> None:
        self._config = config
        self._revision = revision
        self.refresh = look

    def learn(self, config: TopicConfig, revision: int) -> None:
        """What was read before another change was made is not believed after it."""
        if revision > self._revision:
            self._config, self._revision = config, revision

    @property
    def retention_seconds(self) -> float | None:
        return self._config.retention_seconds

    @property
    def retention_bytes(self) -> int | None:
        return self._config.retention_bytes

    @property
    def segment_bytes(self) -> int:
        return self._config.segment_bytes

    @property
    def compact(self) -> bool:
        return self._config.compact

    @property
    def tombstone_seconds(self) -> float:
        return self._config.tombstone_seconds

    @property
    def compact_after_seconds(self) -> float:
        return self._config.compact_after_seconds

    @property
    def compact_within_seconds(self) -> float | None:
        return self._config.compact_within_seconds

    @property
    def dirty_ratio(self) -> float:
        return self._config.dirty_ratio
