"""docs/guarantees.md: every promise with the tests that show it. `python -m tests.guarantees` writes the page.

The promises are in docs/guarantees.toml; which tests show one is read from their names. `python -m tests.guarantees L09`
prints the names. The page has the files alone, so that it changes when a promise moves to another file, and not with every
test.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.blocks import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
_TESTS = ROOT / "tests"
_HEAD = """\
# Guarantees

Written by `python -m tests.guarantees` from `docs/guarantees.toml` and the names of the tests; do not edit.

Each promise has a code, and a test that shows it carries the code in its name: `test_L09_…`. A promise that no test
shows is not kept, and is said to be *not yet*; *begun* means that there are tests, and that they do not show all of it.
`python -m tests.guarantees L09` prints the tests of a promise by name, `pytest -k L09` runs them.
"""


class Group(NamedTuple):
    letter: str
    title: str
    promises: dict[str, str]


class Promises(NamedTuple):
    groups: list[Group]
    not_yet: set[str]

    def codes(self) -> set[str]:
        return {code for group in self.groups for code in group.promises}


class Shown(NamedTuple):
    """A test, by the file that has it and its name."""

    file: str
    name: str


def promises() -> Promises:
    found: dict[str, Any] = tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())
    return Promises([Group(**group) for group in found["group"]], set(found["not_yet"]))


def shown() -> dict[str, list[Shown]]:
    """The tests of each code, in the order of the files."""
    found: dict[str, list[Shown]] = defaultdict(list)
    for file in sorted(_TESTS.rglob("test_*.py")):
        for name in _names(file):
            for code in codes_of(name):
                found[code].append(Shown(file.relative_to(_TESTS).as_posix(), name))
    return found


def _names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name  # codes_of says whether it is a test


def codes_of(name: str) -> list[str]:
    """`test_L01_L03_…` has two, a model's `TestU01ToU08…` all from the first to the last."""
    if found := re.match(r"Test([A-Z])(\d\d)To\1(\d\d)", name):
        return [f"{found[1]}{number:02}" for number in range(int(found[2]), int(found[3]) + 1)]
    found = re.match(r"test((?:_[A-Z]\d\d)+)(?=_|$)", name)
    return found[1].split("_")[1:] if found else []


def page() -> str:
    known, tests = promises(), shown()
    return "\n".join([_HEAD, *(_section(group, known, tests) for group in known.groups)])


def _section(group: Group, known: Promises, tests: dict[str, list[Shown]]) -> str:
    lines = [f"## {group.letter}. {group.title}", "", "| | promise | shown by |", "|---|---|---|"]
    for code, promise in group.promises.items():
        state = "" if code not in known.not_yet else "*begun* " if tests.get(code) else "*not yet*"
        files = dict.fromkeys(test.file for test in tests.get(code, []))
        links = ", ".join(f"[{file}](../tests/{file})" for file in files)
        lines.append(f"| {code} | {promise} | {state}{links} |")
    return "\n".join([*lines, ""])


def main(codes: list[str]) -> None:
    if not codes:
        PAGE.write_text(page())
    for code in codes:
        for test in shown().get(code, []):
            print(f"tests/{test.file}::{test.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
