"""What must not be, with lanes. The judge keeps the log of each partition as one who reads it afresh would see it.

Kinds of violations:
    lost     an acked or committed record is missing, or is at another offset, or two are at the same one
    hole     an offset has no record, and nothing was ever reserved (asked of mixed entries)
    twice    a record is stored twice
    reused   an offset at which a record was shown is given to another
    half     a part of an atomic append is visible, and the rest is not
    misread  a reader is given something else than the log
    short    a reader believes in an end before what was acked when it began
    denied   a caller was told "never stored" of a record that is
    endless  an owner makes its uploads again and again, with nobody but itself in its way
    undead   a record is acked that was not in the log when a deletion of the topic believed to have ended it
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.actors import Said
from tests.model.lanes import Batch, Checkpoint, Lanes, Place, Stand, Table
from tests.model.search import Violation
from tests.model.store import Objects

Log = tuple[tuple[int, str], ...]


class Told(NamedTuple):
    """The log of each partition, and what callers were told."""

    logs: tuple[Log, ...] = ()
    denied: frozenset[str] = frozenset()
    shown: frozenset[tuple[str, int, str]] = frozenset()
    acked: frozenset[str] = frozenset()
    acked_end: int = 0
    ended: frozenset[str] = frozenset()


def view(rules: Lanes, objects: Objects, part: str) -> tuple[Log, Violation | None]:
    """What is in the tables, and behind that in the lanes, claim by claim."""
    log: list[tuple[int, str]] = []
    end, n, claim = 0, 0, 0
    table: Table = objects.get(("table", rules.topic(part)), Table())
    while (entry := objects.get(Place(f"claims/{rules.topic(part)}", n))) is not None:
        n += 1
        for one in entry.claims:
            if one.part != part:
                continue
            if one.base < end or one.claim != claim:
                return tuple(log), ("lost", f"claim {one} begins before the end of the last one, {end}")
            end, claim = one.base, claim + 1
            for batch in _batches(rules, objects, table, part, one.claim, one.lane):
                if batch.base < end:
                    return tuple(log), ("lost", f"{batch} is stored where {part} has {tuple(log)}")
                if batch.base > end and rules.mixed and not rules.ahead:
                    return tuple(log), ("hole", f"{batch} is stored behind {end} of {part}: {tuple(log)}")
                log += [(batch.base + i, record) for i, record in enumerate(batch.records)]
                end = batch.end
    return tuple(log), None


def _batches(rules: Lanes, objects: Objects, table: Table, part: str, claim: int, lane: str) -> list[Batch]:
    """Those of the table, then those of valid entries; a table may be ahead of the checkpoint."""
    found = [b for b in table.batches if (b.part, b.claim) == (part, claim)]
    checkpoint: Checkpoint = objects.get(("checkpoint", lane), Checkpoint())
    at = Stand(checkpoint.until, checkpoint.until, checkpoint.edge, checkpoint.claims)
    while (entry := objects.get(Place(lane, at.next))) is not None and not at.claim(part, claim).sealed:
        if rules.is_valid(entry, at.edge):
            mine = (b for b in entry.batches if (b.part, b.claim) == (part, claim))
            found += [b for b in mine if b not in table.batches]
        at = rules.behind(at, entry)
    return found


class LaneJudge:
    def __init__(self, rules: Lanes) -> None:
        self._rules = rules

    def first(self) -> Told:
        return Told(((),) * len(self._rules.parts))

    def view(self, objects: Objects, part: str) -> tuple[Log, Violation | None]:
        return view(self._rules, objects, part)

    def acked_end(self, told: Told) -> int:
        return told.acked_end

    def stored(self, told: Told, objects: Objects) -> tuple[Told, Violation | None]:
        logs = []
        for part, old in zip(self._rules.parts, told.logs, strict=True):
            if part in told.ended:
                logs.append(old)
                continue
            log, why = self.view(objects, part)
            if why is None and log != old:
                why = self._compared(told, part, old, log)
            if why is not None:
                return told, why
            logs.append(log)
        if self._rules.atomic and not told.ended:
            groups = [{record[:2] for _, record in log if record.endswith("&")} for log in logs]
            if half := groups[0] ^ groups[1]:
                return told, ("half", f"of the atomic append {min(half)}: {logs}")
        return told._replace(logs=tuple(logs)), None

    def _compared(self, told: Told, part: str, old: Log, log: Log) -> Violation | None:
        if log[: len(old)] != old:
            return "lost", f"{part} was {old}; it is {log} now; acked: {sorted(told.acked)}"
        for n in range(len(old), len(log)):
            offset, record = log[n]
            if record in {one for _, one in log[:n]}:
                return "twice", f"{record} is stored twice: {log}"
            if record in told.denied:
                return "denied", f"{record} was never stored, its caller was told; now it is"
            for where, shown, what in told.shown:
                if where == part and (shown == offset) != (what == record):
                    return "reused", f"{what} was shown at {shown} of {part}; {record} is stored at {offset}"
        return None

    def heard(self, told: Told, said: Said) -> tuple[Told, Violation | None]:
        match said.what:
            case "acked":
                return self._acked(told, said.args)
            case "denied":
                stored = {record for log in told.logs for _, record in log}
                if wrong := sorted(stored & set(said.args)):
                    return told, ("denied", f"{wrong[0]} was never stored, its caller is told: {told.logs}")
                return told._replace(denied=told.denied | set(said.args)), None
            case "shown":
                return self._shown(told, said.args)
            case "given":
                part, offset, records = said.args
                log = told.logs[self._rules.parts.index(part)]
                if tuple(one for one in log if offset <= one[0] <= records[-1][0]) != records:
                    return told, ("misread", f"{records} were given from {offset} on; the log is {log}")
            case "end":
                part, offset, need = said.args
                if offset < need:
                    return told, (
                        "short",
                        f"a reader believes in the end {offset} of {part}; {need} were acked",
                    )
            case "endless":
                return told, ("endless", f"{said.args[0]} are made again and again")
            case "ended":
                return told._replace(ended=told.ended | set(said.args)), None
        return told, None

    def _acked(self, told: Told, batches: tuple[Batch, ...]) -> tuple[Told, Violation | None]:
        end, acked = told.acked_end, set(told.acked)
        for batch in batches:
            log = told.logs[self._rules.parts.index(batch.part)]
            for n, record in enumerate(batch.records):
                if (batch.base + n, record) not in log:
                    kind = "undead" if batch.part in told.ended else "lost"
                    return told, (kind, f"{record} was acked at {batch.base + n} of {batch.part}: {log}")
                acked.add(record)
            end = max(end, batch.end) if batch.part == "p" else end
        return told._replace(acked=frozenset(acked), acked_end=end), None

    def _shown(self, told: Told, shown: tuple[Any, ...]) -> tuple[Told, Violation | None]:
        for part, offset, record in shown:
            log = dict(told.logs[self._rules.parts.index(part)])
            if log.get(offset, record) != record:
                return told, (
                    "reused",
                    f"{record} is shown at {offset} of {part}, where {log[offset]} is stored",
                )
        return told._replace(shown=told.shown | set(shown)), None
