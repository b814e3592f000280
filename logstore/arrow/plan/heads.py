"""Where the partitions of a stream end right now: loaded once, then followed with one small request each.

Spark asks many times a second, so an answer is good for `poll_interval_s`. Topics and partitions that come later
are found at the next look. Once a minute, or after many segments, the manifest is asked again: maintenance replaces old
segments, and what was remembered of them would only grow. Where it deletes them soon, the very next one may be gone before
we came to it: then only the manifest knows that the log goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from logstore.arrow.plan.committed import CommittedEnds
from logstore.arrow.plan.log_partitions import LogPartition, load, side_by_side, subscribed
from logstore.arrow.plan.rate import Key
from logstore.arrow.plan.request import Subscription
from logstore.config import Stored
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore

RELOAD_AFTER_SEGMENTS = 512
RELOAD_AFTER_S = 60.0


@dataclass(slots=True)
class _Followed:
    partition: LogPartition
    loaded_seq: int

    @classmethod
    def of(cls, partition: LogPartition) -> _Followed:
        return cls(partition, partition.view.tail.next_seq)


class Heads:
    """Not for threads: Spark asks from one. `missing_ok`: a topic that is named and was deleted is left out."""

    def __init__(
        self,
        store: ObjectStore,
        wanted: Subscription,
        poll_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        missing_ok: bool = False,
        visibility: Stored = "durable",
    ) -> None:
        self._committed = CommittedEnds() if visibility == "committed" else None
        self._store = store
        self._lanes = LaneReader(store, max_age=math.inf)
        self._wanted = wanted
        self._poll_interval_s = poll_interval_s
        self._clock = clock
        self._missing_ok = missing_ok
        self._followed: dict[Key, _Followed] = {}
        self._looked_at = self._loaded_at = float("-inf")

    def current(self) -> dict[Key, LogPartition]:
        """The partitions and their ends, at most `poll_interval_s` old."""
        now = self._clock()
        if now - self._looked_at >= self._poll_interval_s:
            everything = now - self._loaded_at >= RELOAD_AFTER_S
            self._look(everything)
            self._looked_at = self._clock()
            if everything:
                self._loaded_at = self._looked_at
        return {key: followed.partition for key, followed in self._followed.items()}

    def covering(self, ends: Iterable[tuple[Key, int]]) -> dict[Key, LogPartition]:
        """The partitions, looked at again if one is not known to reach as far as it must."""
        known = self.current()
        if any(key not in known or known[key].end < end for key, end in ends):
            self._looked_at = self._loaded_at = float("-inf")
            known = self.current()
        return known

    def _look(self, everything: bool) -> None:
        wanted = subscribed(self._store, self._wanted, missing_ok=self._missing_ok)
        known = [] if everything else [paths for paths in wanted if self._is_known(paths)]
        old = {_key(paths): self._followed[_key(paths)] for paths in known}
        self._lanes.expire()  # each lane is read once for all partitions
        side_by_side(self._follow, old.values())
        rest = [paths for paths in wanted if _key(paths) not in old]
        loaded = load(self._store, rest, missing_ok=self._missing_ok)
        new = {_key(part.paths): _Followed.of(part) for part in loaded}
        both = old | new
        if self._committed is not None:
            self._committed.look(self._store, [followed.partition for followed in both.values()])
        self._followed = {key: both[key] for key in map(_key, wanted) if key in both}

    def _is_known(self, paths: PartitionPaths) -> bool:
        """The very same partition: one of a topic that was recreated is another."""
        followed = self._followed.get(_key(paths))
        return followed is not None and followed.partition.paths == paths

    def _follow(self, followed: _Followed) -> None:
        followed.partition.follow(self._store, self._lanes)
        if followed.partition.view.tail.next_seq - followed.loaded_seq >= RELOAD_AFTER_SEGMENTS:
            followed.partition.reload(self._store, self._lanes)
            followed.loaded_seq = followed.partition.view.tail.next_seq


def _key(paths: PartitionPaths) -> Key:
    return paths.topic, paths.partition
