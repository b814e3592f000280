"""Change a topic's settings, or give it more partitions. What is not named stays as it is.

Open partitions follow by themselves, here at once and elsewhere with their next checkpoint.
"""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.places import TOPIC_SETTINGS, add_topic, add_topic_settings, find_topic, open_existing
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import duration_or_none, shown_duration, shown_size, size_or_none
from logstore.cli.terminal.usage import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("-p", "--partitions", type=int, help="how many it shall have: never fewer than now")
    parser.add_argument(
        "--compact",
        metavar="YES|NO",
        type=_yes_or_no,
        help="compaction by key: keep the last record of each key; every record needs a key then",
    )
    add_topic_settings(parser, duration_or_none, size_or_none, ", or none")


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r}: it is yes or no")
    return text.lower() == "yes"


_OF_COMPACTION = ("tombstone_seconds", "compact_after_seconds", "dirty_ratio")


def run(args: argparse.Namespace, out: Output) -> int:
    settings: dict[str, Any] = {
        name: getattr(args, name) for name in TOPIC_SETTINGS if getattr(args, name) is not None
    }
    if not settings and args.partitions is None:
        raise UsageError("what shall change? Pass --partitions, or a setting")
    with open_existing(args) as store:
        find_topic(store, args.topic)
        try:
            if settings:
                store.alter_topic(args.topic, **settings)
            if args.partitions is not None:
                store.add_partitions(args.topic, args.partitions)
        except ValueError as error:
            raise UsageError(str(error)) from error
        topic = store.topic(args.topic)
        now = {name: getattr(topic.config, name) for name in TOPIC_SETTINGS}
        shown = ", ".join(
            f"{name.removesuffix('_seconds').replace('_', '-')} {_shown(name, value)}"
            for name, value in now.items()
            if topic.config.compact or name not in _OF_COMPACTION
        )
        fields = {"topic": topic.name, "partitions": topic.partitions} | now
        out.row(fields, f"{topic.name}: {topic.partitions} partition(s), {shown}")
    return 0


def _shown(name: str, value: float | bool | None) -> str:
    """In the units that it was given in."""
    if value is None:
        return "none"
    if name.endswith("_seconds"):
        return shown_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown_size(int(value)) if name.endswith("_bytes") else str(value)
