"""What the processes of a run write down, and how it becomes the histories that `check_history` judges.

All of them append to one file, a line with one `write` each. The kernel puts the lines in order, and a line that was written
stays when its process is killed: "began" is written before a call and its end after it, so the order of the lines is one in
which things may have happened. (A power cut is not part of these runs, so nothing is fsynced.)
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from logstore.engine.memory.results import ReadResult
from logstore.testing.history_events import (
    Acked,
    AppendBegan,
    AppendFailed,
    Crashed,
    Event,
    Opened,
    ReadBegan,
    ReadEnded,
    Recovered,
)

Line = dict[str, Any]


class Journal:
    """One process's way to the file. Safe for threads: a line is one `write`."""

    def __init__(self, path: str | Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._ops = count(1)

    def close(self) -> None:
        os.close(self._handle)

    def note(self, event: str, **fields: Any) -> None:
        # A line that a kill cut off must not swallow the next one: hence the break before it.
        os.write(self._handle, b"\n" + json.dumps({"event": event, **fields}).encode() + b"\n")

    def op(self) -> str:
        return f"{os.getpid()}-{next(self._ops)}"

    def began(
        self, topic: str, process: str, values: Iterable[bytes], ack: str, *, idempotent: bool = False
    ) -> str:
        op, texts = self.op(), [value.decode() for value in values]
        self.note("began", op=op, topic=topic, process=process, values=texts, ack=ack, idempotent=idempotent)
        return op

    def read(self, topic: str, process: str, offset: int, visibility: str) -> str:
        op = self.op()
        self.note("read", op=op, topic=topic, process=process, offset=offset, visibility=visibility)
        return op

    def got(self, op: str, topic: str, result: ReadResult) -> None:
        found = [(record.offset, (record.value or b"").decode()) for record in result.records()]
        marks = result.low_watermark, result.durable_high_watermark, result.buffered_high_watermark
        self.note("got", op=op, topic=topic, records=found, next=result.next_offset, marks=marks)


def lines_of(path: Path) -> Iterator[Line]:
    with path.open() as lines:
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue  # empty, or cut off by a kill: nobody was told of it
            if isinstance(found, dict):
                yield found


class Histories:
    """The lines, sorted by topic, as events."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}
        self.acks: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.appends = 0
        self.reads = 0
        self.errors: list[Line] = []
        self.maintained: Counter[str] = Counter()
        self.trimmed: Counter[str] = Counter()  # the highest offset that anybody asked for
        self._ops: dict[str, int] = {}
        self._levels: dict[str, str] = {}
        self._lives: dict[str, list[str]] = {}
        self._owners: dict[str, str] = {}  # who held the topic's WAL last

    def take(self, line: Line) -> None:
        match line["event"]:
            case "crashed":
                self._crashed(line["process"])
            case "maintained":
                self.maintained.update({"merged": line["merged"], "deleted": line["deleted"]})
            case "error":
                self.errors.append(line)
            case "trim":
                self.trimmed[line["topic"]] = max(self.trimmed[line["topic"]], line["offset"])
            case "failed":
                self.failures[line["why"]] += 1
                self._add(line, AppendFailed(self._ops[line["op"]], line["certain"]))
            case _:
                self._add(line, self._event(line))

    def _add(self, line: Line, event: Event | None) -> None:
        if event is not None:
            self.events.setdefault(line["topic"], []).append(event)

    def _event(self, line: Line) -> Event | None:
        match line["event"]:
            case "opened":
                self._lives.setdefault(line["topic"], []).append(line["process"])
                return Opened(line["process"])
            case "recovered":
                before = self._owners.get(line["topic"])
                self._owners[line["topic"]] = line["process"]
                return Recovered(line["process"], before if line["same_disk"] else None, late=True)
            case "began":
                self.appends += 1
                self._levels[line["op"]] = line["ack"]
                values = tuple(value.encode() for value in line["values"])
                return AppendBegan(
                    self._number(line), line["process"], values, line["ack"], line["idempotent"]
                )
            case "acked":
                self.acks[self._levels[line["op"]]] += 1
                return Acked(self._ops[line["op"]], line["offset"])
            case "read":
                return ReadBegan(self._number(line), line["process"], line["offset"], line["visibility"])
            case "got":
                self.reads += 1
                records = tuple((offset, value.encode()) for offset, value in line["records"])
                return ReadEnded(self._ops[line["op"]], records, line["next"], *line["marks"])
        return None

    def _number(self, line: Line) -> int:
        return self._ops.setdefault(line["op"], len(self._ops))

    def _crashed(self, process: str) -> None:
        """A process may have called itself by several names, one for each writer it had in a topic."""
        for topic, lives in self._lives.items():
            for life in [life for life in lives if life.partition("~")[0] == process]:
                self.events[topic].append(Crashed(life))
                lives.remove(life)
