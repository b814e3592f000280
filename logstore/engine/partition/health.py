"""What an operator wants to see of a partition, from memory alone: it asks nobody."""

from __future__ import annotations

from typing import Any

from logstore.engine.memory.partition_state import Tiers
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_protocol import Writer
from logstore.layout.paths import PartitionPaths


def partition_health(
    paths: PartitionPaths, tiers: Tiers | None, writer: Writer | None, runtime: Runtime
) -> dict[str, Any]:
    """`state`: not loaded, reading, writing, stalled (holds data and makes no progress), stopped (fenced, for good).

    `unanswered_seconds`: for how long the upload that is under way has had no answer, also after attempts that failed; None
    if none is. `unconfirmed`: see `Tiers.unconfirmed`.
    """
    state: dict[str, Any] = {"topic": paths.topic, "partition": paths.partition, "state": "not loaded"}
    if tiers is None:
        return state
    with tiers.lock:
        state |= {
            "state": "reading",
            "epoch": tiers.tail.epoch,
            "low_watermark": tiers.low,
            "durable_high_watermark": tiers.durable,
            "buffered_high_watermark": tiers.buffered,
            "unconfirmed": tiers.unconfirmed(),
            "segments": len(tiers.segments),
        }
        if writer is None:
            return state
        held = writer.failed is None and writer.next_offset > tiers.durable
        idle = runtime.clock.monotonic() - writer.stats.last_progress_at
        stalled = held and runtime.watch.is_late(writer)
        state |= {
            "state": "stopped" if writer.failed else "stalled" if stalled else "writing",
            "next_offset": writer.next_offset,
            "unflushed_records": writer.next_offset - tiers.durable if held else 0,
            "upload_failures": writer.stats.failures,
            "last_error": writer.stats.last_error,
            "last_progress_seconds_ago": round(idle, 3),
            "held_at_offset": tiers.durable if stalled else None,
        } | writer.health()
        return state | {
            "stalled": state["state"] == "stalled",
            "unanswered_seconds": runtime.watch.seconds(writer),
        }
