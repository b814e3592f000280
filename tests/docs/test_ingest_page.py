"""What `docs/ingest.md` shows runs as it is there."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from logstore.cli import program as commands
from logstore.cli.terminal.frame import call

PAGE = Path(__file__).parents[2] / "docs" / "ingest.md"


def test_the_examples_of_the_page_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["confirmed"] == [1288, 1288]


def test_the_command_of_the_page_is_one() -> None:
    """As it is there, but for the database, which `test_cli_ingest` has."""
    (line,) = re.findall(r"```sh\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    program, *words = shlex.split(line)
    found: list[argparse.Namespace] = []

    def keep(_: object, args: argparse.Namespace) -> int:
        found.append(args)
        return 0

    assert call(commands(), words, keep) == 0
    (args,) = found
    assert (program, args.command, args.source, args.publication) == (
        "logstore",
        "ingest",
        "postgres",
        "shop",
    )
