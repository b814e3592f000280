"""Asking the owner of a lane to end claims, for a taker that is outrun.

Who takes partitions over puts a seal or a transfer at the lane's first empty place, and must have read everything before it.
The owner of a busy lane puts an entry there with every request, so a taker that needs three would come too late for as long
as the owner does not pause. It puts an *ask* a few places ahead instead. That is void, and says nothing by itself; the owner
meets it like any other entry in its place, and the very entry that it sends again behind it seals the claims. An owner that
is dead meets nothing: so the taker goes on trying as before, and whichever comes first counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from logstore.engine.lanes.lane_log import LaneLog, LaneRace
from logstore.errors import CorruptData, StoreError
from logstore.format.stored.entry import ClaimKey, build_ask
from logstore.layout.paths import is_birth_lane

logger = logging.getLogger(__name__)

AHEAD = 4
"""So many places behind the one that was lost: more than come to be while the ask is under way. If that is not enough, twice
as many."""
AHEAD_MAX = 256
ANSWERED_IN = 8
"""Behind an ask, the answer is in the first entry that the owner sends again; uploads that were under way are void, and may
stand before it."""


class Asking:
    """Of one operation. `owner`: who asks."""

    def __init__(self, log: LaneLog, new_id: Callable[[], bytes], now_ms: int, owner: bytes) -> None:
        self._log = log
        self._new_id = new_id
        self._now_ms = now_ms
        self._owner = owner
        self._place = -ANSWERED_IN - 1

    def outrun(self, seq: int, claims: Iterable[ClaimKey], judged: bytes) -> None:
        """Another's entry is in the place that ours was for. Ask, unless we did and the owner may have yet to answer; an ask
        that cannot be put is none. Nobody would answer in a birth lane, and every other taker would have to read it."""
        if is_birth_lane(self._log.paths.lane):
            return
        ahead = AHEAD
        while self._place + ANSWERED_IN < seq and ahead <= AHEAD_MAX:
            header, data = build_ask(
                seq + ahead, self._new_id(), self._now_ms, sorted(claims), judged, self._owner
            )
            ahead *= 2
            try:
                self._log.commit(header, data)
                self._place = header.seq
            except LaneRace:
                continue
            except (StoreError, CorruptData) as error:
                logger.info("%s: its owner could not be asked: %s", self._log.paths, error)
                return
