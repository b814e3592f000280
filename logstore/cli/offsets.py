"""Show the marks of each partition: low, durable, and what was lost."""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.output import Output
from logstore.cli.places import add_partition, add_topic, chosen, find_topic, open_store
from logstore.engine.segments import LostRange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)
    parser.add_argument("--at", type=int, metavar="MS", help="also the first offset at or after this time")


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        rows = []
        for log in chosen(find_topic(store, args.topic), args.partition):
            row: dict[str, Any] = {
                "partition": log.partition,
                "low": log.low_watermark,
                "durable": log.durable_high_watermark,
                "epoch": log.epoch,
                "lost": [lost._asdict() for lost in log.lost_ranges()]
                if out.as_json
                else _words(log.lost_ranges()),
            }
            if args.at is not None:
                row["at"] = log.offset_for_timestamp(args.at)
            rows.append(row)
        out.table(rows)
    return 0


def _words(lost: list[LostRange]) -> str:
    return ", ".join(f"{start}-{end - 1}" for start, end in lost) or "none"
