"""docs/cli.md, made from the parsers: `python -m tests.docs.cli_page` writes it, a test compares it.

From the parsers' actions and not from `--help`, whose layout differs between releases of Python.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from broker_shim.config import PREFIX, BrokerConfig
from logstore.cli import COMMANDS, build_parser
from tests.support.blocks import ROOT

PAGE = ROOT / "docs" / "cli.md"
_COMMON = ("--help", "--json", "--store")
_HEAD = """\
# Commands

Written by `python -m tests.docs.cli_page` from the parsers; do not edit.

## logstore

`logstore COMMAND [options]`, or `python -m logstore.cli`. The store is `--store URL` or the environment
variable `LOGSTORE_URL`: a path, `file:///…`, `s3://bucket/prefix`. Every command takes `--store`, `--json`
(one JSON object a line) and `--help`. `logstore --version` says the version and whether the C kernels are
in.

Exit codes: 0 done, 1 it could not be done (the reason is on stderr), 2 the command line is wrong, 130
interrupted before it was done.
"""
_BROKER = f"""\
## broker-shim

`broker-shim --store URL [options]`, or `python -m broker_shim`. Each flag is also an environment variable:
`--flush-on-ack` is `{PREFIX}FLUSH_ON_ACK`; a flag beats the variable. Times are in seconds, sizes in bytes.
Exit codes: 0 after a clean stop, 1 if it could not start, or could not store everything before it stopped,
2 for a flag that makes no sense. See [Kafka clients](broker.md).

| flag | default | |
|---|---|---|
"""


def page() -> str:
    """The page as it should be."""
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    assert tuple(commands.choices) == COMMANDS
    parts = [
        _HEAD,
        *(_section(f"logstore {name}", sub, 3) for name, sub in commands.choices.items()),
        _broker(),
    ]
    return "\n".join(parts)


def _section(name: str, parser: argparse.ArgumentParser, level: int) -> str:
    shown = [action for action in parser._actions if not set(action.option_strings) & set(_COMMON)]
    nested = [action for action in shown if isinstance(action, argparse._SubParsersAction)]
    plain = [action for action in shown if action not in nested]
    words = " ".join([name, *(_positional(action) for action in plain if not action.option_strings)])
    options = " [options]" if any(action.option_strings for action in plain) else ""
    below = " COMMAND" if nested else ""
    lines = [f"{'#' * level} {name}", "", f"`{words}{options}{below}`", ""]
    if parser.description:
        lines += [parser.description.strip(), ""]
    if plain:
        lines += ["| argument | default | |", "|---|---|---|", *(_row(action) for action in plain), ""]
    for action in nested:
        lines += [_section(f"{name} {word}", sub, level + 1) for word, sub in action.choices.items()]
    return "\n".join(lines)


def _positional(action: argparse.Action) -> str:
    word = str(action.metavar or action.dest).upper()
    return f"[{word}]" if action.nargs in ("?", "*") else word


def _row(action: argparse.Action) -> str:
    if action.option_strings:
        value = "" if action.nargs == 0 else " " + _metavar(action)
        name = ", ".join(f"`{option}{value}`" for option in action.option_strings)
    else:
        name = f"`{_positional(action)}`"
    help_text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return f"| {name} | {_default(action.default)} | {help_text} |"


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _default(value: object) -> str:
    plain = isinstance(value, str | int | float) and value not in ("", False, argparse.SUPPRESS)
    here = value == os.environ.get("DATABASE_URL")  # this machine's, not the command's
    return f"`{value}`" if plain and not here else ""  # others mean "not given"


def _broker() -> str:
    rows = []
    for each in fields(BrokerConfig):
        default = "" if each.default == "" else f"`{str(each.default).lower()}`"
        rows.append(f"| `--{each.name.replace('_', '-')}` | {default} | {each.metadata['help']} |")
    return _BROKER + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
