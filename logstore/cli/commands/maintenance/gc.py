"""Delete objects that nobody needs any more. --dry-run only lists them.

Those that were replaced or expired longer ago than the grace period, what an interrupted `logstore delete` has left, and, if
no topic is named, what Spark jobs that died have staged. A grace period that is shorter than a task of a Spark job that
writes takes away what that job needs.
"""

from __future__ import annotations

import argparse

from logstore.cli.places import add_topic, open_store, topic_named
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import duration, shown_size
from logstore.cli.terminal.usage import Interrupted
from logstore.config import StoreConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, optional=True)
    parser.add_argument("--dry-run", action="store_true", help="list what would go, delete nothing")
    parser.add_argument(
        "--grace",
        type=duration,
        metavar="TIME",
        default=StoreConfig().delete_grace,
        help="what was replaced so long ago goes: 1d (default), 12h, or seconds",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only", delete_grace=args.grace) as store:
        what = "looking for garbage" if args.dry_run else "collecting garbage"
        with topic_named(store, args.topic), out.progress(what, unit="objects") as progress:
            try:
                found = store.collect_garbage(
                    args.topic, dry_run=args.dry_run, report=lambda some: progress.advance(len(some))
                )
            except KeyboardInterrupt:
                raise Interrupted(
                    f"{progress.records:,} objects were found; run it again for the rest"
                    if args.dry_run
                    else f"{progress.records:,} objects were deleted, perhaps some more; run it again for the rest"
                ) from None
        progress.summary(f"{len(found):,} objects, {shown_size(sum(item.size for item in found))}")
        out.table([{"key": item.key, "bytes": item.size, "deleted": not args.dry_run} for item in found])
    return 0
