"""Show how far behind a group is, or all groups are.

For each partition the saved position, the end, and the lag in records and in seconds, which is the age of the first record
behind the position.

Example: logstore lag workers
"""

from __future__ import annotations

import argparse
from typing import Any

from logstore.cli.commands.records.groups import NO_GROUPS, add_name
from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.groups import PartitionLag, lag, names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        groups = names(store) if args.group is None else [args.group]
        none = NO_GROUPS if args.group is None else f"{args.group} has no saved positions"
        out.table([_row(name, each, out) for name in groups for each in lag(store, name)], none)
    return 0


def _row(group: str, found: PartitionLag, out: Output) -> dict[str, Any]:
    fields: dict[str, Any] = {"group": group, **found._asdict(), "seconds": round(found.seconds, 3)}
    if not out.as_json:
        fields = {name: "-" if value is None else value for name, value in fields.items()}
    return fields
