"""Reading lanes: what each partition has in them, as of now, for all partitions of a process with the same requests.

A place that was emptied looks like one that was never used. So who has read entries, or found a place empty, reads the
checkpoint's front *afterwards*: if entries were split and emptied from the place on where the reading began, nothing that
was seen counts, and the lane is read again from its checkpoint.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logstore.engine.host.clock import Clock, SystemClock
from logstore.engine.lanes.lane_log import LaneLog, LaneRace
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.lanes.lane_state import LaneState
from logstore.format.stored.claim_base import ClaimBase
from logstore.format.stored.entry import (
    ClaimKey,
    Entry,
    EntryHeader,
    EntryKind,
    Part,
    build_entry,
    build_transfer,
    fence_row,
)
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import CheckpointedPart, Moved
from logstore.format.stored.segment import SegmentFlags
from logstore.layout.paths import LanePaths
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import Doubts, put_settled
from logstore.objects.wrappers.slices import slice_key

_SYSTEM_CLOCK = SystemClock()


class ClaimParts(NamedTuple):
    """What a claim has in its lane. `next_seq`: the place in the partition's chain of the first part there; what lies before
    it is in the partition's manifest. `is_left`: nothing will follow in the lane, and somebody may have gone on behind:
    in another lane if it was `moved`, else in the partition's own chain."""

    next_seq: int
    parts: tuple[CheckpointedPart, ...]
    is_left: bool
    moved: Moved | None = None


class Based(NamedTuple):
    """All of a partition that is in the lane: before its parts, these, and the low watermark as far as the lane says."""

    key: ClaimKey
    base: ClaimBase
    parts: tuple[CheckpointedPart, ...]
    low: int
    has_ended: bool = False  # with its whole lane


class Wanted(NamedTuple):
    """A claim that is to go on in another lane. `next_seq`, `end_offset`, `reserved_until`: where the partition's chain
    ends, as far as its taker knows. `judged`: whom it was judged to be of, by who adopted the lane. `ahead`: so many offsets
    are reserved for the next claim. `is_exact`: not if the chain has gone on since."""

    key: ClaimKey
    next_seq: int
    end_offset: int
    reserved_until: int
    judged: bytes
    ahead: int = 0
    is_exact: bool = False


class Taken(NamedTuple):
    """What a transfer has taken: the parts that the taker did not know, the fence behind them, what it says; and the low
    watermark as far as the old lane says."""

    parts: tuple[CheckpointedPart, ...]
    moved: Moved
    low: int


class _Known:
    """One lane. `reading` is held while the store is asked, by one thread for all who want to know. `sealing` is
    held by the one who puts a seal, before `reading`: who waits for it may be in that seal already."""

    log: LaneLog

    def __init__(self) -> None:
        self.asked: set[ClaimKey] = set()
        self.to_end: list[
            tuple[ClaimKey, bytes | None]
        ] = []  # which claims, and whom each was judged to be of
        self.reading = threading.Lock()
        self.sealing = threading.Lock()
        self.state: LaneState | None = None
        self.read_at = -math.inf
        # What was told of its partitions, and when: read without the lock, and replaced as a whole.
        self.told: dict[str, Based] = {}
        self.left: frozenset[str] = frozenset()  # partitions that were in it
        self.told_at = -math.inf

    def is_as_of(self, moment: float) -> None:
        """What is known of it is all that there was then."""
        self.read_at = moment
        if self.told_at > -math.inf:
            self.told_at = moment

    def forget(self, prefixes: Iterable[str]) -> None:
        """They are elsewhere since it told of them."""
        gone = frozenset(prefixes)
        self.left |= gone
        for prefix in gone:
            self.told.pop(prefix, None)

    def is_older_than(self, moment: float) -> bool:
        """Also if it has expired, for those to whom nothing is ever too old."""
        return self.read_at == -math.inf or self.read_at < moment


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
        self._lock = threading.Lock()  # guards the dict, and the moment
        self._moment = -math.inf
        self._lanes: dict[str, _Known] = {}

    def look(self, claim: Claim, key: ClaimKey, since: float | None = None, from_seq: int = 0) -> ClaimParts:
        """What there is of the claim, from a place in the partition's chain on: two requests if nothing is new, none if the
        lane was read `since` then."""
        known = self._known(claim.lane)
        oldest = self.now() - self._max_age if since is None else since
        with known.reading:
            known.asked.add(key)
            state = known.state
            if state is None or known.is_older_than(oldest):
                state, _ = self._refresh(known)
            return self._parts(state, key, from_seq)

    def now(self) -> float:
        """A moment for `look` and `based`: later than all before, also by a clock that stands, so that what was read before
        it and what is read after it are never confused."""
        with self._lock:
            self._moment = max(self._clock.monotonic(), math.nextafter(self._moment, math.inf))
            return self._moment

    def based(self, lane: str, since: float) -> dict[str, Based]:
        """By prefix: the partitions that are known whole by what the lane says of them. It is read, unless that was done
        `since` then."""
        known = self._known(lane)
        with known.reading:
            state = known.state
            if state is None or known.is_older_than(since):
                state, _ = self._refresh(known)
            known.told = _told(state)
            known.left = frozenset(key.prefix for key, one in state.claims.items() if one.is_left)
            known.told_at = known.read_at
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
        return known.told_at >= oldest and prefix not in known.left

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
        state = self._known(claim.lane).state
        return b"" if state is None else state.owner

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
                state, began = self._refresh(known)
                judge(state.owner)
                header = EntryHeader(EntryKind.ADOPTION, state.next_seq, new_id(), state.edge, now_ms)
                data, entry = build_entry(header, [], [], owner)
                try:
                    with doubts:
                        known.log.commit(header, data)
                        if known.log.split_until() <= began:
                            state.take(entry)
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
    ) -> None:
        """Make sure that a seal names the claim: put one at the lane's first empty place, unless there is one. A fence of
        the lane's owner will not do: those who read the lane go by it that nobody goes on behind a claim without its seal.
        `owner`: who does so, for the one who is stopped. `judged`: nothing is done if somebody else than that one has
        adopted the lane. One seal does for all who ask meanwhile.

        What was created in a place that had been emptied is in the past and counts for nothing: then all over again.
        """
        known, doubts = self._known(claim.lane), Doubts()
        with self._lock:
            known.to_end.append((key, judged))
        try:
            with known.sealing:
                while not self._is_left(known, key):
                    with known.reading:
                        state, began = self._refresh(known)
                        if state.is_left(key) or judged not in (None, state.owner):
                            return
                        with self._lock:
                            asked = {each for each, of in known.to_end if of in (None, state.owner)}
                        wanted = sorted(each for each in asked if not state.is_left(each))
                        header = EntryHeader(EntryKind.SEAL, state.next_seq, new_id(), state.edge, now_ms)
                    data, entry = build_entry(header, [], wanted, owner)
                    with suppress(LaneRace), doubts:  # readers of the lane do not wait for this upload
                        known.log.commit(header, data)
                        is_past = known.log.split_until() > began
                        with known.reading:
                            if is_past:
                                known.state = None
                            elif known.state is not None and known.state.next_seq == header.seq:
                                known.state.take(entry)  # else somebody has read it meanwhile
                            known.forget(each.prefix for each in wanted)
                        if not is_past:
                            return
        finally:
            with self._lock:
                known.to_end.remove((key, judged))

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
        empty place. Each fence has the place behind the last part, as the lane stands right before the entry, and begins
        past what was reserved. Returns those that were taken. Of the others somebody was faster, or the partition's manifest
        holds more than their taker knows, or another has adopted the lane: their takers look again.

        It is checked like a seal; what the checkpoint says afterwards holds every low watermark that was noted for these
        claims before they went on. `doubtful`: claims of which an earlier call does not know what became; those that stand
        are taken, too.
        """
        known, doubts = self._known(lane), Doubts()
        with known.reading:
            # Whether the next place is empty the create itself tells.
            state, began = (None, 0) if known.state is None else (known.state, known.state.next_seq)
            while True:
                if state is None:
                    state, began = self._refresh(known)
                read_at = self.now()
                moved = {
                    one.key: found
                    for one in wanted
                    if one.key in doubtful
                    and (found := state.moved_of(one.key)) is not None
                    and (found.claim.lane, found.owner) == (successor.lane, owner)
                }
                rows = {one.key: fence for one in wanted if (fence := _fence(state, one)) is not None}
                if not rows and not moved:
                    return {}
                header = EntryHeader(EntryKind.TRANSFER, state.next_seq, new_id(), state.edge, now_ms)
                data, entry = build_transfer(header, list(rows.values()), successor, owner)
                try:
                    with doubts:
                        if rows:
                            doubtful |= rows.keys()
                            known.log.commit(header, data)
                        checkpoint = known.log.checkpoint()
                        if checkpoint is None or checkpoint.split_until <= began:
                            if rows:
                                state.take(entry)
                                moved |= {key: Moved(row, successor, owner) for key, row in rows.items()}
                            doubtful -= moved.keys()
                            known.is_as_of(read_at)  # nobody else had put anything there
                            known.forget(key.prefix for key in moved)
                            lows = LaneState(checkpoint).bases.lows
                            return {
                                one.key: Taken(
                                    self._parts(state, one.key, one.next_seq).parts,
                                    moved[one.key],
                                    lows.get(one.key, 0),
                                )
                                for one in wanted
                                if one.key in moved
                            }
                        known.state = None
                except LaneRace:
                    doubtful -= rows.keys()
                state = None

    def checkpoint_ownerless(self, lane: str, nonce: bytes, every: int) -> None:
        """Of a lane that nobody owns and nobody splits: say what it holds, if there are so many entries since that was said.
        Anybody may, and the one who was faster knows enough."""
        known = self._known(lane)
        with known.reading:
            state = known.state
            if state is None or state.next_seq % every:
                return
            paths = known.log.paths
            head = self._store.head(paths.checkpoint)  # the etag first: what comes in between is not replaced
            found = known.log.checkpoint()
            if found is None or found.next_seq < state.next_seq:
                state.version = 0 if found is None else found.version
                put_settled(self._store, paths.checkpoint, state.checkpoint(nonce).pack(), head and head.etag)

    @staticmethod
    def _is_left(known: _Known, key: ClaimKey) -> bool:
        with known.reading:
            return known.state is not None and known.state.is_left(key)

    def _known(self, lane: str) -> _Known:
        with self._lock:
            known = self._lanes.get(lane)
            if known is None:
                known = self._lanes[lane] = _Known()
                known.log = LaneLog(self._store, LanePaths(lane), partial(self._kept, known))
            return known

    def _kept(self, known: _Known, key: str, entry: Entry, data: bytes) -> None:
        for part in entry.parts if self._keep is not None else ():
            if part.claim in known.asked and part.records:
                assert self._keep is not None
                piece = data[part.position : part.position + part.size]
                self._keep(slice_key(key, part.position, part.size), piece)

    def _refresh(self, known: _Known) -> tuple[LaneState, int]:
        """The lane up to its first empty place, and from which place on it was read just now."""
        log = known.log
        while True:
            read_at = self.now()
            state = known.state
            if state is None:
                state = LaneState(log.checkpoint())
                began = state.next_seq
                found = log.entries_from(began, state.open_claims)
            else:
                began, found, parts = state.next_seq, [], state.open_claims
                while (entry := log.entry_at(began + len(found), parts)) is not None:
                    found.append(entry)
            known.state = None  # until it is certain
            split_until = log.split_until()
            if split_until > began:
                continue
            for entry in found:
                state.take(entry)
            state.split(split_until)
            known.state, known.read_at = state, read_at
            return state, began

    @staticmethod
    def _parts(state: LaneState, key: ClaimKey, from_seq: int) -> ClaimParts:
        known = state.claims.get(key)
        if known is None:
            return ClaimParts(0, (), False)
        first = bisect_left(known.parts, from_seq, key=lambda stored: stored.part.seq)
        return ClaimParts(known.next_seq, tuple(known.parts[first:]), known.is_left, known.moved)


def _told(state: LaneState) -> dict[str, Based]:
    lows = state.bases.lows
    return {
        prefix: Based(
            key, base, tuple(state.claims[key].parts), lows.get(key, 0), state.claims[key].is_sealed
        )
        for prefix, (key, base) in state.usable_bases().items()
    }


def _fence(state: LaneState, wanted: Wanted) -> Part | None:
    """With which the claim goes on, if nobody has ended it; None if its taker must look again."""
    key, one = wanted.key, state.claims.get(wanted.key)
    seq, start = wanted.next_seq, max(wanted.end_offset, wanted.reserved_until)
    if wanted.judged != state.owner:
        return None
    if one is not None:
        if one.is_left or one.next_seq > seq:
            return None
        if one.parts and one.parts[-1].part.seq >= seq:
            if wanted.is_exact:
                return None
            last = one.parts[-1].part
            seq, start = last.seq + 1, max(last.end_offset, last.reserved_until)
    next_key = ClaimKey(key.prefix, key.epoch + 1)
    return fence_row(next_key, seq, SegmentFlags.FENCE, start, start + wanted.ahead)
