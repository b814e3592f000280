"""Becoming the exclusive writer of a partition: fence, and bring back what the WAL kept.

The fence is an ordinary segment of epoch + 1, committed like any other. If somebody else's segment is in its place, that one
is taken into account and the next place is tried. If its place turns out to have been emptied by garbage collection, the
fence is in the past and counts for nothing: the chain is loaded again, and the next fence goes to its end. It starts
past everything that readers may have seen, and it names its owner. Whether it may be committed at all is judged first
(`ownership`), for the very tail that it goes behind. Records that the WAL kept (acked `local`, not yet durable) are part of
the fence itself, so they are durable again in the same commit, at their old offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from logstore.config import TakeOver
from logstore.engine.chain.chain import Chain, LostRace
from logstore.engine.chain.link import Link, link_of_fence
from logstore.engine.chain.parts import links_of
from logstore.engine.chain.tail import ChainTail
from logstore.engine.host.clock import waitable
from logstore.engine.lanes.transfers import Taken, Wanted
from logstore.engine.memory.catch_up import catch_up, reload
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.ownership import check_may_stop
from logstore.engine.write.reservation import RESERVATION
from logstore.engine.write.wal.wal import WalPart
from logstore.errors import (
    Indeterminate,
    StoreError,
    StoreUnavailable,
    UnknownTopic,
    fresh,
)
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.entry import ClaimKey, fence_row
from logstore.format.stored.extras import Extras
from logstore.format.stored.lane_checkpoint import Moved
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, WriterMode, build_segment

T = TypeVar("T")


def take_over(
    runtime: Runtime,
    chain: Chain,
    state: PartitionState,
    wal: WalPart | None,
    *,
    reserve: bool,
    timeout: float,
    may_stop: TakeOver,
    lane: Lane | None = None,
) -> None:
    """Fence every other writer off. Afterwards the tail's epoch is ours and its `start_offset` is where we go on.

    `reserve`: offsets will be shown before they are stored, so reserve some at once. `may_stop`: as `StoreConfig.take_over`;
    raises what `check_may_stop` does, before anything is committed. `lane`: the chain goes on there. If it has a name and
    the claim at the tail is one of its life before, that goes on, and nothing is committed at all.
    """
    deadline = runtime.clock.monotonic() + timeout
    if lane is not None:
        _insist(runtime, chain, deadline, partial(lane.enter, may_stop))
    while True:
        tail = state.tail
        if tail.deleted:
            raise UnknownTopic(f"{chain.paths}: the topic was deleted")
        if tail.damaged is not None:
            raise fresh(tail.damaged)
        replay = wal.recover(tail, state.is_lost) if wal is not None else []
        judged, key = chain.adopter_of(tail), ClaimKey(chain.paths.prefix, tail.epoch)
        if lane is not None and not replay and lane.goes_on(key, tail, judged):
            state.go_on(runtime.presence.show().pack())
            return
        check_may_stop(chain, tail, may_stop)
        if tail.claim is not None:
            moves = not replay and chain.paths.birth_lane is not None
            if (
                moves
                and lane is not None
                and _transfer(runtime, chain, state, judged, deadline, lane, reserve=reserve)
            ):
                return
            if _end_claim(runtime, chain, state, judged, deadline):
                continue
        header = _fence(runtime, tail, replay, reserve)
        # If the WAL kept less than readers may have seen, a second fence says where the records go on. Only that one leads
        # into the lane: there another could take over behind the first, and the second would not meet it.
        is_last = header.end_offset >= tail.start_offset
        if _commit(runtime, chain, state, header, replay, deadline, lane if is_last else None) and is_last:
            return


def _fence(runtime: Runtime, tail: ChainTail, replay: Sequence[EncodedBatch], reserve: bool) -> SegmentHeader:
    base = tail.end_offset if replay else tail.start_offset
    end = replay[-1].end_offset if replay else base
    start = max(tail.start_offset, end)
    return SegmentHeader(
        seq=tail.next_seq,
        epoch=tail.epoch + 1,
        base_offset=base,
        end_offset=end,
        writer_id=runtime.new_id(),
        created_at_ms=runtime.clock.now_ms(),
        reserved_until=start + RESERVATION if reserve and start == end else start,
        mode=WriterMode.EXCLUSIVE,
        flags=SegmentFlags.FENCE,
    )


def _commit(
    runtime: Runtime,
    chain: Chain,
    state: PartitionState,
    header: SegmentHeader,
    replay: Sequence[EncodedBatch],
    deadline: float,
    lane: Lane | None,
) -> bool:
    """Commit the fence, trying until the deadline. False if another's segment is there, or the chain has gone on from
    there long ago: that was taken in."""
    claim = None if lane is None else lane.claim()
    if lane is not None:
        key = ClaimKey(chain.paths.prefix, header.epoch)
        lane.begin(key, header.seq + 1, header.end_offset, header.reserved_until)
    extras = Extras(owner=runtime.presence.show().pack(), claim=claim)
    data, summary = build_segment(header, replay, extras)
    try:
        _insist(runtime, chain, deadline, partial(chain.commit, header, data))
    except LostRace:
        catch_up(chain, state, by_owner=True)
        return False
    if _is_stale(chain, state, header):
        return False
    added = state.add_committed([Link(summary, len(data), extras)], by_owner=True)
    assert added, "nobody but the owner moves the tail"
    state.tell_listeners()
    return True


def _transfer(
    runtime: Runtime,
    chain: Chain,
    state: PartitionState,
    judged: bytes,
    deadline: float,
    lane: Lane,
    *,
    reserve: bool,
) -> bool:
    """The chain goes on in another's lane: let it go on in ours, with the entry that ends that claim. False if there is more
    to judge, or the claim has ended already."""
    tail = state.tail
    assert tail.claim is not None
    key = ClaimKey(chain.paths.prefix, tail.epoch)
    ahead = RESERVATION if reserve else 0
    from_lane, since, next_seq, end = tail.claim.lane, tail.claim.since, tail.next_seq, tail.end_offset
    wanted = Wanted(key, since, next_seq, end, tail.reserved_until, judged, ahead)

    def take() -> Taken | None:
        left = waitable(deadline - runtime.clock.monotonic())
        try:
            return lane.claiming.take(from_lane, wanted).result(left)
        except TimeoutError:
            raise Indeterminate(f"{chain.paths}: the store has not answered yet") from None

    taken = _insist(runtime, chain, deadline, take)
    if taken is None or not lane.claiming.taken(taken.moved.fence):
        return False
    go_on_behind(chain, state, taken)
    return True


def claim_ahead(runtime: Runtime, chain: Chain, state: PartitionState, lane: Lane) -> Future[Taken | None]:
    """Take a partition over whose owner can append nothing more, and go on as if that were done: afterwards the tail is as
    it will be if nobody is faster. What became of it is told later. Asks nobody."""
    tail = state.tail
    assert tail.claim is not None
    key, start = ClaimKey(chain.paths.prefix, tail.epoch), tail.start_offset
    fence = fence_row(ClaimKey(key.prefix, key.epoch + 1), tail.next_seq, SegmentFlags.FENCE, start, start)
    moved = Moved(fence, lane.claim(), runtime.presence.show().pack())
    state.add_committed([link_of_fence(moved)], by_owner=True)
    wanted = Wanted(
        key,
        tail.claim.since,
        tail.next_seq,
        tail.end_offset,
        tail.reserved_until,
        chain.adopter_of(tail),
        is_exact=True,
    )
    return lane.claiming.take(tail.claim.lane, wanted, is_patient=True)


def go_on_behind(chain: Chain, state: PartitionState, taken: Taken) -> None:
    """Our fence is committed, in the lane where the chain went on before. Its low watermark is what that lane says."""
    tail = state.tail
    assert tail.claim is not None
    added = state.add_committed(links_of(tail.claim, taken.parts, taken.moved), by_owner=True)
    assert added, "nobody but the owner moves the tail"
    state.raise_low_watermark(taken.low)
    state.tell_listeners()


def _end_claim(runtime: Runtime, chain: Chain, state: PartitionState, judged: bytes, deadline: float) -> bool:
    """The partition's segments go into another's lane: end that first. Whether there is more to judge: segments that were
    found by that, or another owner of the lane."""
    before = state.tail
    assert before.claim is not None

    def end() -> bool:
        owner = runtime.presence.show().pack()
        has_ended = chain.end_claim(before, runtime.new_id, runtime.clock.now_ms(), owner, judged)
        catch_up(chain, state, by_owner=True)
        return state.tail != before or not has_ended

    return _insist(runtime, chain, deadline, end)


def _is_stale(chain: Chain, state: PartitionState, header: SegmentHeader) -> bool:
    """Whether the fence is in a place that had been emptied. Then the chain is loaded again. If not, what the manifest
    says of the low watermark is known from now on: who loaded the partition by what a lane says may have missed it."""
    if not state.tail.may_be_emptied:
        return False
    now = chain.horizon()
    if chain.was_passed(now, header.seq, state.tail.horizon, header.seq):
        reload(chain, state, by_owner=True)
        return True
    state.raise_low_watermark(now.low)
    return False


def _insist(runtime: Runtime, chain: Chain, deadline: float, attempt: Callable[[], T]) -> T:
    """What `attempt` gives, which is made again after an error of the store, until the deadline."""
    failures = 0
    while True:
        try:
            return attempt()
        except StoreError as error:
            failures += 1
            # Without permission, or without a bucket, trying again is only a slow way to fail.
            hopeless = isinstance(error, StoreUnavailable) and not error.retriable
            if hopeless or not runtime.back_off(failures, deadline):
                doubt = (
                    " (the fence itself may or may not exist; that does no harm)"
                    if isinstance(error, Indeterminate)
                    else ""
                )
                raise StoreUnavailable(
                    f"{chain.paths}: the writer could not be opened, nothing was appended{doubt}: {error}"
                ) from error
