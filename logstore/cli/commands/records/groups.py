"""List the groups of readers, or show the members of one and what each reads.

Example: logstore groups workers
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from logstore.cli.places import open_existing, open_store, topic_named
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import UsageError
from logstore.groups import delete, describe, names
from logstore.layout.groups import check_group_name

NO_GROUPS = "no groups yet: `logstore cat TOPIC --group NAME` reads as a member of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("--delete", action="store_true", help="forget the group and its positions")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    if args.delete:
        return _delete(args, out)
    with open_store(args, writer="read_only") as store:
        if args.group is None:
            infos = [describe(store, name) for name in names(store)]
            out.table(
                [
                    {
                        "group": info.name,
                        "members": len(info.members),
                        "topics": info.topics if out.as_json else ", ".join(info.topics),
                        "generation": info.generation,
                    }
                    for info in infos
                ],
                NO_GROUPS,
            )
            return 0
        info = describe(store, args.group)
        rows: list[dict[str, Any]] = []
        for member, places in info.members.items():
            shown = [f"{topic}/{partition}" for topic, partition in places]
            rows.append({"member": member, "partitions": shown if out.as_json else ", ".join(shown)})
        out.table(rows)
        if not rows and not out.as_json:
            print(
                f"{info.name} has no members now; `logstore lag {info.name}` shows where it is",
                file=out.stream,
            )
    return 0


def _delete(args: argparse.Namespace, out: Output) -> int:
    if args.group is None:
        raise UsageError("--delete: which group?")
    out.confirmed(f"this forgets all positions of {args.group}", args.yes)
    with open_existing(args) as store:
        try:
            delete(store, args.group)
        except ValueError as error:
            raise UsageError(str(error)) from error
        out.row({"group": args.group, "deleted": True}, f"deleted {args.group}")
    return 0


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", type=group_name, help="a group's name (default: all)")


def group_name(text: str) -> str:
    """As an argument's `type`."""
    try:
        return check_group_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# `logstore cat --group`


def add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group",
        type=group_name,
        help="as a member of this group: from its saved positions to the end; what was printed is saved",
    )


def cat_group(args: argparse.Namespace, out: Output) -> int:
    """Join, print what there is of the partitions that become ours, save, leave."""
    if args.start is not None or args.partition is not None:
        raise UsageError(
            "--group begins at the group's positions, in its own partitions: leave out -o and -p"
        )
    printed = 0
    with ExitStack() as stack:
        store = stack.enter_context(open_existing(args))
        with topic_named(store, args.topic):
            group = stack.enter_context(store.group(args.group, args.topic))
        while args.count is None or printed < args.count:
            left = 500 if args.count is None else min(500, args.count - printed)
            records = group.poll(0.5, max_records=left)
            for record in records:
                out.record(record.topic, record.partition, record, args.format)
            printed += len(records)
            out.flush()  # before the positions are saved: what nobody has seen is printed again
            group.commit()
            if not records and (group.assignment or not group._membership.plan.is_hungry):
                break
    return 0
