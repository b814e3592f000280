"""Delete objects that were replaced or expired longer ago than the grace period. --dry-run only lists them."""

from __future__ import annotations

import argparse
import time

from logstore.cli.output import Output
from logstore.cli.places import add_topic, chosen, open_store
from logstore.config import StoreConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, optional=True)
    parser.add_argument("--dry-run", action="store_true", help="list what would go, delete nothing")
    parser.add_argument("--grace", type=float, metavar="SECONDS", default=StoreConfig().delete_grace)


def run(args: argparse.Namespace, out: Output) -> int:
    now_ms = time.time_ns() // 1_000_000
    with open_store(args, writer="read_only", delete_grace=args.grace) as store:
        rows = []
        for name in [args.topic] if args.topic else store.topics():
            for log in chosen(store.topic(name), None):
                upkeep = log.maintenance
                found = upkeep.garbage(now_ms) if args.dry_run else upkeep.collect(now_ms)
                rows += [{"key": item.key, "bytes": item.size, "deleted": not args.dry_run} for item in found]
        out.table(rows)
    return 0
