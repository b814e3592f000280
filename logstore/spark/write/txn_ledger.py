"""Which version of an app is stored: one small object, changed by conditional puts alone.

    (nothing) ──► pending N, with its plan ──► done N ──► pending N+1 …

Whoever makes version N pending has its plan carried out, by itself or by whoever comes after: a driver that is
restarted in the middle of a commit finds the plan here and finishes it, instead of the one it has just made from a
second run of the same batch. A driver that was thought dead finds its change refused. So one plan of each version
is stored, and stored whole.

A stream's query has one run at a time, and its batches count up. The ledger notes who runs it; a run that another one has
followed, or that comes with a batch before the last one stored, is refused. Its checkpoint is a copy, or was put back, and
then a number stands for other rows than those that are stored under it: to skip it would lose them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logstore.errors import CorruptData, Fenced, Indeterminate, ObjectNotFound
from logstore.objects import ObjectStore
from logstore.objects.settled import put_settled
from logstore.spark.options.transaction import Transaction
from logstore.spark.write.staging import Part

FORMAT = 1
_ATTEMPTS = 8
_RUNS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What a commit is going to add, and from which offset of each partition on it can be found there.

    `starts` is taken before the plan is written: nothing of it can lie below.
    """

    parts: tuple[Part, ...]
    starts: dict[str, int]
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_json(self) -> dict[str, Any]:
        parts = [part.to_json() for part in self.parts]
        return {"identity": self.identity, "starts": self.starts, "parts": parts}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Plan:
        parts = tuple(Part.from_json(part) for part in fields["parts"])
        return cls(parts, fields["starts"], fields["identity"])


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    plan: Plan | None
    runs: tuple[str, ...]
    mark: str
    etag: str


class Ledger:
    """Holds no state: every call asks the store."""

    def __init__(self, store: ObjectStore, transaction: Transaction) -> None:
        self._store = store
        self._mine = transaction

    def claim(self) -> None:
        """From now on our run is the one that writes. `Fenced` if another has followed it, or its batch is an old one."""

        def next_entry(entry: _Entry | None) -> dict[str, Any] | None:
            if entry is None:
                return {"version": -1, "plan": None, "runs": [self._mine.run]}
            self._refuse_stale_run(entry)
            if entry.runs[-1:] == (self._mine.run,):
                return None
            runs = (*entry.runs, self._mine.run)[-_RUNS_KEPT:]
            plan = None if entry.plan is None else entry.plan.to_json()
            return {"version": entry.version, "plan": plan, "runs": runs}

        if self._mine.run:
            self._change(next_entry)

    def _refuse_stale_run(self, entry: _Entry) -> None:
        mine = self._mine
        if not mine.run:
            return
        if mine.run in entry.runs[:-1]:
            what = f"run {entry.runs[-1]} of it has followed this one ({mine.run})"
        elif entry.version > mine.version:
            what = f"its batch {entry.version} is stored, and this is batch {mine.version}"
        else:
            return
        raise Fenced(
            f"{mine.app}: {what}. Two queries run with one checkpoint or with copies of it, or an older state of it was "
            "put back: which rows a batch's number stands for is no longer certain, so nothing of this one is stored. "
            "Stop the other one; if there is none, go on with a new checkpoint, where the stored rows end"
        )

    def pending(self) -> tuple[int, Plan] | None:
        """A version that somebody began to store and did not finish."""
        entry = self._read()
        return (entry.version, entry.plan) if entry is not None and entry.plan is not None else None

    def is_done(self) -> bool:
        """Whether our version, or a later one, is stored."""
        entry = self._read()
        if entry is None:
            return False
        self._refuse_stale_run(entry)
        return entry.version >= self._mine.version and entry.plan is None

    def begin(self, plan: Plan) -> Plan | None:
        """The plan to carry out: ours, or the one that is stored for our version already. None if nothing is left to do."""

        def next_entry(entry: _Entry | None) -> dict[str, Any] | None:
            if entry is not None:
                self._refuse_stale_run(entry)
                if entry.version >= self._mine.version or entry.plan is not None:
                    return None
            return {"version": self._mine.version, "plan": plan.to_json()}

        entry = self._change(next_entry)
        if entry.version == self._mine.version:
            return entry.plan
        if entry.version < self._mine.version:
            raise Indeterminate(
                f"{self._mine.ledger}: another driver is just storing version {entry.version}; try again"
            )
        return None

    def finish(self, version: int) -> None:
        """The version is stored, whole."""

        def next_entry(entry: _Entry | None) -> dict[str, Any] | None:
            if entry is None or entry.version != version or entry.plan is None:
                return None  # somebody else has finished it
            return {"version": version, "plan": None}

        self._change(next_entry)

    def withdraw(self) -> bool:
        """Whether no plan is stored, and none that we sent can come to be: a begin without an answer may be carried out
        after we have given up. So the ledger becomes another one, by a mark that means nothing else, and what was sent
        meets that."""
        mark = uuid.uuid4().hex

        def next_entry(entry: _Entry | None) -> dict[str, Any] | None:
            if entry is None:
                return {"version": -1, "plan": None, "mark": mark}
            if entry.plan is not None or entry.mark == mark:
                return None
            return {"version": entry.version, "plan": None, "mark": mark}

        return self._change(next_entry).plan is None

    def _change(self, next_entry: Callable[[_Entry | None], dict[str, Any] | None]) -> _Entry:
        """Put what `next_entry` makes of the present entry, until that is settled; returns the one there then."""
        doubt: Exception | None = None
        for _ in range(_ATTEMPTS):
            entry = self._read()
            change = next_entry(entry)
            if change is None:
                assert entry is not None, "an entry that is not there is always changed"
                return entry
            runs = () if entry is None else entry.runs
            data = json.dumps({"format": FORMAT, "app": self._mine.app, "runs": runs} | change).encode()
            try:  # whoever's is stored then: the next look decides what is left to be done
                put_settled(self._store, self._mine.ledger, data, None if entry is None else entry.etag)
            except Indeterminate as error:
                doubt = error
        raise Indeterminate(
            f"{self._mine.ledger}: it could not be changed ({doubt}); nothing is lost, try again"
        )

    def _read(self) -> _Entry | None:
        key = self._mine.ledger
        known = self._store.head(key)  # first, so that an etag is never newer than what is read
        if known is None:
            return None
        try:
            fields = json.loads(self._store.get(key))
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']}, this release knows {FORMAT}")
            plan = None if fields["plan"] is None else Plan.from_json(fields["plan"])
            runs, mark = tuple(fields.get("runs", ())), fields.get("mark", "")
            return _Entry(fields["version"], plan, runs, mark, known.etag)
        except ObjectNotFound:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(key, None, f"the ledger cannot be read ({error!r})") from error
