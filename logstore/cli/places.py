"""Arguments that several commands share: the store, a topic, partitions, where to start."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import logstore
from logstore.cli.terminal.template import Template
from logstore.cli.terminal.units import duration, is_ago, moment_ms, size
from logstore.cli.terminal.usage import UsageError, positive
from logstore.layout.marker import enter
from logstore.objects.closing import closing_store
from logstore.objects.protocol import ObjectStore
from logstore.objects.url import open_url
from logstore.objects.wrappers.layers import READ_RETRIES, Layers
from logstore.objects.wrappers.retrying import repeat

if TYPE_CHECKING:
    from logstore.config import Visibility
    from logstore.engine.partition.partition_log import PartitionLog
    from logstore.topic import Topic

_START_HELP = "an offset, beginning, end, -N (the last N), -1h (the last hour), @2026-11-17T12:00 (UTC) or @MILLISECONDS"
DEFAULT_FORMAT = "%s\\n"


def open_store(args: argparse.Namespace, **settings: Any) -> logstore.Store:
    """The store that the command line names. One that is not there is created, unless it is opened to read."""
    try:
        return logstore.open(_url(args), **settings)
    except ValueError as error:  # a setting that came from an option
        raise UsageError(str(error)) from error


def _url(args: argparse.Namespace) -> str:
    if not args.store:
        raise UsageError("which store? Pass --store URL, or set LOGSTORE_URL")
    url: str = args.store
    return url


@contextmanager
def open_objects(args: argparse.Namespace) -> Iterator[ObjectStore]:
    """The objects of that store, for a look at what is there: it starts in half the time of an open store, and has no
    threads."""
    with closing_store(open_url(_url(args))) as objects:
        _, bare, retrying = Layers.round(objects)
        repeat(lambda: enter(bare, SystemRandom(), read_only=True), READ_RETRIES)
        yield retrying


def open_existing(args: argparse.Namespace, **settings: Any) -> logstore.Store:
    """`open_store` for a command that changes what is there: a mistyped URL must not become a new, empty store."""
    open_store(args, writer="read_only").close()
    return open_store(args, **settings)


def find_topic(store: logstore.Store, name: str) -> Topic:
    with topic_named(store, name):
        return store.topic(name)


@contextmanager
def topic_named(store: logstore.Store, name: str) -> Iterator[None]:
    """An `UnknownTopic` inside comes out in the words of the command line, with what may have been meant."""
    try:
        yield
    except logstore.UnknownTopic:
        near = get_close_matches(name, store.topics(), n=1)
        hint = f"did you mean {near[0]}?" if near else "`logstore topics` lists those that there are."
        raise logstore.UnknownTopic(
            f"there is no topic {name!r}: {hint} `logstore create {name}` makes it"
        ) from None


def add_topic(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument("topic", nargs="?" if optional else None, help="a topic's name")


TOPIC_SETTINGS = (
    "retention_seconds",
    "retention_bytes",
    "segment_bytes",
    "compact",
    "tombstone_seconds",
    "compact_after_seconds",
    "dirty_ratio",
)


def add_topic_settings(
    parser: argparse.ArgumentParser,
    time_of: Callable[[str], float],
    size_of: Callable[[str], float],
    more: str = "",
) -> None:
    parser.add_argument(
        "--retention",
        "--retention-seconds",
        dest="retention_seconds",
        metavar="TIME",
        type=time_of,
        help=f"older records go: 7d, 12h, or seconds{more}",
    )
    parser.add_argument(
        "--retention-bytes",
        metavar="SIZE",
        type=size_of,
        help=f"the oldest records go while a partition has more: 10GB, or bytes{more}",
    )
    parser.add_argument(
        "--segment-bytes", metavar="SIZE", type=size, help="the largest object that is made: 16MiB"
    )
    parser.add_argument(
        "--tombstones",
        dest="tombstone_seconds",
        metavar="TIME",
        type=duration,
        help="how long compaction by key keeps a tombstone: 1d (default), 12h",
    )
    parser.add_argument(
        "--compact-after",
        dest="compact_after_seconds",
        metavar="TIME",
        type=duration,
        help="compaction by key leaves younger records alone: 0s (default), 1h",
    )
    parser.add_argument(
        "--dirty-ratio",
        metavar="SHARE",
        type=float,
        help="compaction by key begins when more than this share of the bytes is new: 0.5 (default)",
    )


def add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--partition", type=int, help="only this one (default: all)")


def add_reading(parser: argparse.ArgumentParser, start: str) -> None:
    """What to print of a topic. `start`: where it begins if nobody says it, for `to_read`, too."""
    add_topic(parser)
    add_partition(parser)
    parser.add_argument("-o", "--start", help=f"{_START_HELP} (default: {start})")
    parser.add_argument("-c", "--count", type=positive, help="stop after so many records")
    parser.add_argument(
        "-f",
        "--format",
        type=Template,
        default=DEFAULT_FORMAT,
        help="%%t topic, %%p partition, %%o offset, %%k key, %%s value, %%T timestamp, %%h headers (default: %%s\\n)",
    )
    parser.add_argument("--durable", action="store_true", help="only what is in the object store")
    parser.add_argument(
        "--committed",
        action="store_true",
        help="of that, only what Kafka's transactions have committed, up to the first that is open",
    )


def visibility_of(args: argparse.Namespace) -> Visibility:
    """What `add_reading`'s options mean."""
    return "committed" if args.committed else "durable" if args.durable else "buffered"


def chosen(topic: Topic, partition: int | None) -> list[PartitionLog]:
    """The partitions that `--partition` leaves: that one, or all."""
    numbers = range(topic.partitions) if partition is None else [partition]
    try:
        return [topic.partition(number) for number in numbers]
    except ValueError as error:
        raise UsageError(f"--partition {partition}: {error}") from error


def to_read(store: logstore.Store, args: argparse.Namespace, start: str) -> list[tuple[PartitionLog, int]]:
    """The partitions that `add_reading`'s options mean, and where to begin in each. One that ends before that offset begins
    at its end; if all do, it is a mistake."""
    logs = chosen(find_topic(store, args.topic), args.partition)
    starts = [start_offset(log, args.start or start) for log in logs]
    ends = [log.buffered_high_watermark for log in logs]
    if all(begin > end for begin, end in zip(starts, ends, strict=True)):
        last = max(logs, key=lambda log: log.buffered_high_watermark)
        raise logstore.OffsetOutOfRange(
            last.low_watermark, max(ends), min(starts), f"{last.topic}/{last.partition}"
        )
    return [(log, min(begin, end)) for log, begin, end in zip(logs, starts, ends, strict=True)]


def start_offset(log: PartitionLog, start: str | None, option: str = "--start") -> int:
    """An offset, `beginning`, `end`, `-n` (the last n), `@time` (the first record at or after that time), or `-1h` (the
    first of the last hour)."""
    low, high = log.low_watermark, log.buffered_high_watermark
    if start in (None, "beginning"):
        return low
    if start == "end":
        return high
    try:
        if start.startswith("@") or is_ago(start):
            found = log.offset_for_timestamp(moment_ms(start))
            return high if found is None else found
        number = int(start)
    except ValueError:
        raise UsageError(
            f"{option} {start}: an offset, beginning, end, -N (the last N), -1h (the last hour), "
            "@2026-11-17T12:00 or @MILLISECONDS"
        ) from None
    return max(low, high + number) if number < 0 else number
