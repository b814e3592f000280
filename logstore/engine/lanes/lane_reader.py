"""Reading lanes: what each partition has in them, as of now, for all partitions of a process with the same requests.

A place that was emptied looks like one that was never used. So who has read entries, or found a place empty, reads the
checkpoint's front *afterwards*: if entries were split and emptied from the place on where the reading began, nothing that
was seen counts, and the lane is read again from its checkpoint.

A checkpoint can be done without: then every entry that is there is read, and what is missing in between was split. One that
is damaged, and has not changed since, says that nothing was split since.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from logstore.engine.host.clock import Clock, SystemClock
from logstore.engine.lanes.asking import Asking
from logstore.engine.lanes.claim_parts import ClaimParts, doubt_of_transfer, lost_place, parts_of
from logstore.engine.lanes.known_lane import Based, KnownLane, let_go_of_old
from logstore.engine.lanes.lane_log import LaneLog, LaneRace, LostEntry
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.lanes.transfers import Taken, Wanted, fence_for
from logstore.engine.lanes.whole_lane import lanes_of, read_state
from logstore.errors import CorruptData
from logstore.format.stored.entry import (
    ClaimKey,
    Entry,
    EntryHeader,
    EntryKind,
    build_entry,
    build_transfer,
    fence_row,
)
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import LaneCheckpoint, Moved
from logstore.format.stored.segment import SegmentFlags
from logstore.layout.paths import LanePaths
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import Doubts, put_settled
from logstore.objects.wrappers.slices import slice_key

_SYSTEM_CLOCK = SystemClock()
SAID_EVERY = 16
"""A checkpoint of a lane that nobody owns is written after so many entries, and after that share of what it holds."""


class LaneReader:
    """Safe for threads. `max_age`: for how many seconds what was read of a lane answers every question about it.
    `keep`: takes a part that came along with a look at its entry, of a partition that was asked for."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock = _SYSTEM_CLOCK,
        max_age: float = 0.0,
        keep: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._store = store
        self._keep = keep
        self._clock = clock
        self._max_age = max_age
        self._lock = threading.Lock()  # guards the dicts, and the moment
        self._moment = -math.inf
        self._lanes: dict[str, KnownLane] = {}
        self._abandoned: dict[str, int] = {}
        self._let_go_at = -math.inf

    def look(self, claim: Claim, key: ClaimKey, since: float | None = None, from_seq: int = 0) -> ClaimParts:
        """What there is of the claim, from a place in the partition's chain on: two requests if nothing is new, none if the
        lane was read `since` then."""
        known = self._known(claim.lane)
        oldest = self.now() - self._max_age if since is None else since
        with known.reading:
            known.asked.add(key)
            state = self._said_of(known, key, oldest) or self._read_since(known, oldest)
            return parts_of(state, claim, key, from_seq, self._abandoned.get(claim.lane))

    def is_new(self, lane: str) -> None:
        """Topics begin in this one, which the caller has just created: nobody has put anything there."""
        known = self._known(lane)
        with known.reading:
            known.state, known.read_at = LaneState(), self.now()
            known.tell(known.state)

    def now(self) -> float:
        """A moment for `look` and `based`: later than all before, also by a clock that stands still, so that what was read
        before it and what is read after it are never confused."""
        with self._lock:
            self._moment = max(self._clock.monotonic(), math.nextafter(self._moment, math.inf))
            return self._moment

    def based(self, lane: str, since: float) -> dict[str, Based]:
        """By prefix: the partitions that are known whole by what the lane says of them. It is read, unless that was done
        `since` then."""
        known = self._known(lane)
        with known.reading:
            known.tell(self._read_since(known, since))
            return dict(known.told)

    def tell(self, lane: str, oldest: float) -> None:
        """Make sure that `recall` knows the lane as it was read since then. Asks nobody if it was."""
        if self._known(lane).told_at < oldest:
            self.based(lane, oldest)

    def recall(self, prefix: str, oldest: float) -> tuple[str, Based] | None:
        """The lane that told of the partition since then, and what. From memory, without waiting for anybody."""
        with self._lock:
            lanes = [(lane, known) for lane, known in self._lanes.items() if known.told_at >= oldest]
        for lane, known in lanes:
            found = known.told.get(prefix)
            if found is not None:
                return lane, found
        return None

    def is_unborn(self, lane: str, prefix: str, oldest: float) -> bool:
        """Whether nobody had written the partition, which begins in that lane, when the lane told of its own since then.
        From memory, likewise."""
        known = self._known(lane)
        left = known.left
        return known.told_at >= oldest and left is not None and prefix not in left

    def expire(self) -> None:
        """Whatever was read is too old for the next question."""
        with self._lock:
            for known in self._lanes.values():
                known.read_at = -math.inf

    def snapshot(self, lane: str) -> LaneState:
        """The lane as it is now. The caller reads it, and changes nothing."""
        known = self._known(lane)
        with known.reading:
            return self._refresh(known)[0]

    def claim_behind(self, prefix: str, seq: int) -> tuple[ClaimKey, Claim, int, int] | None:
        """The claim of a partition whose fence is at the place `seq` of its chain and cannot be read: all lanes are asked
        for one that goes on there. With where it goes on, its end and its reservation before its first part."""
        for lane in lanes_of(self._store):
            state = self.snapshot(lane)
            for key, one in state.claims.items():
                begins = one.parts[0].part.seq if one.parts else one.next_seq
                if key.prefix == prefix and begins == seq + 1:
                    end = one.parts[0].part.base_offset if one.parts else one.end_offset
                    return key, Claim(lane, state.ended_before), end, max(end, one.reserved_until)
        return None

    def moved_to(self, key: ClaimKey, seq: int, since: float | None = None) -> Moved | None:
        """Where a claim went on whose transfer is lost, with a fence at the place `seq`: the next claim of the partition
        stands if another lane has a part of it, or says where that one went. One that was only begun proves nothing."""
        after = ClaimKey(key.prefix, key.epoch + 1)
        oldest = self.now() - self._max_age if since is None else since
        for lane in lanes_of(self._store):
            known = self._known(lane)
            with known.reading:
                state = self._read_since(known, oldest)
                one = state.claims.get(after)
                first = None if one is None else one.first
                if first is not None and first.seq == seq + 1:
                    start = first.base_offset
                    fence = fence_row(after, seq, SegmentFlags.FENCE, start, start)
                    return Moved(fence, Claim(lane, state.ended_before), state.owner)
        return None

    def overviews(self) -> list[LaneOverview]:
        """The lanes that were read, as they were then. Asks nobody, and may wait for somebody who does."""
        with self._lock:
            lanes = list(self._lanes.items())
        found: list[LaneOverview] = []
        for name, known in lanes:
            with known.reading:
                if known.state is not None:
                    found.append(known.state.overview(name))
        return found

    def owner_of(self, claim: Claim) -> bytes:
        """Who adopted the lane last, as far as it was read: a document, or nothing. Asks nobody."""
        return self._known(claim.lane).owner

    def adopt(
        self,
        lane: str,
        new_id: Callable[[], bytes],
        now_ms: int,
        owner: bytes,
        judge: Callable[[bytes], None],
    ) -> LaneState:
        """Begin the next life of the lane: put an adoption at its first empty place. Returns the lane as it is then, for the
        caller to go on with. `judge` raises if the owner it is given must not be stopped.

        It is checked like a seal: what was created in a place that had been emptied counts for nothing.
        """
        known, doubts = self._known(lane), Doubts()
        with known.reading:
            while True:
                state, began = self._to_end(known, ())
                judge(state.owner)
                seq = state.next_seq
                header = EntryHeader(EntryKind.ADOPTION, seq, new_id(), state.edge, now_ms, known_until=seq)
                data, entry = build_entry(header, [], [], owner)
                try:
                    with doubts:
                        known.log.commit(header, data)
                        if known.is_end(began, seq):
                            state.take(entry)
                            known.owner = state.owner
                            return state.copy()
                        known.state = None
                except LaneRace:
                    continue

    def end_claim(
        self,
        claim: Claim,
        key: ClaimKey,
        new_id: Callable[[], bytes],
        now_ms: int,
        owner: bytes = b"",
        judged: bytes | None = None,
    ) -> bool:
        """Make sure that a seal names the claim: put one at the lane's first empty place, unless there is one. A fence of
        the lane's owner will not do: those who read the lane go by it that nobody goes on behind a claim without its seal.
        `owner`: who does so, for the one who is stopped. One seal does for all who ask meanwhile.

        Returns whether it has ended. `judged`: if somebody else than that one has adopted the lane, nothing is done, and it
        has not: its taker judges again, and does not go on behind it.

        What was created in a place that had been emptied is in the past and counts for nothing: then all over again.
        """
        known, doubts = self._known(claim.lane), Doubts()
        asking = Asking(known.log, new_id, now_ms, owner)
        with self._lock:
            known.to_end.append((key, judged))
        try:
            with known.sealing:
                while not self._is_left(known, key):
                    with known.reading:
                        state, began = self._to_end(known, [key])
                        if state.is_left(key):
                            return True
                        if judged not in (None, state.owner):
                            return False
                        if (place := doubt_of_transfer(state, key, claim.since)) is not None:
                            raise lost_place(state, claim, place)
                        with self._lock:
                            asked = {each for each, of in known.to_end if of in (None, state.owner)}
                        wanted = sorted(
                            each
                            for each in asked
                            if not state.is_left(each)
                            and (each == key or doubt_of_transfer(state, each, 0) is None)
                        )
                        seq = state.next_seq
                        header = EntryHeader(
                            EntryKind.SEAL, seq, new_id(), state.edge, now_ms, known_until=seq
                        )
                    data, entry = build_entry(header, [], wanted, owner)
                    try:
                        with doubts:  # readers of the lane do not wait for this upload
                            known.log.commit(header, data)
                            with known.reading:
                                if not known.is_end(began, seq):
                                    known.state = None
                                    continue
                                if known.state is not None and known.state.next_seq == header.seq:
                                    known.state.take(entry)  # else somebody has read it meanwhile
                                known.forget(each.prefix for each in wanted)
                            return True
                    except LaneRace:
                        asking.outrun(seq, wanted, state.owner)
                return True
        finally:
            with self._lock:
                known.to_end.remove((key, judged))

    def abandon(self, lane: str, place: int) -> None:
        """From a lane's owner, who leaves it: nothing was ever acked that is in this place or behind it. So nothing of its
        partitions is in doubt because of what is there, for us."""
        with self._lock:
            self._abandoned[lane] = place

    def end_claims(
        self, claims: Sequence[tuple[Claim, ClaimKey]], new_id: Callable[[], bytes], now_ms: int, owner: bytes
    ) -> None:
        """`end_claim` for many of one lane, with one seal."""
        known = self._known(claims[0][0].lane)
        with self._lock:
            known.to_end += [(key, None) for _, key in claims]
        try:
            for claim, key in claims:
                if not self._is_left(known, key):
                    self.end_claim(claim, key, new_id, now_ms, owner)
        finally:
            with self._lock:
                for _, key in claims:
                    known.to_end.remove((key, None))

    def transfer(
        self,
        lane: str,
        wanted: Sequence[Wanted],
        successor: Claim,
        new_id: Callable[[], bytes],
        now_ms: int,
        owner: bytes,
        doubtful: set[ClaimKey],
    ) -> dict[ClaimKey, Taken]:
        """End these claims of the lane and let them go on in that of `successor`: one entry for all of them, at the first
        empty place. Each fence has the place behind the last part, as the lane is right before the entry, and begins
        past what was reserved. Returns those that were taken. Of the others somebody was faster, or the partition's manifest
        holds more than their taker knows, or another has adopted the lane, or it is in doubt where they go on: their takers
        look again.

        It is checked like a seal; what the checkpoint says afterwards holds every low watermark that was noted for these
        claims before they went on. `doubtful`: claims of which an earlier call does not know what became; those that stand
        are taken, too.
        """
        known, doubts = self._known(lane), Doubts()
        asking = Asking(known.log, new_id, now_ms, owner)
        with known.reading:
            is_known = doubtful.isdisjoint(one.key for one in wanted)
            state, is_guess = known.state, is_known and known.is_as_it_was(self.now())
            if state is not None and not is_guess and known.log.stands_from(state.next_seq):
                state = None  # else it is as it was
            began = 0 if state is None else state.next_seq
            while True:
                if state is None:
                    state, began = self._to_end(known, (one.key for one in wanted))
                read_at = self.now()
                moved = {
                    one.key: found
                    for one in wanted
                    if one.key in doubtful
                    and (found := state.moved_of(one.key)) is not None
                    and (found.claim.lane, found.owner) == (successor.lane, owner)
                }
                doubtful.difference_update(
                    one.key for one in wanted if one.key not in moved and state.is_left(one.key)
                )
                rows = {one.key: fence for one in wanted if (fence := fence_for(state, one)) is not None}
                if is_guess and not rows:  # nothing to put there, so it would stay a guess
                    state, is_guess = None, False
                    continue
                if not rows and not moved:
                    return {}
                seq = state.next_seq
                header = EntryHeader(EntryKind.TRANSFER, seq, new_id(), state.edge, now_ms, known_until=seq)
                data, entry = build_transfer(header, list(rows.values()), successor, owner)
                tried = rows.keys() - doubtful
                try:
                    with doubts:
                        if rows:
                            doubtful.update(tried)
                            known.log.commit(header, data)
                        lows = known.lows_unless_split(began, seq if rows else None)
                        if lows is not None:
                            if rows:
                                state.take(entry)
                                known.ours_until = state.next_seq
                                moved |= {key: Moved(row, successor, owner) for key, row in rows.items()}
                            doubtful.difference_update(moved)
                            known.took((key.prefix for key in moved), state, read_at, seq)
                            return {
                                one.key: Taken(
                                    state.parts_from(one.key, one.next_seq),
                                    moved[one.key],
                                    lows.get(one.key, 0),
                                )
                                for one in wanted
                                if one.key in moved
                            }
                        known.state = None
                except LaneRace:
                    # The winner may be an earlier try of ours: then it is of the others.
                    doubtful.difference_update(tried)
                    if not is_guess:
                        asking.outrun(seq, rows, state.owner)
                state, is_guess = None, False

    def checkpoint_ended(self, lane: str, nonce: bytes, *, is_idle: bool) -> None:
        """Of a lane for which nobody can commit anything more, as of one that nobody owns: say what it holds, if that is
        much or nobody is about to add more. Anybody may who could read all of it, and the one who was faster knows enough.
        So what its last entry says is in two places."""
        known = self._known(lane)
        with known.reading:
            state = known.state
            if state is None or state.lost or state.is_rebuilt:
                return
            unsaid = state.next_seq - known.said_until
            if not (is_idle or unsaid >= max(SAID_EVERY, len(state.claims) // SAID_EVERY)):
                return
            if not unsaid or not state.has_ended_whole:
                return
            if known.front is not None or not self._say(known, state.checkpoint(nonce), None):
                head = self._store.head(known.log.paths.checkpoint)
                # The etag first: what comes in between is not replaced.
                front = None if head is None else known.log.front()
                version, reached = (0, 0) if front is None else known.log.reach_of(front)
                if reached < state.next_seq and version != state.version:
                    # Another was written since the lane was read. It may say that entries were split, and are gone.
                    known.state = None
                    state, _ = self._refresh(known)
                    if state.lost or state.is_rebuilt or not state.has_ended_whole:
                        return
                if reached < state.next_seq:
                    self._say(
                        known, replace(state.checkpoint(nonce), version=version + 1), head and head.etag
                    )
            known.said_until = state.next_seq

    def _say(self, known: KnownLane, checkpoint: LaneCheckpoint, instead_of: str | None) -> bool:
        key = known.log.paths.checkpoint
        is_said = put_settled(self._store, key, checkpoint.pack(), instead_of) is not None
        if is_said and known.state is not None:
            known.state.version = checkpoint.version
        return is_said

    def _said_of(self, known: KnownLane, key: ClaimKey, oldest: float) -> LaneState | None:
        """What the lane's checkpoint says, if that is enough: the claim went on elsewhere, so nothing of it follows. Of a
        lane that is known already, what was added to it is asked for."""
        if known.state is not None:
            return None
        if known.said is None or known.said_at < oldest:
            read_at = self.now()
            try:
                known.said, known.said_at = LaneState(known.log.checkpoint()), read_at
            except CorruptData:
                return None  # `_refresh` does without it
        return known.said if known.said.is_left(key) else None

    @staticmethod
    def _is_left(known: KnownLane, key: ClaimKey) -> bool:
        with known.reading:
            return known.state is not None and known.state.is_left(key)

    def _known(self, lane: str) -> KnownLane:
        with self._lock:
            known = self._lanes.get(lane)
            if known is None:
                now = self._clock.monotonic()
                self._let_go_at = let_go_of_old(self._lanes.values(), now, self._let_go_at)
                known = self._lanes[lane] = KnownLane(LaneLog(self._store, LanePaths(lane)))
                known.log.keep = partial(self._kept, known)
            return known

    def _kept(self, known: KnownLane, key: str, entry: Entry, data: bytes) -> None:
        for part in entry.parts if self._keep is not None else ():
            if part.claim in known.asked and part.records:
                assert self._keep is not None
                piece = data[part.position : part.position + part.size]
                self._keep(slice_key(key, part.position, part.size), piece)

    def _to_end(self, known: KnownLane, wanted: Iterable[ClaimKey]) -> tuple[LaneState, int]:
        """`_refresh`, for who puts something at the first empty place: it must be the end. If entries stand behind it, they
        tell whether it was emptied; or it was filled meanwhile. Not if all that are wanted have been ended."""
        state, began = self._refresh(known)
        keys = list(wanted)
        if known.is_listed or (keys and all(map(state.is_left, keys))):
            return state, began
        last = known.log.last_behind(state.next_seq)
        if last >= 0:
            state, began = self._refresh(known)
        if last >= state.next_seq:
            known.state = None
            state, began = self._refresh(known)
        return state, began

    def _read_since(self, known: KnownLane, moment: float) -> LaneState:
        """The lane as it was read then or later."""
        state = known.state
        return self._refresh(known)[0] if state is None or known.is_older_than(moment) else state

    def _refresh(self, known: KnownLane) -> tuple[LaneState, int]:
        """The lane up to its first empty place, and from which place on it was read just now."""
        log = known.log
        while True:
            read_at = self.now()
            state = known.state
            found: list[Entry | LostEntry] = []
            known.is_listed = state is None
            if state is None:
                said, known.said = known.said, None
                state, found, known.damaged_front = read_state(log, said)
                began = known.said_until = 0 if state.is_rebuilt else state.next_seq
            else:
                began = state.next_seq
                found = log.following(began, known.parts_of_next(state))
            known.state = None  # until it is certain
            is_new = known.is_listed and not (began or found or state.version or state.is_rebuilt)
            if not is_new and not known.is_unsplit_from(began):
                continue
            for entry in found:
                state.take(entry)
            if known.is_listed or known.split_until > state.split_until:
                state.split(known.split_until)  # it goes through all claims
            known.state, known.read_at, known.owner = state, read_at, state.owner
            return state, began
