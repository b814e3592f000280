"""Reading lanes: what each partition has in them, as of now, for all partitions of a process with the same requests.

A place that was emptied looks like one that was never used. So who has read entries, or found a place empty, reads the
checkpoint's front *afterwards*: if entries were split and emptied from the place on where the reading began, nothing that
was seen counts, and the lane is read again from its checkpoint.

A checkpoint can be done without: then everything that stands is read, and what is missing in between was split. One that is
damaged, and has not changed since, says that nothing was split since.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logstore.engine.host.clock import Clock, SystemClock
from logstore.engine.lanes.lane_log import LaneLog, LaneRace, LostEntry
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.lanes.lane_state import LaneState
from logstore.errors import CorruptData
from logstore.format.stored.claim_base import ClaimBase
from logstore.format.stored.entry import ClaimKey, Entry, EntryHeader, EntryKind, build_entry
from logstore.format.stored.extras import Claim
from logstore.format.stored.lane_checkpoint import CheckpointedPart
from logstore.layout.paths import LANES_PREFIX, LanePaths
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import Doubts
from logstore.objects.wrappers.slices import slice_key

logger = logging.getLogger(__name__)

_SYSTEM_CLOCK = SystemClock()


class ClaimParts(NamedTuple):
    """What a claim has in its lane. `next_seq`: the place in the partition's chain of the first part there; what lies before
    it is in the partition's manifest. `is_left`: nothing will follow in the lane, and somebody may have gone on behind.
    `damage`: there may be more of it behind the last part, in an entry that is lost. `if_unsplit`: but not if the partition
    has a manifest. `lost`: the places whose entries are."""

    next_seq: int
    parts: tuple[CheckpointedPart, ...]
    is_left: bool
    damage: CorruptData | None = None
    if_unsplit: bool = False
    lost: tuple[int, ...] = ()


class Based(NamedTuple):
    """All of a partition that is in the lane: before its parts, these, and the low watermark as far as the lane says."""

    key: ClaimKey
    base: ClaimBase
    parts: tuple[CheckpointedPart, ...]
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
        self.damaged_front: bytes | None = None  # of the checkpoint, when the state was read without it
        self.split_until = 0  # as last read
        self.is_listed = False  # the last reading began with a listing

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
        self._lock = threading.Lock()  # guards the dicts, and the moment
        self._moment = -math.inf
        self._lanes: dict[str, _Known] = {}
        self._abandoned: dict[str, int] = {}

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
            return self._parts(state, claim, key, from_seq)

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
            lows = state.bases.lows
            return {
                prefix: Based(key, base, tuple(state.claims[key].parts), lows.get(key, 0))
                for prefix, (key, base) in state.usable_bases().items()
            }

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
                state, began = self._to_end(known)
                judge(state.owner)
                seq = state.next_seq
                header = EntryHeader(EntryKind.ADOPTION, seq, new_id(), state.edge, now_ms, known_until=seq)
                data, entry = build_entry(header, [], [], owner)
                try:
                    with doubts:
                        known.log.commit(header, data)
                        if self._still(known, began):
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
                        state, began = self._to_end(known)
                        if state.is_left(key) or judged not in (None, state.owner):
                            return
                        with self._lock:
                            asked = {each for each, of in known.to_end if of in (None, state.owner)}
                        wanted = sorted(each for each in asked if not state.is_left(each))
                        seq = state.next_seq
                        header = EntryHeader(
                            EntryKind.SEAL, seq, new_id(), state.edge, now_ms, known_until=seq
                        )
                    data, entry = build_entry(header, [], wanted, owner)
                    with suppress(LaneRace), doubts:  # readers of the lane do not wait for this upload
                        known.log.commit(header, data)
                        with known.reading:
                            if not self._still(known, began):
                                known.state = None
                                continue
                            if known.state is not None and known.state.next_seq == header.seq:
                                known.state.take(entry)  # else somebody has read it meanwhile
                        return
        finally:
            with self._lock:
                known.to_end.remove((key, judged))

    def abandon(self, lane: str, place: int) -> None:
        """From a lane's owner, who leaves it: nothing was ever acked that is in this place or behind it. So nothing of its
        partitions is in doubt because of what is there, for us."""
        with self._lock:
            self._abandoned[lane] = place

    def end_claims(
        self, lane: str, keys: Iterable[ClaimKey], new_id: Callable[[], bytes], now_ms: int, owner: bytes
    ) -> None:
        """`end_claim` for many, with one seal."""
        wanted = [(key, None) for key in keys]
        known = self._known(lane)
        with self._lock:
            known.to_end += wanted
        try:
            for key, _ in wanted:
                self.end_claim(Claim(lane, 0), key, new_id, now_ms, owner)
        finally:
            with self._lock:
                for one in wanted:
                    known.to_end.remove(one)

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

    def _to_end(self, known: _Known) -> tuple[LaneState, int]:
        """`_refresh`, for who puts something at the first empty place: it must be the end. If entries stand behind it, they
        tell whether it was emptied."""
        state, began = self._refresh(known)
        if not known.is_listed and known.log.goes_on_behind(state.next_seq):
            known.state = None
            state, began = self._refresh(known)
        return state, began

    def _refresh(self, known: _Known) -> tuple[LaneState, int]:
        """The lane up to its first empty place, and from which place on it was read just now."""
        log = known.log
        while True:
            read_at = self.now()
            state = known.state
            found: list[Entry | LostEntry] = []
            known.is_listed = state is None
            if state is None:
                state, found, known.damaged_front = read_state(log)
                began = 0 if state.is_rebuilt else state.next_seq
            else:
                began, parts = state.next_seq, state.open_claims
                while (entry := log.look_at(began + len(found), parts)) is not None:
                    found.append(entry)
            known.state = None  # until it is certain
            if not self._still(known, began):
                continue
            for entry in found:
                state.take(entry)
            state.split(known.split_until)
            known.state, known.read_at = state, read_at
            return state, began

    def _still(self, known: _Known, began: int) -> bool:
        """Whether nothing was split from the place on where the reading began."""
        front = known.log.front()
        if known.damaged_front is not None and front == known.damaged_front:
            return True
        try:
            known.split_until = known.log.split_until_of(front)
        except CorruptData:
            return False  # it is read without its checkpoint
        return known.split_until <= began

    def _parts(self, state: LaneState, claim: Claim, key: ClaimKey, from_seq: int) -> ClaimParts:
        known, abandoned_at = state.claims.get(key), self._abandoned.get(claim.lane, sys.maxsize)
        if known is None:
            lost_at, is_front = state.first_lost(claim.since), claim.since < state.front
            lost_at = None if lost_at is not None and lost_at >= abandoned_at else lost_at
            if lost_at is None and not is_front:
                return ClaimParts(0, (), False)
            place = claim.since if lost_at is None else lost_at
            return ClaimParts(0, (), False, _lost(state, claim, place), lost_at is None)
        first = bisect_left(known.parts, from_seq, key=lambda stored: stored.part.seq)
        lost_at = abandoned_at if known.lost_at is None or known.is_left else known.lost_at
        damage = None if lost_at >= abandoned_at else _lost(state, claim, lost_at)
        parts, lost = tuple(known.parts[first:]), tuple(sorted(state.lost))
        return ClaimParts(known.next_seq, parts, known.is_left, damage, lost=lost)


def read_state(log: LaneLog) -> tuple[LaneState, list[Entry | LostEntry], bytes | None]:
    """The lane as its checkpoint tells it, or as it stands if that cannot be read; the entries behind that; and the front of
    a checkpoint that is damaged."""
    damaged: bytes | None = None
    try:
        state = LaneState(log.checkpoint())
        found = log.entries_from(state.next_seq, state.open_claims)
        if state.next_seq or not found or not isinstance(found[0], LostEntry) or log.is_there(0):
            return state, found, None
        logger.error("%s: it has no checkpoint and its first entries are gone; it is read without", log.paths)
    except CorruptData as damage:
        if damage.key != log.paths.checkpoint:
            raise
        logger.error("%s; the lane is read without it", damage)
        damaged = log.front()
    state = LaneState(is_rebuilt=True)
    standing, known_until = log.standing(0)
    for place, entry in standing.items():
        if place > max(state.next_seq, known_until):
            break  # what is missing before it is on its way
        if place != state.next_seq:
            state.skip_to(place)
        state.take(entry)
    return state, log.entries_from(state.next_seq, state.open_claims), damaged


def lanes_of(store: ObjectStore) -> list[str]:
    """The names of all lanes that there are or were."""
    names = (info.key.removeprefix(LANES_PREFIX).split("/", 1)[0] for info in store.list(LANES_PREFIX))
    return list(dict.fromkeys(names))


def whole_state(log: LaneLog) -> LaneState:
    """The lane up to its first empty place."""
    state, found, _ = read_state(log)
    for entry in found:
        state.take(entry)
    return state


def _lost(state: LaneState, claim: Claim, place: int) -> CorruptData:
    why = state.lost.get(place, "the lane's entry is missing")
    return CorruptData(
        LanePaths(claim.lane).entry(place), None, f"{why}; what it held of the partition is not known"
    )
