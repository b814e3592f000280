"""Compaction: merge small segments of a topic into larger ones, and apply its retention. Of a topic that was created
with --compact, keep the last record of each key.

Safe beside a running writer. The replaced objects stay until `logstore gc` deletes them after the grace period.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from logstore.cli.places import add_topic, chosen, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import Interrupted
from logstore.engine.maintenance.cleaning import CleaningDone
from logstore.engine.partition.partition_log import PartitionLog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        logs = chosen(find_topic(store, args.topic), None)
        segments = sum(len(log.segments()) for log in logs)
        with out.progress(f"compacting {args.topic}", total=segments, unit="segments") as progress:
            done = 0
            try:
                for log in logs:
                    low, merged, cleaned = compact_log(log, progress.advance)
                    fields = {
                        "topic": log.topic,
                        "partition": log.partition,
                        "merged_segments": merged,
                        "compacted_records": cleaned.records,
                        "compacted_bytes": cleaned.bytes_before - cleaned.bytes_after,
                        "low": low,
                    }
                    removed = (
                        f", left out {cleaned.records:,} replaced records"
                        if log._internal.is_compacted
                        else ""
                    )
                    out.row(
                        fields,
                        f"{log.topic}/{log.partition}: merged {merged} segments{removed}, begins at offset {low}",
                    )
                    done += 1
            except KeyboardInterrupt:
                raise Interrupted(
                    f"{done} of {len(logs)} partitions are done, and what was merged stays; run it again for the rest"
                ) from None
    return 0


def compact_log(
    log: PartitionLog, merged_some: Callable[[int], None] = lambda count: None
) -> tuple[int, int, CleaningDone]:
    """Apply retention, then merge what can be, and compact by key. The low watermark, how many segments were merged, and
    what compaction by key has done."""
    now_ms = time.time_ns() // 1_000_000
    maintenance = log._internal.maintenance
    low, merged = maintenance.expire(now_ms), 0
    cleaned = maintenance.clean(now_ms)
    while (count := maintenance.compact(now_ms, os.urandom(16))) > 0:
        merged += count
        merged_some(count)
    return low, merged, cleaned
