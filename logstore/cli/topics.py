"""List the topics, with partitions and how many offsets each holds."""

from __future__ import annotations

import argparse

from logstore.cli.output import Output
from logstore.cli.places import chosen, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        rows = []
        for name in store.topics():
            topic = store.topic(name)
            logs = chosen(topic, None)
            offsets = sum(log.durable_high_watermark - log.low_watermark for log in logs)
            rows.append({"topic": name, "partitions": topic.partitions, "offsets": offsets})
        out.table(rows)
    return 0
