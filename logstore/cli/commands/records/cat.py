"""Print the records of a topic, partition by partition, and end.

Example: logstore cat orders -o -10 -f '%p:%o %k=%s\\n'
"""

from __future__ import annotations

import argparse

from logstore.cli.commands.records.groups import add_group, cat_group
from logstore.cli.places import add_reading, open_store, to_read, visibility_of
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress
from logstore.cli.terminal.usage import Interrupted
from logstore.config import Visibility
from logstore.engine.partition.partition_log import PartitionLog

_SHOW_EVERY = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reading(parser, "beginning")
    add_group(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    if args.group is not None:
        return cat_group(args, out)
    visibility = visibility_of(args)
    with open_store(args, writer="read_only") as store:
        ranges = to_read(store, args, "beginning")
        behind = sum(log.durable_high_watermark - start for log, start in ranges)
        total = behind if args.count is None else min(behind, args.count)
        # Where the records themselves go to a terminal, a line about them would only be in the way.
        watched = Output(out.stream, out.as_json, quiet=out.quiet or out.stream.isatty())
        with watched.progress(f"reading {args.topic}", total=total) as progress:
            _print_all(args, out, ranges, visibility, progress)
    return 0


def _print_all(
    args: argparse.Namespace,
    out: Output,
    ranges: list[tuple[PartitionLog, int]],
    visibility: Visibility,
    progress: Progress,
) -> None:
    printed, shown = 0, 0
    for log, position in ranges:
        try:
            for record in log.records(position, visibility=visibility):
                if args.count is not None and printed >= args.count:
                    return
                out.record(log.topic, log.partition, record, args.format)
                position = (record.offset or 0) + 1
                printed += 1
                if printed - shown == _SHOW_EVERY:
                    progress.advance(_SHOW_EVERY)
                    shown = printed
        except KeyboardInterrupt:
            raise Interrupted(
                f"{printed:,} records were printed; go on with -p {log.partition} -o {position}"
                + (
                    f", then the partitions after {log.partition}"
                    if args.partition is None and len(ranges) > 1
                    else ""
                )
            ) from None
