"""The judge: what was asked, what was answered, what was seen, and whether that can be true of one log.

It knows nothing of the engine. A partition is known by its topic's incarnation and its number, a record by its value, which
is unique. The first `Violation` ends a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Place = tuple[str, str, int]
"""Topic, incarnation, partition."""


@dataclass(frozen=True)
class Violation:
    """`kind` is short and stable, so that runs can be counted by it."""

    kind: str
    what: str
    step: int
    seconds: float


@dataclass
class _Partition:
    at_offset: dict[int, str] = field(default_factory=dict)
    at_value: dict[str, int] = field(default_factory=dict)
    durable: dict[int, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    asked_low: int = 0
    source: int = 0  # replicated writers were told that the source is stored up to here


class Oracle:
    """`free_low`: topics with retention. Which clock decides when their records expire is nobody's promise, so their low
    mark may be anywhere; what lies above it must be there."""

    def __init__(self, free_low: set[str]) -> None:
        self._free_low = free_low
        self.partitions: dict[Place, _Partition] = {}
        self.deleting: set[str] = set()  # incarnations, from when their deletion was asked for
        self.deleted: set[str] = set()  # and from when it was answered
        self.broken: list[tuple[str, str]] = []
        self.acks = 0
        self.reads = 0
        self.atomics: list[dict[Place, list[str]]] = []

    def of(self, place: Place) -> _Partition:
        return self.partitions.setdefault(place, _Partition())

    def violation(self, kind: str, what: str) -> None:
        self.broken.append((kind, what))

    # Appends

    def acked(
        self, place: Place, offset: int, values: list[str], *, durable: bool, began_deleted: bool
    ) -> None:
        self.acks += len(values)
        if durable and began_deleted:
            self.violation(
                "ack into a deleted topic",
                f"{place}: {values} acked durable at {offset}, and the deletion had been answered before they were sent",
            )
        for number, value in enumerate(values, offset):
            self._bind(place, number, value, "acked")
            if durable:
                self.of(place).durable[number] = value

    def refused(self, place: Place, values: list[str], why: str) -> None:
        """They were told for certain that nothing was stored."""
        partition = self.of(place)
        for value in values:
            partition.refused[value] = why
            if value in partition.at_value:
                self.violation(
                    "refused, and stored",
                    f"{place}: {value} was seen at {partition.at_value[value]}; then: {why}",
                )

    def atomic(self, parts: dict[Place, list[str]]) -> None:
        """These are about to be appended, all of them or none."""
        self.atomics.append(parts)

    def asked_to_delete_before(self, place: Place, offset: int) -> None:
        partition = self.of(place)
        partition.asked_low = max(partition.asked_low, offset)

    def source_stored(self, place: Place, upper: int) -> None:
        partition = self.of(place)
        partition.source = max(partition.source, upper)

    def _bind(self, place: Place, offset: int, value: str, how: str) -> None:
        partition = self.of(place)
        held = partition.at_offset.setdefault(offset, value)
        if held != value:
            self.violation("an offset used twice", f"{place}: {offset} is {value} ({how}), and was {held}")
        where = partition.at_value.setdefault(value, offset)
        if where != offset:
            self.violation(
                "a record twice, or moved", f"{place}: {value} is at {offset} ({how}), and was at {where}"
            )

    # Reads

    def saw(self, place: Place, asked: int, records: list[tuple[int, str]], until: int, low: int) -> None:
        """A read from `asked` on gave these, and said that it covers all up to `until` of a log that begins at `low`."""
        self.reads += 1
        partition = self.of(place)
        self.low_is(place, low)
        before = asked - 1
        for offset, value in records:
            if not before < offset < until:
                self.violation(
                    "out of order", f"{place}: {offset} after {before} in a read of {asked} to {until}"
                )
            before = offset
            if value in partition.refused:
                self.violation(
                    "refused, and stored",
                    f"{place}: {value} is at {offset}; told: {partition.refused[value]}",
                )
            self._bind(place, offset, value, "read")
        got = {offset for offset, _ in records}
        first = max(asked, low)
        for offset, value in partition.durable.items() if place[1] not in self.deleting else ():
            if first <= offset < until and offset not in got:
                self.violation(
                    "a durable record is not read",
                    f"{place}: {value} at {offset} is not in a read of {asked} to {until}",
                )

    def read_as_durable(self, place: Place, records: list[tuple[int, str]]) -> None:
        self.of(place).durable.update(records)

    def low_is(self, place: Place, low: int) -> None:
        if place[0] in self._free_low or place[1] in self.deleting:
            return
        if low > self.of(place).asked_low:
            self.violation(
                "the log begins too late",
                f"{place}: at {low}; nobody asked for more than {self.of(place).asked_low} to go",
            )

    # The end

    def audit(self, place: Place, records: list[tuple[int, str]], low: int, high: int) -> None:
        """What a fresh reader finds when everything has come to rest."""
        partition = self.of(place)
        self.saw(place, low, records, high, low)
        for offset, value in sorted(partition.durable.items()):
            if offset >= high:
                self.violation(
                    "a durable record is lost", f"{place}: {value} at {offset}; the log ends at {high}"
                )
                return
        counted: dict[str, int] = {}
        for offset, value in records:
            if value in counted:
                self.violation(
                    "a record twice, or moved", f"{place}: {value} at {counted[value]} and {offset}"
                )
            counted[value] = offset
        self._audit_source(place, [value for _, value in records], low)

    def audit_atomics(self, found: dict[Place, tuple[int, set[str]]]) -> int:
        """`found`: where each partition begins, and what a fresh reader finds in it. What was deleted since may have been
        there. Returns how many atomic appends are stored."""
        stored = 0
        for parts in self.atomics:
            there, missing = [], []
            for place, values in parts.items():
                low, present = found.get(place, (1, set()))
                there += [value for value in values if value in present]
                missing += [value for value in values if value not in present and not low]
            stored += bool(there)
            if there and missing:
                self.violation("half an atomic append", f"{there} are stored, {missing} are not: {parts}")
        return stored

    def _audit_source(self, place: Place, values: list[str], low: int) -> None:
        """A replicated partition is its source: in order, once, without a hole."""
        found = [int(value[1:]) for value in values if value.startswith("s")]
        if not found and not self.of(place).source:
            return
        first = found[0] if found else 0
        if found != list(range(first, first + len(found))):
            self.violation("the source is not in order", f"{place}: {found}")
        elif low == 0 and first != 0:
            self.violation("the source has a hole", f"{place}: begins with {first}")
        if self.of(place).source > (found[-1] + 1 if found else 0) and low == 0:
            self.violation(
                "a durable record is lost",
                f"{place}: the source is acked up to {self.of(place).source}: {found[-3:]}",
            )
