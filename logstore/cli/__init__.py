"""The `logstore` command: one module for each subcommand, with the habits of kcat and rpk.

Exit codes: 0 done, 1 it could not be done (the reason is on stderr), 2 the command line is wrong. `--json` prints one JSON
object a line, on every command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from logstore.cli.output import Output
from logstore.errors import LogStoreError

COMMANDS = (
    "topics",
    "create",
    "alter",
    "delete",
    "append",
    "cat",
    "tail",
    "offsets",
    "inspect",
    "verify",
    "compact",
    "gc",
    "ingest",
    "bench",
    "demo",
)


class Command(Protocol):
    """What a module in this folder offers. Its docstring's first line is its help."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace, out: Output) -> int: ...


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="logstore",
        description="A partitioned, append-only log whose home is an object store.",
        epilog="The store is --store URL or the environment variable LOGSTORE_URL: a path, file:///…, s3://bucket/prefix.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module: Command = import_module(f"logstore.cli.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        sub = commands.add_parser(name, help=summary, description=module.__doc__, formatter_class=_Raw)
        sub.add_argument("--json", action="store_true", help="one JSON object a line")
        sub.add_argument(
            "--store", metavar="URL", default=os.environ.get("LOGSTORE_URL"), help="or LOGSTORE_URL"
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the paragraphs of a module's docstring."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `logstore` command."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args, Output(sys.stdout, args.json)))
    except UsageError as error:
        print(f"logstore {args.command}: {error}", file=sys.stderr)
        return 2
    except (LogStoreError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has seen enough
            return 0
        print(f"logstore {args.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


class UsageError(Exception):
    """The command line asks for something that makes no sense."""
