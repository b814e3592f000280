"""What the tracker hands out: leases, the findings of a check, and the explanation of what holds the report
back.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Literal

from logstore.ingest.offsets import O


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to report for `sink`. Each incarnation has its own generation; only the newest one counts."""

    sink: Hashable
    generation: int


@dataclass(frozen=True, slots=True)
class Challenge(Generic[O]):
    """Nothing stored for longer than the grace period: prove progress, or say `waiting(lease, why)`."""

    lease: Lease
    owes: O
    idle_s: float


@dataclass(frozen=True, slots=True)
class Stalled(Generic[O]):
    """The verdict: hand the sink over and replay it from the report. The tracker itself changes nothing."""

    lease: Lease
    owes: O
    idle_s: float
    reason: Literal["owner gone", "no progress"]


@dataclass(frozen=True, slots=True)
class Holder(Generic[O]):
    """One sink that holds the report back."""

    lease: Lease
    owes: O
    debts: int
    stored: O | None
    owed_for_s: float
    idle_s: float
    owner_alive: bool
    waiting_for: str | None

    def __str__(self) -> str:
        stored = "nothing reported" if self.stored is None else f"stored up to {self.stored}"
        state = "" if self.owner_alive else ", owner gone"
        if self.waiting_for is not None:
            state += f", waiting for {self.waiting_for}"
        return (
            f"{self.lease.sink} owes {self.owes} and {self.debts - 1} more ({stored}), "
            f"owed for {self.owed_for_s:.1f} s, no progress for {self.idle_s:.1f} s{state}"
        )


@dataclass(frozen=True, slots=True)
class Explanation(Generic[O]):
    """Why the report is where it is. `held_by` names the sinks of the oldest debts, oldest first."""

    flushed: O
    newest: O
    owed: int
    held_by: tuple[Holder[O], ...]

    def __str__(self) -> str:
        if not self.held_by:
            return f"flushed up to {self.flushed}: nothing is owed"
        head = f"flushed up to {self.flushed}, newest {self.newest}, {self.owed} owed; held back by"
        return "\n  ".join([head, *map(str, self.held_by)])
