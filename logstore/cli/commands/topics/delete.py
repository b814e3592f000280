"""Delete a topic and all its records. There is no way back."""

from __future__ import annotations

import argparse

from logstore.cli.places import add_topic, open_existing, topic_named
from logstore.cli.terminal.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can answer")


def run(args: argparse.Namespace, out: Output) -> int:
    out.confirmed(f"this deletes every record of {args.topic}", args.yes)
    with open_existing(args) as store:
        with topic_named(store, args.topic):
            store.delete_topic(args.topic)
        out.row({"topic": args.topic, "deleted": True}, f"deleted {args.topic}")
    return 0
