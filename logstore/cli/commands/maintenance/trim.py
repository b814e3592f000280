"""Delete the records of a partition before an offset. There is no way back.

The log begins there at once, also for a writer that runs elsewhere once it has written its next checkpoint; the objects are
deleted by `logstore gc` after the grace period.
"""

from __future__ import annotations

import argparse

from logstore.cli.places import add_topic, chosen, find_topic, open_existing, start_offset
from logstore.cli.terminal.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("-p", "--partition", type=int, required=True, help="of this partition")
    parser.add_argument(
        "--before",
        required=True,
        help="an offset, end, -N (keep the last N), -7d (keep a week), @2026-11-17 or @MILLISECONDS",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can answer")


def run(args: argparse.Namespace, out: Output) -> int:
    with open_existing(args) as store:
        (log,) = chosen(find_topic(store, args.topic), args.partition)
        before = start_offset(log, args.before, "--before")
        out.confirmed(f"this deletes the records of {log._internal.paths} before offset {before}", args.yes)
        low = log.delete_before(before)
        fields = {"topic": log.topic, "partition": log.partition, "low": low}
        out.row(fields, f"{log._internal.paths}: begins at offset {low}")
    return 0
