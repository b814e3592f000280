"""The frame of the command line: click reads the words, finds the command, prints help and completes.

A command is a module in a room of `cli.commands`: its docstring is its help, `add_arguments(parser)` says what it takes,
in the words of `argparse`, and `run(args, out)` does it. Only the module of the command that was asked for is imported. This
is the one place that knows click.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

import click
from click.shell_completion import CompletionItem

WIDTH_MAX = 100
COMPLETION_WAITS_S = 2.0
"""For the topics of a store."""


class CommandModule(Protocol):
    """What the module of a command offers. Its docstring's first line is its help."""

    __doc__: str | None

    def add_arguments(self, parser: Any) -> None: ...
    def run(self, args: argparse.Namespace, out: Any) -> int: ...


class Parameters:
    """`add_argument` as click's parameters."""

    def __init__(self) -> None:
        self.list: list[click.Parameter] = []

    def add_argument(
        self,
        *names: str,
        type: Callable[[str], Any] = str,
        default: Any = None,
        action: str | None = None,
        nargs: str | None = None,
        choices: Sequence[str] | None = None,
        required: bool = False,
        metavar: str | None = None,
        dest: str | None = None,
        help: str | None = None,
    ) -> None:
        known = click.Choice(list(choices)) if choices is not None else _Typed(type)
        if not names[0].startswith("-"):
            optional = nargs == "?"
            argument = click.Argument(
                [dest or names[0]],
                type=known,
                required=not optional,
                **({"default": default} if optional else {}),  # for click also None is a value that was given
                metavar=metavar or (f"[{names[0].upper()}]" if optional else names[0].upper()),
                shell_complete=_complete_topic if names[0] == "topic" else None,
            )
            argument.help_text = help  # type: ignore[attr-defined]
            self.list.append(argument)
            return
        words = [*names, *([dest] if dest else [])]
        text = help.replace("%%", "%") if help else help
        if action == "store_true":
            self.list.append(click.Option(words, is_flag=True, default=False, help=text))
            return
        self.list.append(
            click.Option(
                words,
                type=known,
                **({} if default in (None, []) else {"default": default}),
                multiple=action == "append",
                required=required,
                metavar=metavar or (None if choices is not None else _metavar(names)),
                help=text,
            )
        )


class _Typed(click.ParamType[Any]):
    """A function from text to a value. What it does not take is a mistake of the command line, in its own words."""

    def __init__(self, call: Callable[[str], Any]) -> None:
        self.name = getattr(call, "__name__", "value")
        self._call = call

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._call(value)
        except (ValueError, argparse.ArgumentTypeError) as error:
            plain = self._call in (int, float)
            what = f"{value!r} is no {'whole number' if self._call is int else 'number'}" if plain else error
            self.fail(str(what), param, ctx)


def _metavar(names: Sequence[str]) -> str:
    longest = max(names, key=len).lstrip("-")
    return longest.replace("-", "_").upper()


COMMON: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--json",), {"action": "store_true", "help": "one JSON object a line"}),
    (("--store",), {"metavar": "URL", "help": "or LOGSTORE_URL"}),
    (("-q", "--quiet"), {"action": "store_true", "help": "no progress, no summary, no receipts"}),
)
"""Before the command or after it."""


def _common() -> list[click.Parameter]:
    parameters = Parameters()
    for names, options in COMMON:
        parameters.add_argument(*names, **options)
    return parameters.list


class Command(click.Command):
    """One module as click sees it."""

    def __init__(self, name: str, module: CommandModule) -> None:
        parameters = Parameters()
        module.add_arguments(parameters)
        super().__init__(
            name,
            params=[*parameters.list, *_common()],
            help=module.__doc__,
            short_help=_first_sentence(module.__doc__ or ""),
        )
        self._run = module.run

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return _help_option()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        rows = [
            (parameter.make_metavar(ctx).strip("[]"), text)
            for parameter in self.params
            if isinstance(parameter, click.Argument)
            and (text := getattr(parameter, "help_text", None)) is not None
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> int:
        values = dict(ctx.params)
        for parameter in self.params:
            if getattr(parameter, "multiple", False):
                name = parameter.name or ""
                values[name] = list(values[name])
        above = ctx.parent.params if ctx.parent is not None else {}
        for name in ("json", "store", "quiet"):
            values[name] = values[name] or above.get(name)
        values["store"] = values["store"] or os.environ.get("LOGSTORE_URL")
        args = argparse.Namespace(command=self.name, **values)
        code: int = ctx.obj(self._run, args)
        return code


def _first_sentence(text: str) -> str:
    """Whole, also where it goes on on the next line."""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].removesuffix(".") + "."


class Program(click.Group):
    """All commands, each imported when it is asked for."""

    def __init__(self, rooms: Mapping[str, str], version: str) -> None:
        super().__init__(
            "logstore",
            params=_common(),
            help="A partitioned, append-only log whose home is an object store.",
            epilog="The store is --store URL or the environment variable LOGSTORE_URL: a path, file:///…, "
            "s3://bucket/prefix.",
            context_settings={"max_content_width": WIDTH_MAX},
        )
        self._rooms = rooms
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                help="the version, and whether the C kernels are in",
                callback=lambda ctx, _, asked: _say(f"logstore {version}", ctx) if asked else None,
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._rooms)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._rooms:
            return None
        return Command(cmd_name, import_module(f"logstore.cli.commands.{self._rooms[cmd_name]}.{cmd_name}"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self._rooms, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]}?", ctx) from None

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return _help_option()


def _help_option() -> click.Option:
    return click.Option(
        ["-h", "--help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        help="show this and end",
        callback=lambda ctx, _, asked: _say(ctx.get_help(), ctx) if asked else None,
    )


def _say(text: str, ctx: click.Context) -> None:
    if ctx.resilient_parsing:
        return
    click.echo(text, color=ctx.color)
    raise SystemExit(0)


def _complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics of the store, if it can be asked soon: a shell waits for this, so neither an error nor a store that hangs
    is more than no answer."""
    above = ctx.parent.params if ctx.parent is not None else {}
    where = ctx.params.get("store") or above.get("store") or os.environ.get("LOGSTORE_URL")
    found: list[str] = []
    if where:
        asking = threading.Thread(target=_topics_of, args=(where, found), daemon=True)
        asking.start()
        asking.join(COMPLETION_WAITS_S)
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _topics_of(where: str, found: list[str]) -> None:
    from logstore.errors import LogStoreError
    from logstore.store import open as open_store

    with suppress(LogStoreError, OSError, ValueError), open_store(where, writer="read_only") as store:
        found += store.topics()


def completion_script(shell: str) -> str:
    """What a shell sources to complete commands, options and topics."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "the command offers those that there are"
    return found(Program({}, ""), {}, "logstore", "_LOGSTORE_COMPLETE").source()


def call(
    program: Program,
    words: Sequence[str] | None,
    run: Callable[[Callable[[argparse.Namespace, Any], int], argparse.Namespace], int],
) -> int:
    """Read the words, and let `run` do what they ask for. 2 if they make no sense."""
    try:
        code = program.main(
            None if words is None else list(words), prog_name="logstore", standalone_mode=False, obj=run
        )
        return int(code or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.UsageError as error:
        error.show()
        return 2
    except click.Abort:
        return 130
