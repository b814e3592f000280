"""One writer in numbers, the same for every kind: what a dashboard shows and an alert looks at.

Read out of what `PartitionLog.health()` says, so that the two never disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class WriterMetrics(NamedTuple):
    """`frontier`: up to where the partition is written as this writer has seen it, an offset; for a replicated writer, whose
    input has offsets of its own, a source offset. `lag`: by how much the partition's upper is ahead, of the frontier, or of
    what a replicated writer was fed. `stalled_at`: the offset that holds it, of the same kind as the frontier; None while it
    moves or has nothing to do."""

    topic: str
    partition: int
    writer: str
    mode: str
    state: str
    epoch: int
    frontier: int
    lag: int
    dropped_below_upper: int
    races_lost: int
    last_progress_seconds_ago: float
    stalled_at: int | None


def writers_of(health: dict[str, Any]) -> Iterator[WriterMetrics]:
    """The writers in one partition's `health()`."""
    if "mode" in health:
        yield _metrics(health, health)
    for replicated in health.get("replicated", ()):
        yield _metrics(health, replicated)


def _metrics(partition: dict[str, Any], writer: dict[str, Any]) -> WriterMetrics:
    return WriterMetrics(
        topic=partition["topic"],
        partition=partition["partition"],
        writer=writer.get("writer_id", ""),
        mode=writer["mode"],
        state=writer["state"],
        epoch=writer["epoch"],
        frontier=writer.get("frontier", partition["durable_high_watermark"]),
        lag=writer.get("lag", 0),
        dropped_below_upper=writer.get("dropped_below_upper", 0),
        races_lost=writer.get("races_lost", 0),
        last_progress_seconds_ago=writer["last_progress_seconds_ago"],
        stalled_at=writer.get("held_at_source_offset", writer.get("held_at_offset")),
    )
