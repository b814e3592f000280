"""Show the watermarks of each partition: low and durable, what is unconfirmed, and what was lost.

Unconfirmed: what may have been acked past `durable` and is not stored; its writer may still store it, or be dead. Lost: at
most so much."""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.places import add_partition, add_topic, chosen, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import moment_ms
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.partition.many_partitions import load
from logstore.engine.partition.partition_log import PartitionLog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)
    parser.add_argument(
        "--at",
        type=moment_ms,
        metavar="TIME",
        help="also the first offset at or after 2026-11-17T12:00, -1h, or MS",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        rows = []
        logs = chosen(find_topic(store, args.topic), args.partition)
        load(log._internal for log in logs)
        for log in logs:
            row: dict[str, Any] = {
                "partition": log.partition,
                "low": log.low_watermark,
                "durable": log.durable_high_watermark,
                "epoch": log._internal.epoch,
                "unconfirmed": _shown(_unconfirmed(log), out),
                "lost": _shown(log.lost_ranges(), out),
            }
            if args.at is not None:
                found = log.offset_for_timestamp(args.at)
                row["at"] = "-" if found is None and not out.as_json else found
            rows.append(row)
        out.table(rows)
    return 0


def _unconfirmed(log: PartitionLog) -> list[LostRange]:
    unconfirmed = log.unconfirmed()
    return [] if unconfirmed is None else [unconfirmed]


def _shown(ranges: list[LostRange], out: Output) -> object:
    if out.as_json:
        return [each._asdict() for each in ranges]
    return ", ".join(f"at most {end - start}: {start}-{end - 1}" for start, end in ranges) or "none"
