"""Print the records of a topic, partition by partition, and end.

Example: logstore cat orders -o -10 -f '%p:%o %k=%s\\n'
"""

from __future__ import annotations

import argparse

from logstore.cli.output import Output
from logstore.cli.places import (
    add_partition,
    add_range,
    add_topic,
    chosen,
    find_topic,
    open_store,
    start_offsets,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)
    add_range(parser, "an offset, beginning (default), end, -N (the last N) or @MILLISECONDS")


def run(args: argparse.Namespace, out: Output) -> int:
    printed = 0
    visibility = "durable" if args.durable else "buffered"
    with open_store(args, writer="read_only") as store:
        logs = chosen(find_topic(store, args.topic), args.partition)
        for log, start in zip(logs, start_offsets(logs, args.start), strict=True):
            for record in log.records(start, visibility=visibility):  # type: ignore[arg-type]
                if args.count is not None and printed >= args.count:
                    return 0
                out.record(log.topic, log.partition, record, args.format)
                printed += 1
    return 0
