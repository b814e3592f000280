"""What an operator wants to see of a partition and of a store, from memory alone: it asks nobody.

Typed inside; `as_dict` is what `health()` gives to callers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logstore.engine.memory.partition_state import Overview
from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.engine.write.writer_health import WriterHealth


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

    def as_dict(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__slots__}
        return told | {"partitions": [partition.as_dict() for partition in self.partitions]}
