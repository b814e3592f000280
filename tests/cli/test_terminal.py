"""On a terminal: nothing is wider than it is, and colours only where they are wanted."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import logstore
from logstore.cli.ingest import StatusLine
from logstore.cli.output import Output
from logstore.ingest.postgres import PostgresIngest, PostgresSettings
from tests.support.patience import PATIENCE_S

ESCAPE = re.compile(r"\x1b\[[0-9;]*[mK]")


def on_a_terminal(words: list[str], **environment: str) -> str:
    """What the command prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "logstore.cli", *words],
        stdout=theirs,
        env={**plain, "COLUMNS": "80", **environment},
    ) as process:
        os.close(theirs)
        shown = b"".join(_until_closed(ours))
        assert process.wait(PATIENCE_S) == 0
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # Linux: the other side is closed
            return
        if not data:
            return
        yield data


def test_the_demo_fits_80_columns_in_colour_and_without() -> None:
    for environment in ({}, {"NO_COLOR": "1"}):
        shown = on_a_terminal(["demo"], **environment)
        assert ("\x1b[" in shown) is not bool(environment)
        lines = ESCAPE.sub("", shown).splitlines()
        assert any("the next append gets offset" in line for line in lines)
        assert [line for line in lines if len(line) > 80] == []


def test_help_fits_80_columns() -> None:
    for command in ("append", "gc", "ingest", "trim"):
        assert [line for line in on_a_terminal([command, "--help"]).splitlines() if len(line) > 80] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_of_an_ingest_is_cut_so_that_it_can_be_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    settings = PostgresSettings(dsn="host=nowhere", publication="shop")
    with PostgresIngest(lambda: logstore.open("memory://status-line"), settings) as ingest:
        line = StatusLine(ingest, settings, Output(sys.stdout, as_json=False))
        for _ in range(3):
            line._show(None)
    shown = ESCAPE.sub("", terminal.getvalue())
    assert "\n" not in shown
    first, *lines = shown.split("\r")
    assert first == ""
    assert [len(text) for text in lines] == [39, 39, 39]
    assert all(text.startswith("0 records/s") for text in lines)
