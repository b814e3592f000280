"""Create a topic.

The store itself is created with its first topic.
"""

from __future__ import annotations

import argparse

from logstore.cli.places import TOPIC_SETTINGS, add_topic, add_topic_settings, open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import duration, size
from logstore.cli.terminal.usage import UsageError
from logstore.errors import TopicExists


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("-p", "--partitions", type=int, default=1, help="how many (default: 1)")
    parser.add_argument(
        "--exist-ok", action="store_true", help="fine if it exists; if -p is given, with as many"
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="compaction by key: keep the last record of each key; every record needs a key then",
    )
    add_topic_settings(parser, duration, size)


def run(args: argparse.Namespace, out: Output) -> int:
    settings = {name: getattr(args, name) for name in TOPIC_SETTINGS if getattr(args, name) is not None}
    with open_store(args) as store:
        try:
            topic = store.create_topic(args.topic, args.partitions, exist_ok=args.exist_ok, **settings)
        except ValueError as error:
            raise UsageError(str(error)) from error
        except TopicExists:
            if args.exist_ok:
                raise
            raise TopicExists(f"topic {args.topic!r} exists: with --exist-ok that is fine") from None
        fields = {
            "topic": topic.name,
            "partitions": topic.partitions,
            "incarnation": topic._internal.descriptor.incarnation,
        }
        done = "there is" if args.exist_ok else "created"
        out.row(fields, f"{done} {topic.name} with {topic.partitions} partition(s)")
    return 0
