"""Print the records of a topic, partition by partition, and end.

Example: logstore cat orders -o -10 -f '%p:%o %k=%s\\n'
"""

from __future__ import annotations

import argparse

from logstore.cli.commands.records.groups import add_group, cat_group
from logstore.cli.places import (
    START_HELP,
    add_partition,
    add_range,
    add_topic,
    chosen,
    find_topic,
    open_store,
    start_offsets,
)
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress
from logstore.cli.terminal.usage import Interrupted
from logstore.config import Visibility
from logstore.engine.partition.partition_log import PartitionLog

_SHOW_EVERY = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)
    add_group(parser)
    add_range(parser, f"{START_HELP} (default: beginning)")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.group is not None:
        return cat_group(args, out)
    visibility: Visibility = "durable" if args.durable else "buffered"
    with open_store(args, writer="read_only") as store:
        logs = chosen(find_topic(store, args.topic), args.partition)
        starts = start_offsets(logs, args.start)
        behind = sum(log.durable_high_watermark - start for log, start in zip(logs, starts, strict=True))
        total = behind if args.count is None else min(behind, args.count)
        # Where the records themselves go to a terminal, a line about them would only be in the way.
        watched = Output(out.stream, out.as_json, quiet=out.quiet or out.stream.isatty())
        with watched.progress(f"reading {args.topic}", total=total) as progress:
            _print_all(args, out, list(zip(logs, starts, strict=True)), visibility, progress)
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
