"""Compaction: merge small segments of a topic into larger ones, and apply its retention. Of a topic that was created
with --compact, keep the last record of each key.

Safe beside a running writer. The replaced objects stay until `logstore gc` deletes them after the grace period.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from logstore.cli.places import add_topic, chosen, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import Interrupted
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
                    done_here = compact_log(log, progress.advance)
                    fields = {
                        "topic": log.topic,
                        "partition": log.partition,
                        "merged_segments": done_here.merged,
                        "compacted_records": done_here.records,
                        "compacted_bytes": done_here.bytes,
                        "low": done_here.low,
                    }
                    left_out = f", left out {done_here.records:,} replaced records"
                    out.row(
                        fields,
                        f"{log.topic}/{log.partition}: merged {done_here.merged} segments"
                        f"{left_out if log._internal.is_compacted else ''}, begins at offset {done_here.low}",
                    )
                    done += 1
            except KeyboardInterrupt:
                raise Interrupted(
                    f"{done} of {len(logs)} partitions are done, and what was merged stays; run it again for the rest"
                ) from None
    return 0


class Compacted(NamedTuple):
    """The low watermark, how many segments were merged, how many records compaction by key has left out, and how many bytes
    fewer that makes."""

    low: int
    merged: int
    records: int
    bytes: int


def compact_log(log: PartitionLog, merged_some: Callable[[int], None] = lambda count: None) -> Compacted:
    """Apply retention, compact by key if the topic has that, then merge what can be."""
    now_ms = time.time_ns() // 1_000_000
    maintenance = log._internal.maintenance
    low, merged = maintenance.expire(now_ms), 0
    cleaned = maintenance.clean(now_ms)
    while (count := maintenance.compact(now_ms, os.urandom(16))) > 0:
        merged += count
        merged_some(count)
    return Compacted(low, merged, cleaned.records, cleaned.bytes_before - cleaned.bytes_after)
