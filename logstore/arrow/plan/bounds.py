"""What a query's filters leave of the log: topics, partitions, offsets and times, as far as an index can tell.

A bound is only ever wider than the filters that made it, so nothing is lost by pruning with it; Spark itself still
evaluates every filter on every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class Bounds:
    """None means any; ranges include `low` and leave out `high`."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_range: tuple[int, int] = (0, FOREVER)
    offset_range: tuple[int, int] = (0, FOREVER)
    timestamp_range_ms: tuple[int, int] = (-FOREVER, FOREVER)

    @property
    def bounds_time(self) -> bool:
        return self.timestamp_range_ms != (-FOREVER, FOREVER)

    def takes(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_range[0] <= partition < self.partition_range[1]
        )

    def of_partitions(self) -> Bounds:
        """What they say about whole partitions, and nothing else."""
        return Bounds(self.topics, self.partitions, self.partition_range)

    def takes_time(self, min_ms: int, max_ms: int) -> bool:
        """Whether records between these timestamps may pass."""
        low, high = self.timestamp_range_ms
        return max_ms >= low and min_ms < high


EVERYTHING = Bounds()
