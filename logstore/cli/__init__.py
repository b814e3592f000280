"""The `logstore` command: one module for each subcommand, with the habits of kcat and rpk.

Exit codes: 0 done, 1 it could not be done (the reason is on stderr), 2 the command line is wrong, 130 interrupted before
it was done. `--json` prints one JSON object a line, on every command.

May import: everything of `logstore` but Spark, and what a command needs alone when it runs. Called by nobody.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

from logstore import __version__
from logstore.cli.terminal.frame import Program, call
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import Interrupted, UsageError, complain, seldom
from logstore.errors import LogStoreError
from logstore.format import kernels

COMMANDS = {
    "topics": "topics",
    "describe": "topics",
    "create": "topics",
    "alter": "topics",
    "delete": "topics",
    "append": "records",
    "cat": "records",
    "tail": "records",
    "offsets": "topics",
    "groups": "records",
    "lag": "records",
    "inspect": "maintenance",
    "verify": "maintenance",
    "compact": "maintenance",
    "trim": "maintenance",
    "gc": "maintenance",
    "maintain": "maintenance",
    "cp": "copies",
    "mirror": "copies",
    "ping": "tools",
    "cost": "tools",
    "ui": "tools",
    "ingest": "copies",
    "materialize": "copies",
    "bench": "tools",
    "demo": "tools",
    "completion": "tools",
}
"""Each command, as help lists them, and the room of `commands` in which its module is: see `frame.CommandModule`."""


def program() -> Program:
    """The whole command line; a command's module is imported when it is asked for."""
    return Program(COMMANDS, f"{__version__} ({_kernels()})")


def _kernels() -> str:
    """Whether the C kernels are in: an install without a compiler goes on without them, behind pip's back."""
    if kernels.speed is not None:
        return "with C kernels"
    why = "LOGSTORE_PURE=1" if os.environ.get("LOGSTORE_PURE") == "1" else "built without a compiler"
    return f"without C kernels, {why}: appends take about twice the CPU, reads five times"


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `logstore` command."""
    if logging.lastResort is not None:
        logging.lastResort.addFilter(seldom)
    return call(program(), argv, _run)


def _run(command: Callable[[argparse.Namespace, Output], int], args: argparse.Namespace) -> int:
    if sys.stdout is None:  # `>&-`: refused before anything is done that nobody would learn of
        complain(f"logstore {args.command}: standard output is closed: use >/dev/null")
        return 1
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that knows no ✓
    out = Output(sys.stdout, bool(args.json), quiet=bool(args.quiet))
    try:
        code = int(command(args, out))
        out.flush()
        return code
    except UsageError as error:
        complain(f"logstore {args.command}: {error}")
        return 2
    except ImportError as error:
        complain(f"logstore {args.command}: {error}")
        return 1
    except (LogStoreError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            out.abandon()  # `| head` has seen enough
            return 0
        complain(f"logstore {args.command}: {type(error).__name__}: {error}")
        return 1
    except Interrupted as where:
        complain(f"logstore {args.command}: interrupted: {where}")
        return 130
    except KeyboardInterrupt:
        return 130
