"""Show one topic: its settings, and each partition with its watermarks, objects, age and last writer."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from logstore.cli.places import add_partition, add_topic, chosen, find_topic, open_store
from logstore.cli.survey import age, look_at, storage_dollars
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import shown_age, shown_dollars, shown_duration, shown_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    add_partition(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        topic = find_topic(store, args.topic)
        numbers = [log.partition for log in chosen(topic, args.partition)]
        facts = look_at(store._runtime.store, [topic._internal.descriptor], {topic.name: numbers})[topic.name]
        if not isinstance(facts, list):
            raise facts or AssertionError("all of them were asked for")
        config, size = topic.config, sum(each.bytes for each in facts)
        fields = {
            "topic": topic.name,
            "partitions": topic.partitions,
            "incarnation": topic._internal.descriptor.incarnation,
            **asdict(config),
            "records": sum(each.records for each in facts),
            "bytes": size,
            "storage_dollars_a_month": storage_dollars(size),
        }
        limit = "none" if config.retention_bytes is None else shown_size(config.retention_bytes)
        lines = [
            f"{topic.name}: {topic.partitions} partition(s), {fields['records']:,} records, {shown_size(size)}, "
            f"{shown_dollars(storage_dollars(size))} a month in S3 Standard",
            f"retention {shown_duration(config.retention_seconds)}, retention-bytes {limit}, "
            f"segment-bytes {shown_size(config.segment_bytes)}\nincarnation {fields['incarnation']}",
        ]
        if config.compact:
            lines.append(
                f"compacted by key: tombstones for {shown_duration(config.tombstone_seconds)}, "
                f"begins at {config.dirty_ratio:.0%} of new bytes; "
                "records counts offsets, some of which are compacted away"
            )
        out.row(fields, "\n".join(lines))
        if out.as_json:
            out.table([asdict(each) | {"newest_seconds_ago": age(each.newest_ms)} for each in facts])
            return 0
        out.table(
            [
                {
                    "partition": each.partition,
                    "low": each.low,
                    "durable": each.durable,
                    "records": each.records,
                    "size": shown_size(each.bytes),
                    "segments": each.segments,
                    "age": shown_age(age(each.newest_ms)),
                    "writer": each.writer,
                    "epoch": each.epoch,
                    "lane": each.lane or "-",
                }
                for each in facts
            ]
        )
    return 0
