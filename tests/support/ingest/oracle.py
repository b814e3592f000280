"""What a flush tracker must answer, recomputed from the raw list of events: slow, declarative, no state of
its own.

A commit's debt to a sink is paid if and only if
* the sink's incarnation at the time of the commit had reported a covering flush before it, or
* some later report, by the incarnation that was the present one at the time of the report, covers it, or
* the sink was discarded later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Event = tuple[Any, ...]


@dataclass
class Oracle:
    start: int
    events: list[Event] = field(default_factory=list)

    def add(self, *event: Any) -> None:
        self.events.append(event)

    def present(self, sink: str, at: int) -> int | None:
        """The generation that owned `sink` before event number `at`; None when nobody did."""
        owner = None
        for event in self.events[:at]:
            if event[0] == "own" and event[1] == sink:
                owner = event[2]
            elif event[0] == "discard" and event[1] == sink:
                owner = None
        return owner

    def paid(self, sink: str, boundary: int, at: int) -> bool:
        owner_at_commit = self.present(sink, at)
        for number, event in enumerate(self.events):
            if event[0] == "discard" and event[1] == sink and number > at:
                return True
            if event[0] == "flushed" and event[1] == sink and event[3] >= boundary:
                generation = event[2]
                if number < at and generation == owner_at_commit and self.present(sink, number) == generation:
                    return True
                if number > at and generation == self.present(sink, number):
                    return True
        return False

    def commits(self) -> list[tuple[int, int, tuple[str, ...]]]:
        return [(number, *event[1:]) for number, event in enumerate(self.events) if event[0] == "commit"]

    def unpaid(self) -> list[tuple[int, str]]:
        return [
            (boundary, sink)
            for number, boundary, sinks in self.commits()
            for sink in sinks
            if not self.paid(sink, boundary, number)
        ]

    def answer(self) -> int:
        """The largest boundary at or below which everything owed is paid."""
        owed = [boundary for boundary, _ in self.unpaid()]
        known = [self.start, *(boundary for _, boundary, _ in self.commits())]
        known += [event[1] for event in self.events if event[0] == "heartbeat"]
        return max(boundary for boundary in known if not owed or boundary < min(owed))
