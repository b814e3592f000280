"""What must not be. The judge keeps the log as it was committed, and compares everything with that.

Kinds of violations:
    lost     an acked or committed record is missing, or stands at another offset
    twice    a record is stored twice
    dangling the manifest names an object that is gone
    misread  a reader is given something else than the log
    short    a reader believes in an end before what was acked when it began
    denied   a caller was told "never stored" of a record that is
    undead   a record is acked that was not in the log when a deletion of the topic believed to have ended it
    gap      replicated writers left out a part of their source, or took it for stored
    damage   a reader reports damage where there is none
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.actors import Said
from tests.model.protocol import chain_of
from tests.model.search import Violation
from tests.model.store import Objects


class Told(NamedTuple):
    """The log since offset 0, and what callers were told."""

    log: tuple[Any, ...] = ()
    acked: frozenset[Any] = frozenset()
    denied: frozenset[Any] = frozenset()
    acked_end: int = 0
    low: int = 0
    ended: bool = False


class LogJudge:
    def first(self) -> Told:
        return Told()

    def acked_end(self, told: Told) -> int:
        return told.acked_end

    def stored(self, told: Told, objects: Objects) -> tuple[Told, Violation | None]:
        manifest, parts = chain_of(objects)
        if told.ended:
            return told, None
        end, log = manifest.low, told.log
        for key, base, records in parts:
            if records is None:
                return told, ("dangling", f"the log needs {key}, which is gone")
            if base != end:
                return told, ("lost", f"{key} says offset {base}, the log goes on at {end}")
            for record in records:
                if end < len(log):
                    if log[end] != record:
                        return told, ("lost", f"{log[end]} was at {end}; {record} is there now")
                else:
                    if why := self._may_not_follow(told, log, record):
                        return told, why
                    log = (*log, record)
                end += 1
        if end < len(log):
            return told, (
                "lost",
                f"the log ends at {end}; it had {log}, acked: {sorted(map(str, told.acked))}",
            )
        return told._replace(log=log, low=manifest.low), None

    def _may_not_follow(self, told: Told, log: tuple[Any, ...], record: Any) -> Violation | None:
        if record in log:
            return "twice", f"{record} is stored twice: {(*log, record)}"
        if record in told.denied:
            return "denied", f"{record} was never stored, its caller was told; now it is"
        if isinstance(record, int) and record != sum(isinstance(one, int) for one in log):
            return "gap", f"position {record} of the source follows {log}"
        return None

    def heard(self, told: Told, said: Said) -> tuple[Told, Violation | None]:
        match said.what, said.args:
            case "acked", (record, offset):
                if told.log[offset : offset + 1] != (record,):
                    kind = "undead" if told.ended else "lost"
                    return told, (kind, f"{record} was acked at {offset}; the log is {told.log}")
                end = max(told.acked_end, offset + 1)
                return told._replace(acked=told.acked | {record}, acked_end=end), None
            case "denied", (record,):
                if record in told.log:
                    return told, (
                        "denied",
                        f"{record} was never stored, its caller is told; the log is {told.log}",
                    )
                return told._replace(denied=told.denied | {record}), None
            case "dropped", (record,):
                if record not in told.log:
                    return told, ("gap", f"{record} is dropped as stored by a peer; the log is {told.log}")
            case "gap", (record,):
                return told, (
                    "gap",
                    f"the writer of {record} believes that something before it is missing: {told.log}",
                )
            case "given", (at, end, records):
                if told.log[at:end] != records:
                    return told, ("misread", f"{records} was given from {at} to {end}; the log is {told.log}")
            case "expired", (at, to):
                if to > told.low:
                    return told, ("misread", f"a reader skips {at} to {to}; the log begins at {told.low}")
            case "end", (at, need):
                if at < need:
                    return told, (
                        "short",
                        f"a reader believes in the end {at}; {need} were acked when it began",
                    )
            case "damage", (row,):
                return told, ("damage", f"a reader takes {row} for damaged")
            case "ended", ():
                return told._replace(ended=True), None
        return told, None
