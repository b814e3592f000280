"""Arguments that several commands share: the store, a topic, partitions, where to start."""

from __future__ import annotations

import argparse
from typing import Any

import logstore
from logstore.engine.partition_log import PartitionLog
from logstore.topic import Topic

DEFAULT_FORMAT = "%s\\n"


def open_store(args: argparse.Namespace, **settings: Any) -> logstore.Store:
    from logstore.cli import UsageError

    if not args.store:
        raise UsageError("which store? Pass --store URL, or set LOGSTORE_URL")
    return logstore.open(args.store, **settings)


def add_topic(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument("topic", nargs="?" if optional else None, help="a topic's name")


def add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--partition", type=int, help="only this one (default: all)")


def add_range(parser: argparse.ArgumentParser, start_help: str) -> None:
    parser.add_argument("-o", "--start", default=None, help=start_help)
    parser.add_argument("-c", "--count", type=int, help="stop after so many records")
    parser.add_argument(
        "-f", "--format", default=DEFAULT_FORMAT, help="%%t %%p %%o %%k %%s %%T %%h (default: %%s\\n)"
    )
    parser.add_argument("--durable", action="store_true", help="only what is in the object store")


def chosen(topic: Topic, partition: int | None) -> list[PartitionLog]:
    numbers = range(topic.partitions) if partition is None else [partition]
    return [topic.partition(number) for number in numbers]


def start_offset(log: PartitionLog, start: str | None) -> int:
    """An offset, `beginning`, `end`, `-n` (the last n), or `@ms` (the first record at or after that time)."""
    from logstore.cli import UsageError

    low, high = log.low_watermark, log.buffered_high_watermark
    if start in (None, "beginning"):
        return low
    if start == "end":
        return high
    try:
        if start.startswith("@"):
            found = log.offset_for_timestamp(int(start[1:]))
            return high if found is None else found
        number = int(start)
    except ValueError:
        raise UsageError(
            f"--start {start}: an offset, beginning, end, -N (the last N) or @MILLISECONDS"
        ) from None
    return max(low, high + number) if number < 0 else number
