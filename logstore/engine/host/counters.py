"""What an open store counts of its partitions, and whom it tells of a flush.

Counting costs an append nothing: how many records and bytes were taken follows from what is stored and what is still held,
which a scrape asks for (`logstore.metrics`). What changes here changes once for each flush, fsync or failure. The counts of
a partition outlive its writer: one that is reopened goes on counting, as a counter should.

`Observer` is for those who must be told instead of asking: histograms of OpenTelemetry, and traces. The one there is by
default does nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.objects.wrappers.metered import LATENCY_BOUNDS_S


class Histogram:
    """How often something took how long: `counts` by `LATENCY_BOUNDS_S`, and a last one for the rest. Guarded by whoever
    owns it."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True, eq=False)
class PartitionCounters:
    """Of one partition, over all its writers in this process. Guarded by the partition's lock.

    `stored_…`: what flushes of ours have committed; `charged` is what the records took in the buffer, `bytes` what their
    objects take in the store. `dropped_…`: what a writer held when it stopped for good. `durable_records` and
    `local_records`: of what was appended, how much asked for that ack.
    """

    flushes: int = 0
    stored_records: int = 0
    stored_bytes: int = 0
    stored_charged: int = 0
    dropped_records: int = 0
    dropped_charged: int = 0
    durable_records: int = 0
    local_records: int = 0
    failures: int = 0
    fenced: int = 0
    races_lost: int = 0
    flush_seconds: Histogram = field(default_factory=Histogram)
    durable_ack: Histogram = field(default_factory=Histogram)
    local_ack: Histogram = field(default_factory=Histogram)

    def flushed(self, done: FlushDone) -> None:
        """A segment of ours was committed."""
        self.flushes += 1
        self.stored_records += done.end_offset - done.base_offset
        self.stored_bytes += done.size
        self.stored_charged += done.charged
        if done.seconds is not None:
            self.flush_seconds.observe(done.seconds)
        if done.waited is not None:
            self.durable_ack.observe(done.waited)


class FlushDone(NamedTuple):
    """One committed segment. `seconds`: from the start of its upload. `waited`: since its oldest record was appended.
    Each is None if it is not known: the answer was lost, or it holds no record."""

    base_offset: int
    end_offset: int
    size: int
    charged: int
    seconds: float | None
    waited: float | None


class Counters:
    """The counts of all partitions of a store, by topic and number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the map; never held with another lock
        self._partitions: dict[tuple[str, int], PartitionCounters] = {}

    def of(self, topic: str, partition: int) -> PartitionCounters:
        with self._lock:
            return self._partitions.setdefault((topic, partition), PartitionCounters())

    def all(self) -> Iterator[tuple[str, int, PartitionCounters]]:
        with self._lock:
            known = list(self._partitions.items())
        for (topic, partition), counted in known:
            yield topic, partition, counted

    def forget(self, topic: str) -> None:
        """It was deleted."""
        with self._lock:
            for place in [place for place in self._partitions if place[0] == topic]:
                del self._partitions[place]


class Flush:
    """An upload under way, as an observer sees it: one of these is called before it ends, unless an exception ends it."""

    def done(self, flushed: FlushDone) -> None:
        """It is committed."""

    def failed(self, error: Exception) -> None:
        """It is not, and is tried again, or its writer has stopped."""


UNOBSERVED = Flush()
"""Nobody listens."""
_UNOBSERVED = nullcontext(UNOBSERVED)


class Observer:
    """Whom a store tells. Methods run on the threads that do the work, with no lock held, and must be quick."""

    def opened(self, partition: object) -> None:
        """A partition is used for the first time, or was reopened."""

    def flush(self, topic: str, partition: int) -> AbstractContextManager[Flush]:
        """Around one upload."""
        return _UNOBSERVED

    def flush_entry(self, key: str) -> AbstractContextManager[Flush]:
        """Around one upload of a lane's entry, for many partitions."""
        return _UNOBSERVED

    def stored(self, topic: str, partition: int, done: FlushDone, slice_key: str | None = None) -> None:
        """A segment was committed; `slice_key`: as this slice of a lane's entry."""

    def local_ack(self, topic: str, partition: int, seconds: float) -> None:
        """Local acks were given, and so long did the oldest append wait for its own."""
