"""What an operator wants to see of a partition, from memory alone: it asks nobody."""

from __future__ import annotations

from typing import Any

from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_protocol import Writer
from logstore.layout.paths import PartitionPaths


def partition_health(
    paths: PartitionPaths, state: PartitionState | None, writer: Writer | None, runtime: Runtime
) -> dict[str, Any]:
    """`told`: not loaded, reading, writing, stalled (holds data and makes no progress), stopped (fenced, for good).

    `unanswered_seconds`: for how long the upload that is under way has had no answer, also after attempts that failed; None
    if none is. `unconfirmed`: see `PartitionState.unconfirmed`.
    """
    told: dict[str, Any] = {"topic": paths.topic, "partition": paths.partition, "state": "not loaded"}
    if state is None:
        return told
    with state.writers_lock()[0]:
        told |= {
            "state": "reading",
            "epoch": state.tail.epoch,
            "low_watermark": state.low,
            "durable_high_watermark": state.durable,
            "buffered_high_watermark": state.buffered,
            "unconfirmed": state._unconfirmed(),
            "segments": len(state.segments),
        }
        if writer is None:
            return told
        held = writer.failed is None and writer.next_offset > state.durable
        idle = runtime.clock.monotonic() - writer.stats.last_progress_at
        stalled = held and runtime.watch.is_late(writer)
        told |= {
            "state": "stopped" if writer.failed else "stalled" if stalled else "writing",
            "next_offset": writer.next_offset,
            "unflushed_records": writer.next_offset - state.durable if held else 0,
            "upload_failures": writer.stats.failures,
            "last_error": writer.stats.last_error,
            "last_progress_seconds_ago": round(idle, 3),
            "held_at_offset": state.durable if stalled else None,
        } | writer.health()
        return told | {
            "stalled": told["state"] == "stalled",
            "unanswered_seconds": runtime.watch.seconds(writer),
        }
