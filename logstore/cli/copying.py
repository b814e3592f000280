"""Copy a topic's records into another store: what `cp` does once and `mirror` goes on with.

Each partition is written by a replicated writer whose source offsets are the offsets it copies from. So the copy knows by
itself how far it is: a copy that was interrupted, killed or run twice goes on exactly there, and nothing is stored twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

import logstore
from logstore.cli.places import add_topic, find_topic, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.progress import Progress
from logstore.cli.terminal.usage import Interrupted, UsageError
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import GapError
from logstore.topic import Topic

_READ_BYTES = 4 << 20
WRITER_ID = "logstore-copy"


def add_copy_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument(
        "--to", required=True, metavar="URL", help="the store to copy into; created if it is not there"
    )
    parser.add_argument("--as", dest="as_topic", metavar="TOPIC", help="the copy's name (default: the same)")


class Copy:
    """One topic on its way from one store to another. The copy has as many partitions and the same settings."""

    def __init__(self, source: Topic, target: Topic) -> None:
        if source.partitions != target.partitions:
            raise UsageError(
                f"{target.name} has {target.partitions} partitions in the other store and {source.name} has "
                f"{source.partitions}: nothing was copied; choose another name with --as"
            )
        pairs = [(source.partition(number), target.partition(number)) for number in range(source.partitions)]
        self._pairs = [(log, copy.replicated(WRITER_ID)) for log, copy in pairs]
        for (log, copy), (_, writer) in zip(pairs, self._pairs, strict=True):
            _check_is_copy(log, copy, writer.upper())
        self.copied = [0] * len(pairs)

    def behind(self) -> int:
        """How many offsets are not copied yet, as last seen."""
        return sum(max(0, log.durable_high_watermark - writer.frontier) for log, writer in self._pairs)

    def run_once(self, progress: Progress) -> int:
        """Copy what is durable now. Returns how many records that was."""
        before = sum(self.copied)
        for number, (log, writer) in enumerate(self._pairs):
            log.refresh()
            upper = writer.upper()
            for lower, records, end in self._ranges(log, upper):
                try:
                    writer.compare_and_append(records, lower, end)
                except GapError as gap:
                    raise UsageError(
                        f"{log.topic}/{log.partition} cannot be continued in the other store: {gap}"
                    ) from gap
                self.copied[number] += len(records)
                progress.advance(len(records), sum(len(record.value or b"") for record in records))
        return sum(self.copied) - before

    def _ranges(self, log: PartitionLog, upper: int) -> Iterator[tuple[int, list[logstore.Record], int]]:
        """Pieces of the log, each with the source range it stands for: offsets without a record belong to the next piece."""
        position, stop = max(upper, log.low_watermark), log.durable_high_watermark
        while position < stop:
            result = log.read(position, _READ_BYTES, visibility="durable")
            records = [
                record for record in result.records() if record.offset is not None and record.offset < stop
            ]
            end = min(result.next_offset, stop)
            yield upper, records, end
            position = upper = end

    def where(self) -> str:
        """How far it is, for whoever goes on."""
        done = ", ".join(f"{log.partition}: {writer.frontier}" for log, writer in self._pairs)
        return f"{sum(self.copied):,} records were copied; each partition is copied up to (offset) {done}"


def _check_is_copy(log: PartitionLog, copy: PartitionLog, upper: int) -> None:
    """What a partition holds that is no copy would be followed by a second set of the same records, or taken for the
    beginning of these. `upper`: up to where it is a copy of something."""
    place, there, end = (
        f"{copy.topic}/{copy.partition}",
        copy.durable_high_watermark,
        log.durable_high_watermark,
    )
    if there and not upper:
        raise UsageError(
            f"{place} of the other store holds {there} offsets that are no copy: nothing was copied; choose another name "
            "with --as, or a store without this topic"
        )
    if upper > end:
        raise UsageError(
            f"{place} of the other store is a copy up to offset {upper}, and {log.topic} ends at {end}: it is a copy of "
            "another topic; choose another name with --as"
        )


def open_copy(args: argparse.Namespace, source: logstore.Store, target: logstore.Store) -> Copy:
    topic = find_topic(source, args.topic)
    kafka = dict(topic._internal.descriptor.kafka)
    made = target._create_topic_of_kafka(
        args.as_topic or topic.name, topic.partitions, kafka, asdict(topic.config), exist_ok=True
    )
    if made._internal.descriptor.incarnation == topic._internal.descriptor.incarnation:
        raise UsageError(
            f"{args.to} has this very topic, it is the same store or a copy of its objects: a copy would append to "
            "itself; name another store with --to, or another topic with --as"
        )
    return Copy(topic, made)


def open_target(args: argparse.Namespace) -> logstore.Store:
    return open_store(argparse.Namespace(store=args.to))


def interrupted(copy: Copy) -> Interrupted:
    return Interrupted(f"{copy.where()}; the same command goes on there")


def summary(copy: Copy, progress: Progress, out: Output, args: argparse.Namespace) -> None:
    name = args.as_topic or args.topic
    fields = {
        "topic": args.topic,
        "to": args.to,
        "as": name,
        "records": sum(copy.copied),
        "seconds": round(progress.seconds, 3),
    }
    out.row(fields, f"copied {sum(copy.copied):,} records of {args.topic} to {name} in {args.to}")
