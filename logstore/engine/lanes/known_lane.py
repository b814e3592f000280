"""What a process remembers of a lane that it has read, and what it has told of the lane's partitions."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import NamedTuple

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.format.stored.claim_base import ClaimBase
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.lane_checkpoint import CheckpointedPart


class Based(NamedTuple):
    """All of a partition that is in the lane: before its parts, these, and the low watermark as far as the lane says."""

    key: ClaimKey
    base: ClaimBase
    parts: tuple[CheckpointedPart, ...]
    low: int
    has_ended: bool = False  # with its whole lane


class KnownLane:
    """One lane. `reading` is held while the store is asked, by one thread for all who want to know. `sealing` is
    held by the one who puts a seal, before `reading`: who waits for it may be in that seal already."""

    def __init__(self, log: LaneLog) -> None:
        self.log = log
        self.asked: set[ClaimKey] = set()
        self.to_end: list[
            tuple[ClaimKey, bytes | None]
        ] = []  # which claims, and whom each was judged to be of
        self.reading = threading.Lock()
        self.sealing = threading.Lock()
        self.state: LaneState | None = None
        self.read_at = -math.inf
        self.damaged_front: bytes | None = None  # of the checkpoint, when the state was read without it
        self.split_until = 0  # as last read
        self.is_listed = False  # the last reading began with a listing
        # What was told of its partitions, and when: read without the lock, and replaced as a whole.
        self.told: dict[str, Based] = {}
        self.left: frozenset[str] | None = None  # partitions that were in it; None if some of that is lost
        self.told_at = -math.inf

    def tell(self, state: LaneState) -> None:
        """What it says of its partitions, from now on."""
        lows = state.bases.lows
        self.told = {
            prefix: Based(
                key, base, tuple(state.claims[key].parts), lows.get(key, 0), state.claims[key].is_sealed
            )
            for prefix, (key, base) in state.usable_bases().items()
        }
        left = frozenset(key.prefix for key, one in state.claims.items() if one.is_left)
        self.left = None if state.lost else left
        self.told_at = self.read_at

    def is_as_of(self, moment: float) -> None:
        """What is known of it is all that there was then."""
        self.read_at = moment
        if self.told_at > -math.inf:
            self.told_at = moment

    def forget(self, prefixes: Iterable[str]) -> None:
        """They are elsewhere since it told of them."""
        gone = frozenset(prefixes)
        if self.left is not None:
            self.left |= gone
        for prefix in gone:
            self.told.pop(prefix, None)

    def is_older_than(self, moment: float) -> bool:
        """Also if it has expired, for those to whom nothing is ever too old."""
        return self.read_at == -math.inf or self.read_at < moment
