"""List the topics: partitions, records, bytes, age of the newest record, retention, who writes, what storing it costs.

Of every partition that is in a lane, and of the first 256 others; what more there are is shown by its settings alone, unless
--exact asks for all. `a month` is dollars a month in S3 Standard. A topic whose descriptor is damaged is listed too, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.places import open_objects
from logstore.cli.survey import (
    LOOK_MAX,
    PartitionFacts,
    age,
    look_at,
    nothing_collected,
    storage_dollars,
)
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import shown_age, shown_dollars, shown_duration, shown_size
from logstore.layout.catalog import Catalog, TopicDescriptor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exact", action="store_true", help="look at every partition, however many there are"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    with nothing_collected(), open_objects(args) as objects:
        listed = Catalog(objects).described()
        topics = [topic for _, topic in listed if isinstance(topic, TopicDescriptor)]
        looked_at = look_at(objects, topics, most=None if args.exact else LOOK_MAX)
        damage: Exception | None = None
        rows: list[dict[str, Any]] = []
        for name, topic in listed:
            facts = looked_at[name] if isinstance(topic, TopicDescriptor) else topic
            if isinstance(topic, TopicDescriptor) and not isinstance(facts, Exception):
                rows.append(_fields(name, topic, facts))
            else:
                damage = damage or (facts if isinstance(facts, Exception) else None)
                rows.append(_fields(name, None, None))
        none = "no topics yet: `logstore create NAME` makes one"
        out.table(rows if out.as_json else [_shown(row) for row in rows], none)
    if damage is not None:
        out.flush()  # before the reason of the exit code
        raise damage
    return 0


def _fields(name: str, topic: TopicDescriptor | None, facts: list[PartitionFacts] | None) -> dict[str, Any]:
    """None is what is not known."""
    known: list[PartitionFacts] = facts or []
    size = sum(each.bytes for each in known)
    config = topic.config if topic is not None else None
    fields: dict[str, Any] = {
        "topic": name,
        "partitions": topic.partitions if topic is not None else None,
        "offsets": sum(each.durable - each.low for each in known),
        "records": sum(each.records for each in known),
        "bytes": size,
        "segments": sum(each.segments for each in known),
        "newest_seconds_ago": age(max((each.newest_ms for each in known), default=-1)),
        "retention_seconds": config.retention_seconds if config else None,
        "retention_bytes": config.retention_bytes if config else None,
        "writer": "/".join(sorted({each.writer for each in known} - {"none"})) or "none",
        "storage_dollars_a_month": storage_dollars(size),
    }
    if facts is None:
        unknown = ("offsets", "records", "bytes", "segments", "newest_seconds_ago", "writer")
        fields |= dict.fromkeys((*unknown, "storage_dollars_a_month"), None)
    return fields


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """The same for people."""
    if row["partitions"] is None:
        return {name: "unknown" if name != "topic" else row["topic"] for name in _HEADS}
    by_age, by_size = row["retention_seconds"], row["retention_bytes"]
    limits = [shown_duration(by_age)] if by_age is not None else []
    limits += [shown_size(by_size)] if by_size is not None else []
    kept = " or ".join(limits) or "for ever"
    if row["records"] is None:
        rest = dict.fromkeys(_HEADS[2:], "…")
        return {"topic": row["topic"], "partitions": row["partitions"]} | rest | {"kept": kept}
    return {
        "topic": row["topic"],
        "partitions": row["partitions"],
        "records": row["records"],
        "size": shown_size(row["bytes"]),
        "segments": row["segments"],
        "age": shown_age(row["newest_seconds_ago"]),
        "kept": kept,
        "writer": row["writer"],
        "a month": shown_dollars(row["storage_dollars_a_month"]),
    }


_HEADS = ("topic", "partitions", "records", "size", "segments", "age", "kept", "writer", "a month")
"""No more than what of a short name fits 80 columns; --json has everything."""
