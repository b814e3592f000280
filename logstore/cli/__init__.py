"""The `logstore` command: one module for each subcommand, with the habits of kcat and rpk.

Exit codes: 0 done, 1 it could not be done (the reason is on stderr), 2 the command line is wrong, 130 interrupted before
it was done. `--json` prints one JSON object a line, on every command.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from logstore import __version__
from logstore.cli.output import Output
from logstore.cli.usage import UsageError
from logstore.errors import LogStoreError
from logstore.format import kernels

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
    "trim",
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
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__} ({_kernels()})")
    parser.set_defaults(json=False, store=os.environ.get("LOGSTORE_URL"))
    _add_common(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name in COMMANDS:
        module: Command = import_module(f"logstore.cli.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        sub = commands.add_parser(name, help=summary, description=module.__doc__, formatter_class=_Paragraphs)
        _add_common(sub)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Before the command or after it: no default of their own, so that the one does not undo the other."""
    unsaid = argparse.SUPPRESS
    parser.add_argument("--json", action="store_true", default=unsaid, help="one JSON object a line")
    parser.add_argument("--store", metavar="URL", default=unsaid, help="or LOGSTORE_URL")


class _CommandParser(argparse.ArgumentParser):
    """Takes options between the arguments: `append orders -k 17 paid`, where plain argparse gives up on `paid`."""

    _parsing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if self._parsing:  # the call below, from inside
            return super().parse_known_args(args, namespace)
        self._parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._parsing = False


class _Paragraphs(argparse.HelpFormatter):
    """Keeps the paragraphs of a module's docstring, each as wide as the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = (textwrap.fill(" ".join(part.split()), width) for part in text.split("\n\n"))
        return textwrap.indent("\n\n".join(filled), indent)


def _kernels() -> str:
    """Whether the C kernels are in: an install without a compiler goes on without them, behind pip's back."""
    if kernels.speed is not None:
        return "with C kernels"
    why = "LOGSTORE_PURE=1" if os.environ.get("LOGSTORE_PURE") == "1" else "built without a compiler"
    return f"without C kernels, {why}: appends take about twice the CPU, reads five times"


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `logstore` command."""
    args = build_parser().parse_args(argv)
    if sys.stdout is None:  # `>&-`: refused before anything is done that nobody would learn of
        print(f"logstore {args.command}: standard output is closed: use >/dev/null", file=sys.stderr)
        return 1
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that knows no ✓
    out = Output(sys.stdout, args.json)
    try:
        code = int(args.run(args, out))
        out.flush()
        return code
    except UsageError as error:
        print(f"logstore {args.command}: {error}", file=sys.stderr)
        return 2
    except (LogStoreError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            out.abandon()  # `| head` has seen enough
            return 0
        print(f"logstore {args.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
