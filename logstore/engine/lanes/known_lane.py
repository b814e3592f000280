"""What a process remembers of a lane that it has read, and what it has told of the lane's partitions."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.claim_base import ClaimBase
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.part_rows import PartRows

_A_MOMENT_S = 1.0
_LET_GO_EVERY_S = 60.0
_KEPT_S = 3600.0
"""What nobody has asked for so long is let go of, once there is something new to know: processes come and go, each with a
lane of its own, and one that reads them all may stay for years."""


class Based(NamedTuple):
    """All of a partition that is in the lane: before its parts, these, and the low watermark as far as the lane says."""

    key: ClaimKey
    base: ClaimBase
    parts: PartRows
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
        self.owner = b""  # as last read: `state` is None while it is read again, and after that has failed
        self.read_at = -math.inf
        self.damaged_front: bytes | None = None  # of the checkpoint, when the state was read without it
        self._parts_of_next = (-1, 0)  # at which place, and how many
        self.said: LaneState | None = None  # what the checkpoint alone says
        self.said_at = -math.inf
        self.split_until = 0  # as last read
        self.is_listed = False  # the last reading began with a listing
        self.ours_until = -1  # behind the last transfer that we put there
        self.front: bytes | None = None  # of the checkpoint, as last read
        self.said_until = 0  # what the checkpoint reaches to, as far as we know
        self.lows: Mapping[ClaimKey, int] = {}  # what the checkpoint says that begins with
        self.lows_front: bytes | None = None
        # What was told of its partitions, and when: read without the lock.
        self.told: dict[str, Based] = {}
        self.left: set[str] | None = None  # partitions that were in it; None if some of that is lost
        self.told_at = -math.inf
        self._told_until = -1  # up to which place

    def tell(self, state: LaneState) -> None:
        """What it says of its partitions, from now on."""
        lows = state.bases.lows
        self.told = {
            prefix: Based(
                key, base, state.claims[key].parts.copy(), lows.get(key, 0), state.claims[key].is_sealed
            )
            for prefix, (key, base) in state.usable_bases().items()
        }
        left = {key.prefix for key, one in state.claims.items() if one.is_left}
        self.left = None if state.lost else left
        self.told_at, self._told_until = self.read_at, state.next_seq

    def took(self, prefixes: Iterable[str], state: LaneState, moment: float, put_at: int) -> None:
        """A transfer of ours took them at the place `put_at`, or earlier. Before that place nothing was added to the lane
        since it was read: so what is known of it is all that there was at this moment, and what it told, too, unless others
        have added something since it did."""
        self.forget(prefixes)
        self.read_at = moment
        if self._told_until == put_at:
            self.told_at, self._told_until = moment, state.next_seq

    def is_as_it_was(self, now: float) -> bool:
        """Whether nobody will have added anything to it since a moment ago: a transfer of ours was the last entry, or nobody
        owns it. Then the next one goes to the place behind it, without a look whether that is still the first empty one. If
        it is not, the store refuses it."""
        state = self.state
        if state is None or now - self.read_at >= _A_MOMENT_S:
            return False
        return state.next_seq == self.ours_until or state.has_ended_whole

    def parts_of_next(self, state: LaneState) -> int:
        """How many parts the next entry may have. Claims end with entries, so it is counted once at each place."""
        if self._parts_of_next[0] != state.next_seq:
            self._parts_of_next = state.next_seq, state.open_claims
        return self._parts_of_next[1]

    def forget(self, prefixes: Iterable[str]) -> None:
        """They are elsewhere since it told of them."""
        for prefix in prefixes:
            if self.left is not None:
                self.left.add(prefix)
            self.told.pop(prefix, None)

    def let_go(self) -> None:
        """Of all that was read: who asks reads it again."""
        self.state = self.said = self.left = None
        self.told, self.lows, self.lows_front = {}, {}, None
        self.read_at = self.said_at = self.told_at = -math.inf
        self._told_until = -1

    def is_older_than(self, moment: float) -> bool:
        """Also if it has expired, for those to whom nothing is ever too old."""
        return self.read_at == -math.inf or self.read_at < moment

    def is_unsplit_from(self, began: int) -> bool:
        """Whether nothing was split from the place on where the reading began. Asks the store."""
        self.front = self.log.front()
        if self.damaged_front is not None and self.front == self.damaged_front:
            return True
        try:
            self.split_until = self.log.split_until_of(self.front)
        except CorruptData:
            return False  # it is read without its checkpoint
        return self.split_until <= began

    def is_end(self, began: int, put_at: int) -> bool:
        """Whether somebody has just put an entry at the lane's end: nothing was split from the place on where the reading
        began, and the checkpoint knows of no other that was in this place and is gone. Asks the store."""
        return self.is_unsplit_from(began) and self._reach() <= put_at

    def _reach(self) -> int:
        """Up to which place the checkpoint that was read last knows the lane."""
        return 0 if self.front in (None, self.damaged_front) else self.log.reach_of(self.front)[1]

    def lows_unless_split(self, began: int, put_at: int | None) -> Mapping[ClaimKey, int] | None:
        """The low watermarks that the checkpoint says now; None if what was read, or put at the place `put_at`, does not
        count. One that was read before needs a look at its front."""
        if not (self.is_unsplit_from(began) if put_at is None else self.is_end(began, put_at)):
            return None
        if self.front not in (None, self.damaged_front, self.lows_front):
            try:
                checkpoint, self.lows_front = self.log.checkpoint_and_front()
            except CorruptData:
                return None
            self.lows = LaneState(checkpoint).bases.lows
            if checkpoint is not None and checkpoint.split_until > began:
                return None
        return self.lows


def let_go_of_old(lanes: Iterable[KnownLane], now: float, due: float) -> float:
    """Of those that nobody has read for long. One that somebody reads right now stays. Returns when it is due again: not
    with each of the thousands of lanes that a process may meet at once."""
    if now < due:
        return due
    for known in lanes:
        if known.read_at < now - _KEPT_S and known.reading.acquire(blocking=False):
            try:
                known.let_go()
            finally:
                known.reading.release()
    return now + _LET_GO_EVERY_S
