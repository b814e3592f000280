"""What an operator wants to see of a partition and of a store, from memory alone: it asks nobody.

Typed inside; `as_dict` is what `health()` gives to callers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logstore.engine.memory.partition_state import Overview
from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_health import WriterHealth
from logstore.objects.wrappers.metered import MeteredStore

DEGRADED_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition. `overview` is None until it is loaded; `writer` is the one that `append` uses, if there is one."""

    topic: str
    partition: int
    overview: Overview | None = None
    writer: WriterHealth | None = None
    replicated: tuple[WriterHealth, ...] = ()

    @property
    def state(self) -> str:
        """not loaded, reading, or that of the writer."""
        if self.writer is not None:
            return self.writer.state
        return "not loaded" if self.overview is None else "reading"

    def as_dict(self) -> dict[str, Any]:
        """`unconfirmed`: see `PartitionState.unconfirmed`."""
        told: dict[str, Any] = {"topic": self.topic, "partition": self.partition, "state": self.state}
        if self.overview is not None:
            marks = self.overview.marks
            told |= {
                "epoch": self.overview.epoch,
                "low_watermark": marks.low,
                "durable_high_watermark": marks.durable,
                "buffered_high_watermark": marks.buffered,
                "unconfirmed": self.overview.unconfirmed,
                "segments": self.overview.segments,
            }
        if self.writer is not None:
            told |= self.writer.as_dict()
        if self.replicated:
            told["replicated"] = [writer.as_dict() for writer in self.replicated]
        return told

    def writer_metrics(self) -> Iterator[WriterMetrics]:
        """Its writers, in numbers."""
        for writer in (*(() if self.writer is None else (self.writer,)), *self.replicated):
            yield WriterMetrics.of(self.topic, self.partition, writer)


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """A store. `unanswered_seconds`: for how long the oldest upload under way has had no answer; None if none is.
    `stalled`: whether that is longer than `stall_after`. `degraded`: why it serves badly, in words, or None."""

    closed: bool
    store_reachable: bool
    unanswered_seconds: float | None
    stalled: bool
    failures_in_a_row: int
    buffered_bytes: int
    buffered_bytes_limit: int
    cached_bytes: int
    partitions: list[PartitionHealth]
    degraded: str | None = None

    @classmethod
    def of(
        cls, runtime: Runtime, metered: MeteredStore, partitions: list[PartitionHealth], *, closed: bool
    ) -> StoreHealth:
        """As it is now."""
        since = runtime.watch.oldest()
        waited = None if since is None else round(runtime.clock.monotonic() - since, 3)
        stalled = waited is not None and waited > runtime.config.stall_after
        silent = stalled and since is not None and runtime.breaker.answered_at <= since
        return cls(
            closed=closed,
            store_reachable=not runtime.breaker.is_open and not silent,
            unanswered_seconds=waited,
            stalled=stalled,
            failures_in_a_row=runtime.breaker.failures,
            buffered_bytes=runtime.budget.used,
            buffered_bytes_limit=runtime.budget.limit,
            cached_bytes=runtime.cache.used,
            partitions=partitions,
            degraded=_degraded(runtime, metered),
        )

    def as_dict(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__slots__}
        return told | {"partitions": [partition.as_dict() for partition in self.partitions]}


def _degraded(runtime: Runtime, metered: MeteredStore) -> str | None:
    """Why the store serves badly, in words; None if it does not."""
    if runtime.breaker.is_open:
        failed, every = runtime.breaker.failures, runtime.config.probe_interval
        return f"{failed} uploads in a row have failed; it is tried every {every:g} s"
    oldest = metered.oldest()
    if oldest is None or oldest[2] <= DEGRADED_AFTER_S:
        return None
    operation, key, seconds = oldest
    return f"{operation} {key} has had no answer for {seconds:.1f} s"
