"""The lives of a lane with a name: which of them is ours, and what it goes on with.

A life begins with an adoption, an entry at the lane's end. Behind it nothing of the life before counts, which did not know
of it: so a process that only slept meets the adoption with its next upload, and stops. All claims go on, each at the place
and the offset where the lane says that it ended, past what was reserved: no request is needed for a partition. The claims of
which the lane has nothing yet are not known there; their partitions' own chains lead into the lane, and they go on, too,
when somebody opens them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container

from logstore.config import TakeOver
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.runtime import Runtime
from logstore.engine.write.ownership import check_may_adopt
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim


class LaneLife:
    """`is_named`: else there is one life, which needs no beginning. `_entering` is held during I/O: whoever wants to write
    must wait for that."""

    def __init__(self, runtime: Runtime, lane: str, is_named: bool) -> None:
        self.is_named = is_named
        self._runtime = runtime
        self._lane = lane
        self._entering = threading.Lock()
        self._is_ours = False
        self._carried_on: dict[str, ClaimKey] = {}  # by partition

    @property
    def is_over(self) -> bool:
        """Whether another life has begun, or none has."""
        return self.is_named and not self._is_ours

    def enter(self, may_stop: TakeOver, adopted: Callable[[LaneState], None]) -> None:
        """Begin, unless that was done; `adopted` is given the lane as it is then. Raises `PartitionInUse` if the process
        that has it must not be stopped."""
        if not self.is_over:
            return
        with self._entering:
            if self.is_over:
                runtime = self._runtime
                state = runtime.lanes.adopt(
                    self._lane,
                    runtime.new_id,
                    runtime.clock.now_ms(),
                    runtime.presence.show().pack(),
                    lambda owner: check_may_adopt(self._lane, owner, may_stop),
                )
                adopted(state)
                self._carried_on = state.carried_on()
                self._is_ours = True

    def end(self) -> None:
        """The next one has begun, elsewhere."""
        self._is_ours = False

    def tail_of(self, prefix: str, state: LaneState, ours: Container[ClaimKey]) -> ChainTail | None:
        """Where the partition's chain ends, if the life before has written it and nobody has taken it over since; known from
        the lane alone. `ours`: claims that this life has gone on with, or made."""
        key = self._carried_on.get(prefix)
        if key is None or key in ours or state.claims[key].is_sealed:
            return None
        one = state.claims[key]
        last = one.parts[-1].part if one.parts else None
        return ChainTail(
            next_seq=one.end_seq,
            epoch=key.epoch,
            end_offset=one.end_offset if last is None else last.end_offset,
            reserved_until=one.reserved_until if last is None else last.reserved_until,
            owner=state.owner,
            claim=Claim(self._lane, state.ended_before),  # it began behind the last fence, or had ended there
        )

    def goes_on(
        self, key: ClaimKey, tail: ChainTail, adopter: bytes, state: LaneState, ours: Container[ClaimKey]
    ) -> bool:
        """Whether the claim at the tail of a partition's chain is one of an earlier life: then it need not be made again. If
        so, the checkpoints name it from now on. Not if somebody else has adopted the lane, which we have not met: there may
        be parts of the claim in it that no checkpoint of ours knows."""
        if self.is_over or not self.is_named or tail.claim is None or tail.claim.lane != self._lane:
            return False
        if adopter != state.owner or key in ours or state.has_ended(key, tail.claim.since):
            return False
        one = state.claims.get(key)
        if one is None or one.is_begun:
            state.begin(key, tail.next_seq, tail.end_offset, tail.reserved_until)
            return True
        return one.end_seq <= tail.next_seq  # else there is more of it than was read
