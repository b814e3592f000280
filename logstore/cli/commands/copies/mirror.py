"""Keep a copy of a topic in another store up to date, until interrupted: `cp` that goes on.

It looks for what is new every --every. What is stored there is as old as that, plus one upload.
"""

from __future__ import annotations

import argparse
import threading

from logstore.cli.copying import add_copy_arguments, interrupted, open_copy, open_target
from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import period
from logstore.cli.terminal.usage import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_copy_arguments(parser)
    parser.add_argument("--every", type=period, default=1.0, metavar="TIME", help="how often (default: 1s)")
    parser.add_argument("--rounds", type=positive, metavar="N", help="end after so many")


def run(args: argparse.Namespace, out: Output) -> int:
    pause = threading.Event()  # nobody sets it: a wait that Ctrl-C ends
    with open_store(args, writer="read_only") as source, open_target(args) as target:
        copy = open_copy(args, source, target)
        with out.progress(f"mirroring {args.topic}") as progress:
            try:
                done = 0
                while args.rounds is None or done < args.rounds:
                    if done:
                        pause.wait(args.every)
                    count = copy.run_once(progress)
                    done += 1
                    if count:
                        fields = {"topic": args.topic, "records": count, "total": sum(copy.copied)}
                        out.row(fields, f"{count:,} records, {sum(copy.copied):,} in all")
                        out.flush()
            except KeyboardInterrupt:
                raise interrupted(copy) from None
    return 0
