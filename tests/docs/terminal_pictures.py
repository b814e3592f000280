"""The pictures of docs/cli.md: commands that are typed into a real terminal, tmux's, and what it shows.

    python -m tests.docs.terminal_pictures     # writes docs/terminal-*.svg again

A test types the same, and compares what is shown then with what the pictures show, numbers aside.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.support.blocks import ROOT
from tests.support.patience import PATIENCE_S

COLUMNS, ROWS = 112, 44
LINES = 400_000
PROGRESS, SESSION = (ROOT / "docs" / f"terminal-{name}.svg" for name in ("progress", "session"))
_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", re.DOTALL)
_CHARACTER = 12.2  # how wide rich draws one
_SVG = "{http://www.w3.org/2000/svg}"
_FORMAT = _FONT.sub("", CONSOLE_SVG_FORMAT).replace(
    "Fira Code, monospace", "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
"""rich's, without its font: a picture in our docs asks nobody for anything."""


class Terminal:
    """A shell in tmux, in a folder of its own with a store that is not there yet."""

    def __init__(self, folder: Path) -> None:
        self._socket = ("tmux", "-L", f"logstore-{os.getpid()}", "-f", os.devnull)
        shim = folder / "bin" / "logstore"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m logstore.cli "$@"\n')
        shim.chmod(0o755)
        settings = {
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LOGSTORE_URL": "./shop",
            "PS1": "$ ",
            "PROMPT_COMMAND": "tmux wait-for -S ready",
            "LANG": "C.UTF-8",
        }
        start = folder / "bin" / "start"
        exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
        start.write_text("\n".join([*exports, "unset NO_COLOR HISTFILE"]))
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        shell = ("bash", "--noprofile", "--rcfile", str(start))
        self._tmux("new-session", "-d", *size, "-c", str(folder), *shell)
        self._wait()

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            [*self._socket, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout

    def _wait(self) -> None:
        """For the next prompt: the shell says that it comes, then it is there."""
        self._tmux("wait-for", "ready")
        self.wait_for(r"(^|\n)\$$")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def run(self, line: str) -> None:
        self.type(line)
        self._wait()

    def interrupt(self) -> None:
        self._tmux("send-keys", "C-c")
        self._wait()

    def shown(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else [])).rstrip()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until the screen has it. A screen tells nobody that it has changed, so it is looked at again and again."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.shown())) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern!r} on the screen:\n{self.shown()}")
        return found

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def terminal() -> Iterator[Terminal]:
    with tempfile.TemporaryDirectory() as folder:
        with open(Path(folder) / "lines.txt", "w") as lines:
            lines.writelines(f"order {n:07d}: three of this and two of that\n" for n in range(LINES))
        opened = Terminal(Path(folder))
        try:
            yield opened
        finally:
            opened.close()


def session() -> dict[Path, str]:
    """What the terminal shows while lines are appended, and at the end; with colours."""
    with terminal() as shell:
        shell.run("logstore create events --partitions 3 --retention 7d")
        shell.type("logstore append events < lines.txt")
        shell.wait_for(r"appending to events .* [1-9][\d,]* \([1-9].*left \d")
        progress = shell.shown(colours=True)
        shell.interrupt()
        stored = shell.wait_for(r"--resume (\d+)")[1]
        shell.run(f"logstore append events --resume {stored} < lines.txt")
        shell.run("logstore topics")
        shell.run("logstore cat events -o -1 -f '%t/%p @ %o: %s\\n'")
        shell.run("logstore cat event")
        shell.type("logstore delete events")
        shell.wait_for(r"\[y/N\]")
        shell.run("n")
        shell.run("logstore verify")
        return {PROGRESS: progress, SESSION: shell.shown(colours=True)}


def picture(shown: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="256")
    console.print(Text.from_ansi(shown), soft_wrap=True)
    return console.export_svg(title="logstore", code_format=_FORMAT, unique_id="logstore")


def lines_of(svg: str) -> list[str]:
    """The text of a picture, line by line."""
    rows: dict[float, str] = {}
    for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
        if group.get("class") == "logstore-matrix":
            for text in group.iter(f"{_SVG}text"):
                y, column = float(text.get("y", "")), round(float(text.get("x", "")) / _CHARACTER)
                rows[y] = rows.get(y, "").ljust(column) + (text.text or "").replace("\xa0", " ")
    return [rows[y].rstrip() for y in sorted(rows)]


def shape(line: str) -> str:
    """A line without what is never the same twice: numbers and their units, how long a bar or a rule is, gaps."""
    line = re.sub(r"[━╸╺─]+", "─", line)
    line = re.sub(r"<?\$?\d[\d.,:]*(/\d[\d.,]*)?( (bytes|[kMG]?B|ms|s|min|h|d))?(?![a-z])", "#", line)
    return " ".join(line.split())


if __name__ == "__main__":
    for path, what in session().items():
        path.write_text(picture(what))
