"""Compaction: merge small segments of a topic into larger ones, and apply its retention.

Safe beside a running writer. The replaced objects stay until `logstore gc` deletes them after the grace period.
"""

from __future__ import annotations

import argparse
import os
import time

from logstore.cli.output import Output
from logstore.cli.places import add_topic, chosen, find_topic, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        for log in chosen(find_topic(store, args.topic), None):
            now_ms = time.time_ns() // 1_000_000
            low, merged = log._internal.maintenance.expire(now_ms), 0
            while (count := log._internal.maintenance.compact(now_ms, os.urandom(16))) > 0:
                merged += count
            fields = {"topic": log.topic, "partition": log.partition, "merged_segments": merged, "low": low}
            out.row(fields, f"{log.topic}/{log.partition}: merged {merged} segments, begins at offset {low}")
    return 0
