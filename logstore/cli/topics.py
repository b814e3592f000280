"""List the topics, with partitions and how many offsets each holds.

One whose descriptor is damaged is listed too, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.output import Output
from logstore.cli.places import chosen, open_store
from logstore.errors import CorruptData, UnknownTopic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace, out: Output) -> int:
    damage: CorruptData | None = None
    unknown = None if out.as_json else "unknown"
    with open_store(args, writer="read_only") as store:
        rows: list[dict[str, Any]] = []
        for name in store.topics():
            try:
                topic = store.topic(name)
            except UnknownTopic:
                continue  # deleted meanwhile
            except CorruptData as error:
                damage = damage or error
                rows.append({"topic": name, "partitions": unknown, "offsets": unknown})
                continue
            offsets = sum(log.durable_high_watermark - log.low_watermark for log in chosen(topic, None))
            rows.append({"topic": name, "partitions": topic.partitions, "offsets": offsets})
        out.table(rows)
    if damage is not None:
        out.flush()  # before the reason of the exit code
        raise damage
    return 0
