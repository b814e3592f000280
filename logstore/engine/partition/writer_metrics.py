"""One writer in numbers, the same for every kind: what a dashboard shows and an alert looks at.

Made of what `PartitionLog.health()` is made of, so that the two never disagree.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.write.writer_health import WriterHealth


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

    @classmethod
    def of(cls, topic: str, partition: int, writer: WriterHealth) -> WriterMetrics:
        is_replicated = writer.mode == "replicated"
        return cls(
            topic=topic,
            partition=partition,
            writer=writer.writer_id,
            mode=writer.mode,
            state=writer.state,
            epoch=writer.epoch,
            frontier=writer.frontier,
            lag=writer.lag,
            dropped_below_upper=writer.dropped_below_upper,
            races_lost=writer.races_lost,
            last_progress_seconds_ago=writer.last_progress_seconds_ago,
            stalled_at=writer.held_at_source_offset if is_replicated else writer.held_at_offset,
        )
