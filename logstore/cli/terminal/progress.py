"""What is only for a person at a terminal: tables with lines, progress, questions. Programs never see any of it.

This is the one place that knows rich, which is imported when there is a terminal and something to show.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

_NUMERIC = "0123456789"
_LATE_S = 1.0
_BAR_MIN = 6
_BYTES_WIDTH = len(" 999.9/999.9 MB 999.9 MB/s 99,999,999 (999,999/s) left 1:00:00 ")
_RECORDS_WIDTH = len(" 99,999,999 partitions (999,999/s) left 1:00:00 ")
"""What stands behind the bar at most, but for what is larger than any of it."""


def print_table(stream: TextIO, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In lines and colours. What is wider than the terminal is told row by row, in pairs of name and cell: a number that is
    broken over two lines is read as another one."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=stream, highlight=False)
    without_limit = console.options.update(max_width=1 << 16)
    for gaps in ((1, 1), (0, 1), (0, 0)):
        table = _table(heads, rows, gaps)
        if Measurement.get(console, without_limit, table).maximum <= console.width:
            console.print(table)
            return
    for row in rows:
        _print_pairs(console, heads, row)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], gaps: tuple[int, int]) -> Any:
    """`gaps`: spaces before and behind a cell, beside the one between two columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, gaps[1], 0, gaps[0]))
    for number, head in enumerate(heads):
        cells = [row[number] for row in rows]
        right = bool(cells) and all(cell[:1] in _NUMERIC and cell[:1] for cell in cells)
        table.add_column(
            head, justify="right" if right else "left", no_wrap=True, style="cyan" if not number else ""
        )
    for row in rows:
        table.add_row(*(_escaped(cell) for cell in row))
    return table


def _print_pairs(console: Any, heads: Sequence[str], row: Sequence[str]) -> None:
    """As many on a line as there is room for; one that needs more than a line is left to the terminal. A row begins with
    what it is about, which needs no name unless it is a number."""
    from rich.text import Text

    line = Text()
    for number, (head, cell) in enumerate(zip(heads, row, strict=True)):
        pair = Text.assemble((f"{head} ", "dim")) if number or cell[:1] in _NUMERIC else Text()
        pair.append(cell, "" if number else "cyan")
        if number and line.cell_len + 3 + pair.cell_len > console.width:
            console.print(line, soft_wrap=True)
            line = Text(" ")
        if number:
            line.append(" " if line.cell_len == 1 else "   ")
        line.append_text(pair)
    console.print(line, soft_wrap=True)


def _escaped(cell: str) -> str:
    return cell.replace("[", "\\[")


def ask(question: str) -> bool:
    """y/N on the terminal. `False` where nobody can answer."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def can_ask() -> bool:
    """Whether a person is there to answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def is_watched(quiet: bool) -> bool:
    """Whether progress is shown to anybody."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or no file
        return False


class Progress:
    """How far a long command is: a line on the terminal of stderr with amount, rate and time left. Where there is none, or
    with --quiet, nothing is shown; `records` and `bytes` are counted all the same, for the summary.

    `total`: how many bytes or records (`unit`) there will be; None if nobody knows. Into a pipe it is shown only once the
    work has taken `_LATE_S`: what stands at its end, `head`, most often writes to the same terminal.
    """

    def __init__(
        self,
        what: str,
        *,
        quiet: bool,
        total: int | None = None,
        unit: str = "records",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._clock = clock
        self._began = clock()
        self._unit = unit
        self._bar: Any = None
        if not is_watched(quiet):
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            FileSizeColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        console = Console(file=sys.stderr)
        in_bytes = unit == "bytes"
        # A line that is broken cannot be written over: what it is about gives way first, then the bar.
        room = console.width - (_BYTES_WIDTH if in_bytes else _RECORDS_WIDTH)
        self._room = max(8, room - _BAR_MIN if total is not None else room)
        self._is_late = _is_pipe(sys.stdout)
        columns: list[Any] = [TextColumn("{task.description}")]
        if total is not None:
            columns.append(BarColumn(bar_width=max(_BAR_MIN, min(24, room - len(self._cut(what))))))
        if in_bytes:
            columns += [FileSizeColumn() if total is None else DownloadColumn(), TransferSpeedColumn()]
        columns.append(TextColumn("{task.fields[records]}"))
        if total is not None:
            columns += [TextColumn("left"), TimeRemainingColumn(compact=True)]
        for column in columns:
            column.get_table_column().no_wrap = True
        self._bar = Bar(*columns, console=console, transient=True, refresh_per_second=5)
        self._task = self._bar.add_task(self._cut(what), total=total, records="")

    def _cut(self, what: str) -> str:
        """`verifying orders/3`, or `verifying` where there is no room."""
        short = what if len(what) <= self._room else what.split(" ")[0]
        return short if len(short) <= self._room else short[: self._room - 1] + "…"

    def advance(self, records: int = 0, size: int = 0, what: str | None = None) -> None:
        self.records += records
        self.bytes += size
        if self._bar is not None:
            rate = self.records / max(self.seconds, 1e-6)
            shown = f"{self.records:,} {'' if self._unit == 'bytes' else self._unit + ' '}({rate:,.0f}/s)"
            fields = {} if what is None else {"description": self._cut(what)}
            done = size if self._unit == "bytes" else records
            self._bar.update(self._task, advance=done, records=shown, **fields)
            if self._is_late and self.seconds >= _LATE_S:
                self._is_late = False
                self._bar.start()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    def summary(self, text: str) -> None:
        """One line on stderr at the end, where somebody has watched."""
        if self._bar is not None:
            self._bar.stop()
            print(text, file=sys.stderr)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The line is not there meanwhile: for what stands on the same terminal and stays."""
        is_shown = self._bar is not None and self._bar.live.is_started
        if is_shown:
            self._bar.stop()
        yield
        if is_shown:
            self._bar.start()

    def __enter__(self) -> Progress:
        if self._bar is not None and not self._is_late:
            try:
                self._bar.start()
            except BaseException:  # Ctrl-C: nobody calls `__exit__`, and a thread would go on drawing it
                self._bar.stop()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
