"""What a process knows of one of its lanes."""

from __future__ import annotations

import threading

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.flushed import Flushed
from logstore.engine.write.lanes.lane_life import LaneLife
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.layout.paths import LanePaths


class LaneBook:
    """`lock` guards all fields; it is held for memory work only, and inside of it no partition's lock is taken."""

    def __init__(self, runtime: Runtime, name: str, is_named: bool) -> None:
        self.lock = threading.Lock()
        self.life = LaneLife(runtime, name, is_named)
        self.known = LaneState()  # up to the last entry that is certain
        self.writers: dict[ClaimKey, Flushed] = {}  # that have not stopped
        self.ours: set[ClaimKey] = set()  # the claims that this life of the lane had writers for
        # Writers whose claims are not committed yet, and when they want a flush.
        self.unclaimed: dict[Flushed, float] = {}
        self.left: tuple[str, list[ClaimKey]] | None = None  # the lane that is given up, and its claims
        self._store = runtime.store
        self.name = name

    def claim(self) -> Claim:
        """What a fence says that leads a partition's chain into this lane. Takes the lock."""
        with self.lock:
            return Claim(self.name, self.known.next_seq)

    def waits_for_claim(self, writer: Flushed, due: float) -> bool:
        """Whether its claim is not committed yet: then a flush that is due is remembered. Holds the lock."""
        later = self.unclaimed.get(writer)
        if later is not None:
            self.unclaimed[writer] = min(due, later)
        return later is not None

    def begin_again(self, known: LaneState) -> None:
        """Another life, or another lane: it is known as far as that, and has no writers. Holds the lock."""
        self.known = known
        for kept in (self.writers, self.ours, self.unclaimed):
            kept.clear()

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name
        self.log = LaneLog(self._store, LanePaths(name))

    def __str__(self) -> str:
        return f"lane {self.name}"
