"""What the commands print: lines for people, or JSON for programs."""

from __future__ import annotations

import base64
import json
import os
from typing import Any, TextIO

from logstore.cli.terminal.progress import Progress, ask, can_ask, print_table
from logstore.cli.terminal.template import Template
from logstore.cli.terminal.usage import UsageError
from logstore.format.batches.record import Record


class Output:
    """`quiet`: no progress, no summary. `is_terminal`: a person reads it."""

    def __init__(self, stream: TextIO, as_json: bool, *, quiet: bool = False) -> None:
        self.stream = stream
        self.as_json = as_json
        self.quiet = quiet
        self._is_watched = stream.isatty()
        self._progress: Progress | None = None
        self.is_terminal = not as_json and self._is_watched

    def progress(self, what: str, total: int | None = None, unit: str = "records") -> Progress:
        """For long work: what it does, and how much there is of it, in records, bytes or what else `unit` says."""
        self._progress = Progress(what, quiet=self.quiet, total=total, unit=unit)
        return self._progress

    def confirmed(self, what: str, yes: bool) -> None:
        """Before what cannot be undone: asks on a terminal; elsewhere it takes a --yes."""
        if yes:
            return
        if not can_ask():
            raise UsageError(f"{what}: say so with --yes")
        if not ask(f"{what}. Go on?"):
            raise UsageError("nothing was done")

    def row(self, fields: dict[str, Any], line: str) -> None:
        """One result: `line` for people, `fields` with --json."""
        text = json.dumps(fields) if self.as_json else line
        if self._progress is None or not self._is_watched:
            print(text, file=self.stream)
            return
        with self._progress.aside():
            print(text, file=self.stream, flush=True)

    def table(self, rows: list[dict[str, Any]], none: str = "") -> None:
        """Several results with the same fields, in columns. `none`: what a person is told if there are no rows."""
        if self.as_json:
            for fields in rows:
                print(json.dumps(fields), file=self.stream)
            return
        if not rows:
            if none and self.is_terminal:
                print(none, file=self.stream)
            return
        if self.is_terminal:
            print_table(
                self.stream, list(rows[0]), [[str(value) for value in fields.values()] for fields in rows]
            )
            return
        cells = [list(rows[0])] + [[str(value) for value in fields.values()] for fields in rows]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        for line in cells:
            print(
                "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(),
                file=self.stream,
            )

    def record(self, topic: str, partition: int, record: Record, template: Template) -> None:
        """One record, as JSON or by a kcat-like template. The bytes of a record are printed as they are: a command that
        prints records prints nothing else, because text and bytes have buffers of their own."""
        if self.as_json:
            print(json.dumps(record_fields(topic, partition, record)), file=self.stream)
        else:
            self.stream.buffer.write(template.bytes_of(topic, partition, record))

    def flush(self) -> None:
        """Let the reader of a pipe see all of it now. `BrokenPipeError` if there is none any more."""
        self.stream.flush()

    def abandon(self) -> None:
        """Nobody reads any more: what is still buffered goes nowhere, and the interpreter's last flush says nothing."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def record_fields(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record as JSON: bytes that are UTF-8 as text, others as {"base64": …}, so that nothing is lost."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
