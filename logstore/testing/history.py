"""Was it right? `check_history(events)` holds what a log was seen to do against what it promises.

    history = History()
    with history.append(writer, [b"a", b"b"], "durable") as op:     # a call begins …
        op.acked(log.append([b"a", b"b"]).offset)                   # … and how it ended
    with history.read(reader, 0) as op:
        op.returned(log.read(0))
    history.crashed(writer)
    check_history(history.events)                                   # or HistoryViolation, with both events

What is checked, for one partition:

    never twice     an offset belongs to one record for ever, whoever has seen it, across crashes (L17), and a record has
                    one offset: no retry stores it twice (W04)
    never lost      a record acked `durable`, or read with durable visibility, or below a durable high watermark that its
                    writer's process reported, is in every later read that covers its offset, in every process (L01, L15,
                    L19)
    read after ack  a record acked at any level is in every later read of the same process (L11); one acked `local` also in
                    every read after its disk was recovered (L09)
    in order        an append that begins after another was acked gets higher offsets; the records of one append are
                    contiguous; a read returns each offset once, in order, from the one asked for on (L12, L13)
    nothing made up a record that is read was appended; one whose append failed for certain never shows up (L03), unless it
                    was an idempotent one: somebody else may have stored the same record
    marks           low ≤ durable ≤ buffered, and none moves back in a process's life (L15)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from logstore.config import Ack
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

Marks = tuple[int, int, int]
_NO_MARKS = (0, 0, 0)


class HistoryViolation(AssertionError):
    """A promise was broken. The message names it, and the events that show it by their place in the history."""


def check_history(events: Iterable[Event]) -> None:
    """Raise `HistoryViolation` if the events break a promise of the partition log."""
    checker = _Checker()
    for number, event in enumerate(events):
        checker.take(number, event)


@dataclass(slots=True)
class _Owed:
    """A record that reads must return: to everybody once it is durable, to its own process before that.

    `told`: its process knows that it is durable. Others may know it first: the answer to an upload takes its time.
    """

    value: bytes
    level: Ack
    process: str
    since: int
    told: bool


@dataclass(frozen=True, slots=True)
class _Append:
    began: int
    event: AppendBegan
    highest_acked: int


@dataclass(frozen=True, slots=True)
class _Read:
    began: int
    event: ReadBegan
    marks: Marks


@dataclass(slots=True)
class _Checker:
    """`at_offset` and `at_value` are what anybody has ever seen, with the event that showed it first.

    `placed`: the offsets of `owed`, sorted, with some that are owed no more; `soft`: those that are not durable yet. So a
    read is held against what it covers and what lies above its high watermark, not against the whole log.

    `fenced`: another process has taken the partition over. What such a one acks below durable before it knows is lost, and
    its durable high watermark passes over it once it does know.
    """

    appends: dict[int, _Append] = field(default_factory=dict)
    reads: dict[int, _Read] = field(default_factory=dict)
    at_offset: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    at_value: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    appended: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    owed: dict[int, _Owed] = field(default_factory=dict)
    placed: list[int] = field(default_factory=list)
    soft: set[int] = field(default_factory=set)
    highest_acked: dict[str, int] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)

    def take(self, number: int, event: Event) -> None:
        match event:
            case AppendBegan():
                self._append_began(number, event)
            case Acked():
                self._acked(number, event)
            case AppendFailed():
                self._append_failed(number, event)
            case ReadBegan():
                marks = self.marks.get(event.process, _NO_MARKS)
                self.reads[event.op] = _Read(number, event, marks)
            case ReadEnded():
                self._read_ended(number, event)
            case Opened():
                self.opened[event.process] = number
            case Crashed():
                self._crashed(event)
            case Recovered():
                self._recovered(number, event)

    # Appends

    def _append_began(self, number: int, event: AppendBegan) -> None:
        for value in event.values:
            if value in self.appended and not event.idempotent:
                raise ValueError(
                    f"event {number} appends {value!r} again: values must be unique in a history"
                )
            self.appended.add(value)
        # A writer that was fenced and does not know it yet may still ack below durable, at offsets reserved for it.
        rivals = (*self.highest_acked, event.process) if event.ack == "durable" else (event.process,)
        highest = max(self.highest_acked.get(process, -1) for process in rivals)
        self.appends[event.op] = _Append(number, event, highest)

    def _acked(self, number: int, event: Acked) -> None:
        append = self.appends[event.op]
        for offset, value in enumerate(append.event.values, event.offset):
            self._bind(number, offset, value)
            ack, process = append.event.ack, append.event.process
            before = self.owed.get(offset)
            if before is None or before.level != "durable" or not append.event.idempotent:
                self._owe(offset, _Owed(value, ack, process, number, told=ack == "durable"))
        if event.offset <= append.highest_acked and not append.event.idempotent:
            self._broken(
                "in order",
                number,
                f"offset {event.offset}, and offset {append.highest_acked} was acked before it began (event {append.began})",
            )
        process, last = append.event.process, event.offset + len(append.event.values) - 1
        self.highest_acked[process] = max(self.highest_acked.get(process, -1), last)

    def _owe(self, offset: int, owed: _Owed) -> None:
        if offset not in self.owed:
            place = bisect_left(self.placed, offset)
            if self.placed[place : place + 1] != [offset]:
                self.placed.insert(place, offset)
        self.owed[offset] = owed
        if owed.level != "durable":
            self.soft.add(offset)

    def _owed_in(self, start: int, stop: int | None = None) -> Iterator[tuple[int, _Owed]]:
        """What is owed from `start` up to, not including, `stop`."""
        first = bisect_left(self.placed, start)
        last = len(self.placed) if stop is None else bisect_left(self.placed, stop)
        for offset in self.placed[first:last]:
            if offset in self.owed:
                yield offset, self.owed[offset]

    def _append_failed(self, number: int, event: AppendFailed) -> None:
        if event.certain and not self.appends[event.op].event.idempotent:
            for value in self.appends[event.op].event.values:
                if value in self.at_value:
                    self._broken("nothing made up", number, f"{value!r} was refused for certain, and seen")
                self.refused.add(value)

    def _bind(self, number: int, offset: int, value: bytes) -> None:
        held, then = self.at_offset.setdefault(offset, (value, number))
        if held != value:
            self._broken(
                "never twice", number, f"offset {offset} holds {value!r}; at event {then} it held {held!r}"
            )
        place, then = self.at_value.setdefault(value, (offset, number))
        if place != offset:
            self._broken(
                "never twice", number, f"{value!r} is at offset {offset}; at event {then} it was at {place}"
            )

    # Reads

    def _read_ended(self, number: int, event: ReadEnded) -> None:
        read = self.reads.pop(event.op)
        previous = read.event.offset - 1
        for offset, value in event.records:
            if not previous < offset < event.next_offset:
                self._broken(
                    "in order", number, f"offset {offset} after {previous}, next_offset {event.next_offset}"
                )
            if value not in self.appended or value in self.refused:
                self._broken("nothing made up", number, f"{value!r} was not appended, or refused for certain")
            self._bind(number, offset, value)
            previous = offset
        self._check_marks(number, read, event)
        self._check_owed(number, read, event)
        self._learn_durable(number, read.event, event)

    def _check_marks(self, number: int, read: _Read, event: ReadEnded) -> None:
        marks = (event.low, event.durable, event.buffered)
        if not event.low <= event.durable <= event.buffered:
            self._broken("marks", number, f"low, durable, buffered are {marks}")
        if any(now < before for now, before in zip(marks, read.marks, strict=True)):
            self._broken("marks", number, f"{marks} after {read.marks} in {read.event.process}")
        low, durable, buffered = self.marks.get(read.event.process, _NO_MARKS)
        self.marks[read.event.process] = (
            max(low, event.low),
            max(durable, event.durable),
            max(buffered, event.buffered),
        )

    def _check_owed(self, number: int, read: _Read, event: ReadEnded) -> None:
        """What the read covers must be there, and the high watermark must cover what this process has acked or has
        been opened on."""
        asked = read.event
        returned = {offset for offset, _ in event.records}
        high = event.durable if asked.visibility == "durable" else event.buffered
        born = self.opened.get(asked.process, -1)
        # At least where it was asked for, or it is stuck there.
        covers = max(event.next_offset, asked.offset + 1)
        above = max(covers, high) if high >= asked.offset else high
        within = self._owed_in(asked.offset, covers) if high >= asked.offset else ()
        for offset, owed in chain(within, self._owed_in(above)):
            own = owed.process == asked.process
            visible = owed.level == "durable" or (own and asked.visibility == "buffered")
            if not visible or owed.since > read.began or offset < event.low:
                continue
            known = (own and (asked.visibility == "buffered" or owed.told)) or owed.since < born
            below_mark = offset < high or not known
            covered = asked.offset <= offset < event.next_offset
            stuck = asked.offset == offset < high and event.next_offset <= offset
            if not below_mark or stuck or (covered and offset not in returned):
                self._broken(
                    "never lost" if owed.level == "durable" else "read after ack",
                    number,
                    f"{owed.value!r}, {owed.level} at offset {offset} since event {owed.since}, is not in a read of "
                    f"{asked.offset} to {event.next_offset} below the high watermark {high} in {asked.process}",
                )

    def _learn_durable(self, number: int, asked: ReadBegan, event: ReadEnded) -> None:
        """Whatever was read as durable, or lies below the durable high watermark of its own process, must stay."""
        if asked.visibility == "durable":
            for offset, value in event.records:
                if offset not in self.owed:
                    self._owe(offset, _Owed(value, "durable", asked.process, number, told=True))
                self._make_durable(offset, number)
        if asked.process in self.fenced:
            return
        for offset in sorted(self.soft):
            if offset < event.durable and self.owed[offset].process == asked.process:
                self._make_durable(offset, number)

    def _make_durable(self, offset: int, number: int) -> None:
        owed = self.owed[offset]
        if owed.level != "durable":
            owed.level, owed.since = "durable", number
            self.soft.discard(offset)

    # Lives

    def _crashed(self, event: Crashed) -> None:
        """What a dead process acked `local` is on its disk: nobody can read it until that is recovered."""
        for offset in sorted(self.soft):
            owed = self.owed[offset]
            if owed.process == event.process and owed.level == "local":
                owed.process = _disk(event.process)
            elif owed.process == event.process:
                self._forget(offset)

    def _recovered(self, number: int, event: Recovered) -> None:
        """The disk's records are durable from here on. What only others held was declared lost by this writer's fence."""
        for offset in sorted(self.soft):
            owed = self.owed[offset]
            if event.after is not None and owed.process == _disk(event.after):
                self._make_durable(offset, number)
            elif owed.process != event.process:
                self._forget(offset)
        if not event.late or event.process not in self.opened:
            self.opened[event.process] = number
        self.fenced |= {*self.opened, *self.highest_acked}
        self.fenced.remove(event.process)

    def _forget(self, offset: int) -> None:
        del self.owed[offset]
        self.soft.discard(offset)

    @staticmethod
    def _broken(promise: str, number: int, what: str) -> None:
        raise HistoryViolation(f"{promise}: event {number}: {what}")


def _disk(process: str) -> str:
    return f"the disk of {process}"
