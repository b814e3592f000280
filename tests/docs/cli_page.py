"""docs/cli.md, made from the parsers: `python -m tests.docs.cli_page` writes it, a test compares it.

From the commands' parameters and not from `--help`, whose layout is click's affair.
"""

from __future__ import annotations

import os
from dataclasses import fields

import click

from broker_shim.config import PREFIX, BrokerConfig
from logstore.cli import COMMANDS, program
from logstore.cli.terminal.units import shown_duration
from tests.support.blocks import ROOT

PAGE = ROOT / "docs" / "cli.md"
_COMMON = ("--json", "--store", "--quiet")
_HEAD = """\
# Commands

Written by `python -m tests.docs.cli_page` from the commands; do not edit.

## logstore

`logstore COMMAND [options]`, or `python -m logstore.cli`. The store is `--store URL` or the environment
variable `LOGSTORE_URL`: a path, `file:///…`, `s3://bucket/prefix`. Every command takes `--store`, `--json`
(one JSON object a line), `--quiet` (no progress, no summary, no receipts) and `--help`. `logstore --version`
says the version and whether the C kernels are in. `eval "$(logstore completion bash)"` completes commands,
options and topics; zsh and fish too.

Sizes are `10GB`, `16MiB` or bytes; times are `7d`, `1h30m`, `250ms` or seconds; dates are `2026-11-17T12:00`
(UTC unless they name a zone), `-1h` (so long ago) or milliseconds since 1970.

On a terminal there are tables and colours (not with `NO_COLOR`), questions before what cannot be undone, and
for long work a line on stderr with amount, rate and time left, then a summary. In a pipe there is none of
that. What is interrupted says where it stopped, and how to go on from exactly there.

![A terminal: while lines are appended, a bar with bytes, rate, records and the time that is left](terminal-progress.svg)

![The same at the end: an interrupted append and how it went on, topics, a mistyped name, a question](terminal-session.svg)

Both are a real terminal, tmux's: `python -m tests.docs.terminal_pictures` types the commands and takes the
pictures, and a test compares what is printed today with what they show.

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
    commands = program()
    context = click.Context(commands, info_name="logstore")
    assert commands.list_commands(context) == list(COMMANDS)
    sections = [_section(context, commands.get_command(context, name)) for name in COMMANDS]
    return "\n".join([_HEAD, *sections, _broker()])


def _section(above: click.Context, command: click.Command | None) -> str:
    assert command is not None
    context = click.Context(command, info_name=command.name, parent=above)
    shown = [each for each in command.params if not set(each.opts) & set(_COMMON)]
    arguments = [each for each in shown if isinstance(each, click.Argument)]
    words = " ".join([f"logstore {command.name}", *(each.make_metavar(context) for each in arguments)])
    options = " [options]" if len(shown) > len(arguments) else ""
    lines = [f"### logstore {command.name}", "", f"`{words}{options}`", "", (command.help or "").strip(), ""]
    if shown:
        lines += ["| argument | default | |", "|---|---|---|", *(_row(each, context) for each in shown), ""]
    return "\n".join(lines)


def _row(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        value = "" if parameter.is_flag else " " + parameter.make_metavar(context)
        name = ", ".join(f"`{option}{value}`" for option in parameter.opts)
        text, default = parameter.help, parameter.default
    else:
        name = f"`{parameter.make_metavar(context)}`"
        text, default = getattr(parameter, "help_text", None), None
    assert text, f"{name} of {context.command.name} has no help"
    return f"| {name} | {_default(default)} | {text.replace('|', chr(92) + '|')} |"


def _default(value: object) -> str:
    if isinstance(value, float) and value:  # a time, as it would be typed
        value = shown_duration(value).replace(" ", "")
    plain = isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", 0)
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
