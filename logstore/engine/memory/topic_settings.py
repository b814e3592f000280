"""A topic's settings as this process last saw them: one object for all its open partitions, so that a change reaches all.

A change made here is seen at once. One made elsewhere is seen when the topic is asked for again, and with each checkpoint
of a partition that is written here, before anything is merged or expired: `refresh` asks the store.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.config import TopicConfig


class TopicSettings:
    """`config` is read without a lock: it does not change, and is replaced by another as a whole. `learn` is called with the
    store's lock held; `refresh` asks the store and calls `learn`."""

    __slots__ = ("_revision", "config", "refresh")

    def __init__(self, config: TopicConfig, revision: int, refresh: Callable[[], None]) -> None:
        self.config = config
        self.refresh = refresh
        self._revision = revision

    def learn(self, config: TopicConfig, revision: int) -> None:
        """What was read before another change was made is not believed after it."""
        if revision > self._revision:
            self.config, self._revision = config, revision
