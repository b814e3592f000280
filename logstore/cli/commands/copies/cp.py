"""Copy a topic into another store, or under another name. Run again, it copies what has come since.

Keys, values, headers and timestamps are the same; offsets are, too, if the source begins at 0 and has lost nothing. What was
interrupted goes on exactly where it was: nothing is stored twice. A topic that holds anything but a copy is refused.
"""

from __future__ import annotations

import argparse

from logstore.cli.copying import add_copy_arguments, interrupted, open_copy, open_target, summary
from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_copy_arguments(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as source, open_target(args) as target:
        copy = open_copy(args, source, target)
        with out.progress(f"copying {args.topic}", total=copy.behind()) as progress:
            try:
                copy.run_once(progress)
            except KeyboardInterrupt:
                raise interrupted(copy) from None
        summary(copy, progress, out, args)
    return 0
