"""Apply retention, merge small segments, compact by key where a topic has that, and delete what nobody needs, for all
topics: also those that nobody writes.

A writer does the first two for its own partitions now and then; an idle topic keeps its records until somebody runs
this. Safe beside writers and readers, and beside another one of itself. With --every it goes on until interrupted; a
round that fails is said, and the next one tries again.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import logstore
from logstore.cli.commands.maintenance.compact import compact_log
from logstore.cli.places import add_topic, chosen, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import duration, period, shown_duration
from logstore.cli.terminal.usage import Interrupted, positive
from logstore.config import StoreConfig
from logstore.errors import LogStoreError, UnknownTopic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, optional=True)
    parser.add_argument("--every", type=period, metavar="TIME", help="again and again: 1h; without it, once")
    parser.add_argument(
        "--grace",
        type=duration,
        metavar="TIME",
        default=StoreConfig().delete_grace,
        help="what was replaced so long ago is deleted: 1d (default), 12h",
    )
    parser.add_argument("--rounds", type=positive, metavar="N", help="end after so many")


def run(args: argparse.Namespace, out: Output) -> int:
    pause = threading.Event()  # nobody sets it: a wait that Ctrl-C ends
    rounds, failed = 0, False
    try:
        while True:
            failed = not _round(args, out, forgiving=args.every is not None)
            out.flush()
            rounds += 1
            if args.every is None or rounds == args.rounds:
                return 1 if failed else 0
            pause.wait(args.every)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{rounds} rounds were completed; what the last one did stays, run it again"
        ) from None


def _round(args: argparse.Namespace, out: Output, *, forgiving: bool) -> bool:
    """Whether all went well. A store that is away does not end a service."""
    try:
        with open_store(args, writer="read_only", delete_grace=args.grace) as store:
            return _maintain(args, store, out)
    except (LogStoreError, OSError) as error:
        if not forgiving:
            raise
        print(
            f"logstore maintain: {type(error).__name__}: {error}; the next round is in "
            f"{shown_duration(args.every)}",
            file=sys.stderr,
        )
        return False


def _maintain(args: argparse.Namespace, store: logstore.Store, out: Output) -> bool:
    names = [args.topic] if args.topic else store.topics()
    began, merged, moved, partitions, problems, replaced = time.monotonic(), 0, 0, 0, 0, 0
    with out.progress("maintaining", unit="partitions") as progress:
        for name in names:
            try:
                for log in chosen(find_topic(store, name), None):
                    before = log.low_watermark
                    done = compact_log(log)
                    merged, replaced = merged + done.merged, replaced + done.records
                    moved, partitions = moved + done.low - before, partitions + 1
                    progress.advance(1, what=f"{name}/{log.partition}")
            except UnknownTopic:
                if args.topic:
                    raise
            except LogStoreError as error:  # one that is damaged does not keep the others from it
                problems += 1
                print(f"logstore maintain: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        gone = store.collect_garbage(args.topic)
    freed = sum(item.size for item in gone)
    fields = {
        "partitions": partitions,
        "merged_segments": merged,
        "compacted_records": replaced,
        "expired_offsets": moved,
        "deleted_objects": len(gone),
        "deleted_bytes": freed,
        "problems": problems,
        "seconds": round(time.monotonic() - began, 3),
    }
    left_out = f"left out {replaced:,} replaced records, " if replaced else ""
    out.row(
        fields,
        f"{partitions} partition(s): merged {merged} segments, {left_out}{moved} offsets expired, "
        f"deleted {len(gone)} objects of {freed} bytes",
    )
    return problems == 0
