"""Which actors meet on lanes as they are built: the rules that hold, and every variant with what the search must find in it.

The words are those of `lanes_runs`; `c/A:np1` is the next life of lane A, which opens p as well.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import Said
from tests.model.lanes import DATA, FENCE, SEAL, Entry, Own, Place, Step, Upload, Writer
from tests.model.lanes_runs import (
    ATOMIC,
    BUFFERED,
    LATE,
    MIXED,
    OVERWRITTEN,
    SEALED,
    SPLIT,
    VOIDED,
    Contrast,
    Holds,
    Run,
)
from tests.model.places import ADOPT, Known, PlaceJudge, Places, Stand, Tail
from tests.model.store import OK, Create, Get

# Each rule, broken: a variant overrides one method


class NoSeal(Places):
    """A taker reads the lane to its end and claims, without a seal."""

    def put_at_end(self, lane: str, at: Any, entry: Entry, wanted: Any) -> Step:
        while True:
            found = yield Get(Place(lane, at.next))
            if found is None:
                return at
            at = self.behind(at, found)


class ClaimBeforeSeal(Places):
    """A taker claims first, and seals afterwards."""

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        return wanted
        yield

    def claim_all(self, who: str, at: Writer, tails: tuple[Tail, ...]) -> Step:
        at = yield from super().claim_all(who, at, tails)
        yield from super().ended(who, at, tails)
        return at


class PlaceReadBefore(Places):
    """A taker computes the next place from what it read before the seal stood: two of them compute different ones."""

    def behind_seal(self, tails: tuple[Tail, ...], end: Stand) -> tuple[Tail, ...]:
        return tails


class NoLook(Places):
    """A taker believes its seal without a look at the checkpoint."""

    def end_lane(self, lane: str, entry: Entry, wanted: Any = ()) -> Step:
        at = yield from self.load(lane)
        at = yield from self.put_at_end(lane, at, entry, wanted)
        if entry.kind != SEAL:
            yield from self.checkpoint(lane)
        return at


class LooksBefore(Places):
    """A taker looks at the checkpoint before it seals."""

    def end_lane(self, lane: str, entry: Entry, wanted: Any = ()) -> Step:
        at = yield from self.load(lane)
        yield from self.checkpoint(lane)
        at = yield from self.put_at_end(lane, at, entry, wanted)
        return at


class BeginsAtItsEnd(Places):
    """Who goes on with a partition begins at its end, and not at the reservation."""

    def base(self, tail: Tail) -> int:
        return tail.end


class Linkless(Places):
    """Every data entry counts, whatever stands before it; and what landed is not made again."""

    def is_valid(self, entry: Entry, edge: Any) -> bool:
        return entry.kind == DATA

    def again(self, who: str, at: Writer, ups: tuple[Upload, ...], gone: set[str]) -> tuple[Writer, Any]:
        at, first = super().again(who, at, ups[:1], gone)
        return at, first + ups[1:]


class Believes(Places):
    """An owner believes a 412 without a look, and goes on one place further."""

    def flush(self, who: str, at: Writer, count: int, give: bool) -> Step:
        at, ups, _ = self.prepare(who, at, count, give)
        while ups:
            answer = yield Create(Place(at.lane, ups[0].seq), ups[0].entry)
            if answer == OK:
                yield Said("acked", ups[0].entry.batches)
                at, ups = self.acked(at, ups[0]), ups[1:]
            else:
                at, ups = self.again(who, at._replace(seq=at.seq + 1), ups, set())
            del answer
        return at


class OwnerBelieves(Places):
    """An owner takes what stands in its place for the reason why its own does not: it may have been split and deleted."""

    def was_split(self, checkpoint: Any, seq: int) -> bool:
        return False


class CheckpointBeforeManifests(Places):
    """The lane's checkpoint says what was split before the manifests do."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))
        while batches:
            yield from self.file(who, *batches[0])
            batches = batches[1:]
        yield from self.remove(goes)


class DeletedBeforeCheckpoint(Places):
    """Entries are deleted once the manifests hold them, before the checkpoint says so."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        while batches:
            yield from self.file(who, *batches[0])
            batches = batches[1:]
        yield from self.remove(goes)
        yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))


class CheckpointReplaced(Places):
    """Who finds another checkpoint than the one it knew replaces that with its own all the same, which knows less."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        while batches:
            yield from self.file(who, *batches[0])
            batches = batches[1:]
        stands = yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))
        if stands.nonce != who:
            mine = new._replace(nonce=who, version=stands.version + 1)
            yield from self.swap(("checkpoint", lane), stands, mine)
        yield from self.remove(goes)


class OneManifestOfTwo(Places):
    """Only one of the partitions in the entries is filed before they go."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        yield from super().split(who, lane, base, new, batches[:1], voids, goes)


class SealsDeleted(Places):
    """Seals are deleted with the data."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == SEAL


class VoidsDeleted(Places):
    """Void entries are deleted with the data."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == DATA


class VoidEntriesSeal(Places):
    """An owner that gives a partition up has sealed it, whether the entry that says so is void or not."""

    def behind(self, at: Any, entry: Entry) -> Any:
        after = super().behind(at, entry)
        claims = {known[:2]: known for known in after.claims}
        for key in entry.seals:
            claims[key] = claims.get(key, Known(*key))._replace(sealed=True)
        return after._replace(claims=tuple(sorted(claims.values())))


class AdoptionsDeleted(Places):
    """The entries with which lives begin are deleted with the data."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == ADOPT


class Edgeless(Places):
    """The checkpoint does not say which entry came last: the next one counts, whatever it names."""

    def is_valid(self, entry: Entry, edge: Any) -> bool:
        return super().is_valid(entry, edge) or (entry.kind == DATA and edge == "?")

    def plan(self, objects: Any, lane: str) -> Any:
        work = super().plan(objects, lane)
        return work and (work[0], work[1]._replace(edge="?"), *work[2:])


class StaleManifestBelieved(Places):
    """Who follows a chain from an old manifest takes the parts that are left in the lane for the next ones."""

    def is_stale(self, known: Known, tail: Tail) -> bool:
        return False


class LaneBelieved(Places):
    """Who reads a lane believes what it found and missed, without a look at the checkpoint."""

    def reader_is_past(self, checkpoint: Any, at: Any) -> bool:
        return False


class EmptyPlaceCompared(Places):
    """Who reads a lane compares the empty place with the checkpoint, not the one where it began."""

    def reader_is_past(self, checkpoint: Any, at: Any) -> bool:
        return bool(checkpoint.until > at.next)


class SharedBehindAClaim(Places):
    """A shared writer goes on behind a claim that has not ended."""

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        if at is not None:
            wanted = yield from super().ended(who, at, wanted)
        return wanted


class ForgottenReservation(Places):
    """The checkpoint forgets what was reserved."""

    def plan(self, objects: Any, lane: str) -> Any:
        work = super().plan(objects, lane)
        if work is None:
            return None
        claims = tuple(known._replace(reserved=known.end) for known in work[1].claims)
        return work[0], work[1]._replace(claims=claims), *work[2:]


class FenceEndsTheLater(Places):
    """A fence ends the claims that were made behind it, too: a closed lane's name cannot be used again."""

    def has_ended(self, at: Stand, tail: Tail) -> bool:
        return bool(at.ended) or super().has_ended(at, tail)

    def is_alive(self, at: Stand, tail: Tail) -> bool:
        return not at.ended and super().is_alive(at, tail)


class FenceEndsTheKnown(Places):
    """A fence ends the claims that the lane knows and no other: one that was made shortly before goes on."""

    def is_alive(self, at: Stand, tail: Tail) -> bool:
        return not at.claim(tail.part, tail.epoch).sealed


# A partition that is known by its lane


class FenceLetsIn(Places):
    """Who takes a partition goes on behind a fence, without a seal that names the claim."""

    def has_ended(self, at: Stand, tail: Tail) -> bool:
        return not self.is_alive(at, tail)


class PlansAcrossASeal(Places):
    """Who plans goes by what it knows of a partition, though a seal names its claim."""

    def was_left(self, at: Stand, base: Tail) -> bool:
        return False


class PlansByAnOldBase(Places):
    """Who plans takes the parts that are left in the lane for all that follows what it knows."""

    def known_by_lane(self, base: Tail) -> Step:
        if not base.lane:
            return None
        at = yield from self.read_lane(base.lane)
        known = at.claim(base.part, base.epoch)
        return None if self.was_left(at, base) else self.along(base, known)[1]


class PlansWithoutALook(Places):
    """Who plans believes what it found in the lane and missed, without a look at the checkpoint."""

    def known_by_lane(self, base: Tail) -> Step:
        if not base.lane:
            return None
        at = yield from self.load(base.lane)
        while True:
            found = yield Get(Place(base.lane, at.next))
            if found is None:
                break
            at = self.behind(at, found)
            del found
        known = at.claim(base.part, base.epoch)
        return None if self.was_left(at, base) or self.is_stale(known, base) else self.along(base, known)[1]


# The next life of a lane


class AdopterBelieves(Places):
    """The next life believes its entry without a look at the checkpoint."""

    def end_lane(self, lane: str, entry: Entry, wanted: Any = ()) -> Step:
        if entry.kind == SEAL:
            at = yield from super().end_lane(lane, entry, wanted)
            return at
        at = yield from self.load(lane)
        at = yield from self.put_at_end(lane, at, entry, wanted)
        return at


class ReadBeforeItStood(Places):
    """The next life reads its claims before its entry stands."""

    def adopt(self, who: str, at: Writer) -> Step:
        before = yield from self.read_lane(at.lane)
        own = self.carried_on(before)
        del before
        end = yield from self.end_lane(at.lane, Entry(ADOPT, (who, "adopt")))
        return at._replace(seq=end.next, prev=end.edge, own=own)


class AdoptsTheSealed(Places):
    """The next life goes on with claims that were sealed."""

    def carried_on(self, end: Stand) -> tuple[Own, ...]:
        claims = tuple(known._replace(sealed=False) for known in end.claims)
        return super().carried_on(end._replace(claims=claims))


class FormerLifeGoesOn(Places):
    """The former life, which slept, takes the next one's entry for a seal that ends nothing, and commits behind it."""

    def stops(self, found: Entry) -> bool:
        return found.kind == FENCE


class AdoptionIsNoLink(Places):
    """An adoption is no link: what follows it names the entry before. It stands in the former life's place all the same."""

    def moves_edge(self, entry: Entry, valid: bool) -> bool:
        return entry.kind != ADOPT and super().moves_edge(entry, valid)


class HalfAnAppend(Places):
    """An atomic append goes on without the partition that was sealed."""

    def fails_whole(self, record: str) -> bool:
        return False


class ShownBehindAnAppend(Places):
    """A record is shown at its offset behind an atomic append that is under way, and may fail."""

    def hides(self, record: str) -> bool:
        return False


class GoesOnWithTheEnded(Places):
    """Who has a lane goes on with any claim that leads there, ended or not."""

    def goes_on(self, at: Writer, tail: Tail) -> bool:
        return tail.lane == at.lane


# What cannot be read


class GoesOnBehindJunk(Places):
    """An owner goes on behind what it cannot read, as behind a void entry."""

    def stops_at_junk(self) -> bool:
        return False


class MovesWithoutASeal(Places):
    """An owner claims its partitions again, and does not end its claims in the lane that it leaves."""

    def leave(self, who: str, at: Writer, seals: frozenset[Any]) -> Step:
        return
        yield

    def goes_on(self, at: Writer, tail: Tail) -> bool:
        return False

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        if at is not None and at.lane.endswith("'"):
            return wanted
        done = yield from super().ended(who, at, wanted)
        return done


def _broken(variant: type[Places], kind: str, words: str, faults: int = 0, rules: Any = ()) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, rules=rules, judge=PlaceJudge))


CONTRASTS = [
    _broken(NoSeal, "lost", "a:o1 b:p1"),
    _broken(ClaimBeforeSeal, "lost", "a:o1 b:p1"),
    _broken(PlaceReadBefore, "lost", "a:o1 b:p1"),
    _broken(NoLook, "lost", "a:o11 b:p1 split/A*1"),
    _broken(LooksBefore, "lost", "a:o11 b:p1 split/A*1"),
    _broken(BeginsAtItsEnd, "reused", "a:o11 b:p1", rules=BUFFERED),
    _broken(Linkless, "lost", "a:o2 b:p1"),
    _broken(Believes, "lost", "a:o11", 1),
    _broken(OwnerBelieves, "denied", "a:o2 b:p1 split/A*1", 1),
    _broken(CheckpointBeforeManifests, "lost", "a:o11 split/A*1"),
    _broken(DeletedBeforeCheckpoint, "short", "a:o11 reader*1 split/A*1"),
    _broken(CheckpointReplaced, "lost", "a:o1111 split/A*1 split2/A*1"),
    _broken(OneManifestOfTwo, "lost", "a:o11 split/A*1"),
    _broken(SealsDeleted, "lost", "a:o1 b:p1 d:q1 split/A*1"),
    _broken(VoidsDeleted, "lost", "a:o2 b:p1 d:q1 split/A*1"),
    _broken(VoidEntriesSeal, "lost", "a:oh1 b:q1 d:p1"),
    _broken(Edgeless, "lost", "a:o12 b:p1 split/A*1"),
    _broken(StaleManifestBelieved, "misread", "a:o11 reader*1 split/A*1"),
    _broken(LaneBelieved, "short", "a:o11 reader*1 split/A*1"),
    _broken(EmptyPlaceCompared, "short", "a:o11 b:q1 reader*1 split/A*1"),
    _broken(SharedBehindAClaim, "lost", "a:o1 w~1"),
    _broken(ForgottenReservation, "reused", "a:o111 c/A:n1 split/A*1", rules=BUFFERED),
    _broken(FenceEndsTheLater, "lost", "a:o1x c/A:np1 b:p1"),
    _broken(AdopterBelieves, "lost", "a:o111 c/A:n1 split/A*1"),
    _broken(ReadBeforeItStood, "lost", "a:o11 c/A:n1"),
    _broken(AdoptsTheSealed, "lost", "a:o1 b:p1 c/A:n1"),
    _broken(FormerLifeGoesOn, "lost", "a:o11 c/A:n1"),
    _broken(AdoptionsDeleted, "lost", "a:o1 c/A:n1 d/A:n1 split/A*1"),
    _broken(GoesOnWithTheEnded, "lost", "a:o1 c/A:n1p1 b:p1"),
    _broken(BeginsAtItsEnd, "reused", "a:o11 c/A:n1", rules=BUFFERED),
    _broken(FenceLetsIn, "short", "a:o1x b:p1 planner*1"),
    _broken(PlansAcrossASeal, "short", "a:o1 b:p1 planner*1"),
    _broken(PlansByAnOldBase, "misread", "a:o11 planner*1 split/A*1"),
    _broken(PlansWithoutALook, "short", "a:o11 planner*1 split/A*1"),
    _broken(GoesOnBehindJunk, "lost", "a:o11 b:p1 rot*1"),
    _broken(MovesWithoutASeal, "lost", "a:o111 junk*1"),
    _broken(HalfAnAppend, "half", "a:o1 b:p1", rules=MIXED),
    _broken(ShownBehindAnAppend, "reused", "a:o11 b:p1", rules=MIXED + BUFFERED),
]

NOT_NEEDED = [
    _broken(FenceEndsTheKnown, "", "a:o1x b:p1 c/A:np1"),
    _broken(AdoptionIsNoLink, "", "a:o2 c/A:n2 d/A:n1", 1),
]


def _holds(name: str, words: str, faults: int, *seen: str, rules: Any = (), progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, rules=rules, judge=PlaceJudge), frozenset(seen), progress)


BY_LANE, ASKED = "a lane tells all of a partition", "a partition is asked for"
AGAIN, STALE = "a lane is read again", "a manifest was stale"
LOST_PLACE, STOPPED = "another's claim", "a shared writer was stopped"
RESUMED = "a claim of the own lane goes on"
MOVED, ROTTEN = "an owner moves", "a seal is damaged"

RULES = [
    _holds("p is taken over", "a:o2 b:p1", 1, *LATE, SEALED, VOIDED, progress=True),
    _holds("two takers, one of both partitions", "a:o1 b:b1 d:p1", 0, SEALED, LOST_PLACE, progress=True),
    _holds("the owner takes it back", "a:o2p1 b:p1", 0, SEALED, VOIDED, LOST_PLACE),
    _holds("with the owner's consent", "a:og1 b:p1 d:p1", 0, LOST_PLACE, SEALED),
    _holds("consent, and split", "a:oh1 b:p1 split/A*1", 0, "split", SEALED, VOIDED),
    _holds("a next life", "a:o2 c/A:n1", 2, "adopted", "a late adopt at the end", progress=True),
    _holds("a next life of a next life", "a:o2 c/A:n1 d/A:n1", 0, "adopted"),
    _holds("a next life, and a taker", "a:o2 b:p1 c/A:n1p1", 0, "adopted", SEALED, VOIDED, LOST_PLACE),
    _holds("a claim that came late", "a:o1 b:p1 c/B:np1", 0, "adopted", RESUMED, SEALED),
    _holds("closed, and opened again", "a:o1x c/A:np1 b:p1", 0, "closed", "adopted", SEALED),
    _holds(
        "split under a taker",
        "a:o11 b:p1 split/A*1",
        1,
        *LATE,
        *SPLIT,
        SEALED,
        "a seal began again",
        AGAIN,
        STALE,
    ),
    _holds("split under two uploads", "a:o21 b:p1 split/A*1", 0, "split", SEALED, VOIDED),
    _holds("split under a next life", "a:o11 c/A:n1 split/A*1", 1, *SPLIT, "adopted", "a adopt began again"),
    _holds("both lanes are split", "a:o11 b:p11 split/A*1 split/B*1", 0, "split", SEALED),
    _holds("a reader", "a:o11 reader*2 split/A*1", 0, "split", "a reader reloads", AGAIN),
    _holds("a reader across claims", "a:o1 b:p1 reader*1 split/A*1", 0, "split", SEALED),
    _holds("a planner", "a:o11 planner*2 split/A*1", 0, "split", BY_LANE, ASKED, AGAIN),
    _holds("a planner across claims", "a:o1 b:p1 planner*1 split/A*1", 0, "split", SEALED, BY_LANE, ASKED),
    _holds("a planner, and a lane that was closed", "a:o1x b:p1 planner*1", 1, "closed", BY_LANE, ASKED),
    _holds("a planner, and a next life", "a:o1 c/A:n1 b:p1 planner*1", 0, "adopted", BY_LANE, ASKED),
    _holds("a planner, and shared writers", "a:o1x w~1 planner*1", 0, "closed", BY_LANE, ASKED),
    _holds("shared writers behind a claim", "a:o1 w~1 v~1", 0, SEALED),
    _holds("and a claim behind them", "a:o1 w~2 b:p1", 0, STOPPED, LOST_PLACE, SEALED),
    _holds("something unreadable in a lane", "a:o21 junk*1", 1, MOVED),
    _holds("something unreadable, and a taker", "a:o11 b:p1 junk*1", 0, MOVED, SEALED, LOST_PLACE),
    _holds("something unreadable, and split", "a:o111 junk*1 split/A*1", 0, MOVED, "split"),
    _holds("a damaged seal", "a:o11 b:p1 rot*1", 0, MOVED, ROTTEN, SEALED, LOST_PLACE),
    _holds("a damaged seal, buffered acks", "a:o11 b:p1 rot*1", 0, MOVED, ROTTEN, rules=BUFFERED),
    _holds("buffered acks", "a:o12 b:p1", 1, *LATE, SEALED, VOIDED, rules=BUFFERED),
    _holds("atomic, others in its entry", "a:o2 b:p1", 1, *LATE, SEALED, VOIDED, rules=MIXED),
    _holds("the same, split", "a:o11 b:p1 split/A*1", 0, "split", SEALED, rules=MIXED + BUFFERED),
    _holds("the same, a next life", "a:o2 b:p1 c/A:n1", 0, "adopted", SEALED, rules=MIXED + BUFFERED),
    _holds("buffered acks, a next life", "a:o12 c/A:n1 split/A*1", 0, "split", "adopted", rules=BUFFERED),
]

WIDE = [
    _holds("two takers", "a:o3 b:b1 d:p1 split/A*1", 1, *LATE, SEALED, VOIDED),
    _holds("both lanes split", "a:o11 b:p11 d:p1 split/A*1 split/B*1", 1, *LATE, SEALED, "split"),
    _holds("split under two uploads", "a:o21 b:p1 split/A*2", 1, *LATE, *SPLIT, SEALED, VOIDED, OVERWRITTEN),
    _holds("adopted twice", "a:o2 b:p1 c/A:np1 d/A:n1 split/A*1", 1, "adopted", "split", SEALED),
    _holds("a reader", "a:o21 reader*2 split/A*1", 1, *SPLIT, "a reader reloads"),
    _holds("shared", "a:o1 w~2 v~1 b:p1 reader*1 split/A*1", 1, *LATE, STOPPED),
    _holds("a planner", "a:o11x b:p1 planner*2 split/A*1", 1, *LATE, "split", BY_LANE, ASKED),
]
"""For long runs: the first million states of each."""

EVERYTHING = "a:o23p1 b:p2 d:b1 c/A:n2b1 e/A:n1 reader*3 planner*3 split/A*3 split/B*1 split/D*1"
DEEP = [
    _holds("everything", EVERYTHING, 3, *LATE, "split", SEALED, VOIDED, "adopted"),
    _holds("everything buffered", EVERYTHING, 3, "adopted", "split", SEALED, rules=BUFFERED),
    _holds("everything atomic", EVERYTHING, 3, "adopted", "split", SEALED, rules=BUFFERED + ATOMIC),
    _holds("everything, and shared", f"{EVERYTHING} w~2 v~1", 3, SEALED, STOPPED),
]
"""For random walks: far beyond what can be searched."""
