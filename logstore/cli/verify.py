"""Read every segment of a topic, or of all topics, and check every checksum and every record.

Exit code 1 if anything is damaged; each damaged object is named, with the offset.
"""

from __future__ import annotations

import argparse

from logstore.cli.output import Output
from logstore.cli.places import add_topic, chosen, open_store
from logstore.engine.partition_log import PartitionLog
from logstore.errors import CorruptData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, optional=True)


def run(args: argparse.Namespace, out: Output) -> int:
    damaged = 0
    with open_store(args, writer="read_only", cache_bytes=0) as store:
        for name in [args.topic] if args.topic else store.topics():
            for log in chosen(store.topic(name), None):
                damaged += _verify(log, out)
    return 1 if damaged else 0


def _verify(log: PartitionLog, out: Output) -> int:
    damaged = records = 0
    position, end = log.low_watermark, log.durable_high_watermark
    while position < end:
        try:
            result = log.read(position, visibility="durable")
            records += sum(1 for _ in result.records())
            position = result.next_offset
        except CorruptData as damage:
            damaged += 1
            fields = {
                "topic": log.topic,
                "partition": log.partition,
                "key": damage.key,
                "offset": damage.offset,
            }
            out.row(
                fields | {"damage": damage.why},
                f"DAMAGED {damage.key} at offset {damage.offset}: {damage.why}",
            )
            position = _after(log, position)
    fields = {"topic": log.topic, "partition": log.partition, "records": records, "damaged": damaged}
    out.row(fields, f"{log.topic}/{log.partition}: {records} records read, {damaged} damaged objects")
    return damaged


def _after(log: PartitionLog, position: int) -> int:
    """Where the segment ends that holds `position`: what lies behind it can still be checked."""
    return next(
        (ref.end_offset for ref in log.segments() if ref.end_offset > position), log.durable_high_watermark
    )
