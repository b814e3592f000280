"""Which actors meet where one entry claims many partitions: the rules that hold, and every variant with what the search must
find in it.

The words are those of `places_runs`. `d` and `e` take partitions over with a seal and a fence, everybody else by a transfer.
"""

from __future__ import annotations

from typing import Any

from tests.model.lanes import SEAL, Entry, Step, Writer
from tests.model.lanes_runs import BUFFERED, MIXED, SEALED, SPLIT, VOIDED, Contrast, Holds, Run
from tests.model.places import Known, PlaceJudge, Segment, Stand, Tail
from tests.model.places_runs import AGAIN, ASKED, BY_LANE, LOST_PLACE, RESUMED, STALE, STOPPED
from tests.model.transfers import TRANSFER, Transfers

BORN = (("born", True),)
LATE = ("a late data at the end", "a late transfer at the end")

# Each rule, broken: a variant overrides one method


class PlaceOfBefore(Transfers):
    """The fence has the place and the offset that were read when the partition was loaded, not those right before it."""

    def where(self, tail: Tail, known: Known) -> Tail:
        return tail


class NobodyAsks(Transfers):
    """A transfer is believed without a look at the checkpoint."""

    def transfer_is_past(self, checkpoint: Any, end: Any) -> bool:
        return False


class TheLastDecides(Transfers):
    """A later transfer of the same claim counts."""

    def behind(self, at: Any, entry: Entry) -> Any:
        if entry.kind != TRANSFER:
            return super().behind(at, entry)
        claims = tuple(c._replace(left=False) if (c.part, c.claim) in entry.seals else c for c in at.claims)
        return super().behind(at._replace(claims=claims), entry)

    def moving(self, who: str, at: Writer, wanted: tuple[Tail, ...], end: Stand) -> Any:
        claims = tuple(c._replace(left=False) for c in end.claims)
        return super().moving(who, at, wanted, end._replace(claims=claims))


class ASealIsNoDecision(Transfers):
    """A transfer behind a seal of the same claim counts: somebody may have gone on in the partition's chain."""

    def counts(self, was: Known) -> bool:
        return was.moved is None


class TakenForASeal(Transfers):
    """Who wanted to seal takes a transfer for a seal, and goes on in the partition's chain: as a release would that does not
    know them."""

    def is_elsewhere(self, known: Known) -> bool:
        return False


class ReadAsASeal(Transfers):
    """A reader takes a transfer for a seal, and looks for the rest in the partition's chain."""

    def goes_where(self, tail: Tail, moved: Segment | None) -> bool:
        return False


class OwnerPassesIt(Transfers):
    """The owner of the lane takes a transfer for an entry that ends nothing, and commits behind it."""

    def blocked(self, who: str, at: Writer, ups: Any, found: Entry) -> Step:
        if found.kind == TRANSFER:
            found = found._replace(seals=frozenset())
        at, ups = yield from super().blocked(who, at, ups, found)
        return at, ups


class TransfersDeleted(Transfers):
    """A splitter deletes transfers below its boundary."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == TRANSFER


class CheckpointForgets(Transfers):
    """A checkpoint says that a claim has ended, and not where it goes on."""

    def plan(self, objects: Any, lane: str) -> Any:
        work = super().plan(objects, lane)
        if work is None:
            return None
        base, new, *rest = work
        return base, new._replace(claims=tuple(c._replace(moved=None) for c in new.claims)), *rest


class BornInItsChain(Transfers):
    """Who has no lane takes an empty chain for a partition that nobody has written, and begins it."""

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        new = tuple(one._replace(lane="", open=False) for one in wanted if one.lane == "G")
        wanted = tuple(one for one in wanted if one.lane != "G")
        done = yield from super().ended(who, at, wanted)
        return new + done


class ReservationLeftOut(Transfers):
    """The next claim begins at the end of what is stored, not behind what was reserved."""

    def base(self, tail: Tail) -> int:
        return tail.end


class SealedFirst(Transfers):
    """A taker seals, and puts its transfer into the lane afterwards: others may have gone on in between."""

    def transfer(self, who: str, at: Writer, wanted: Any) -> Step:
        seals = frozenset((one.part, one.epoch) for one in wanted)
        yield from self.end_lane(wanted[0].lane, Entry(SEAL, (who, "seal"), seals=seals), wanted)
        at = yield from super().transfer(who, at, wanted)
        return at

    def counts(self, was: Known) -> bool:
        return was.moved is None


def _broken(variant: type[Transfers], kind: str, words: str, faults: int = 0, rules: Any = ()) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, rules=rules, judge=PlaceJudge))


CONTRASTS = [
    _broken(PlaceOfBefore, "lost", "a:o1 b:p1"),
    _broken(NobodyAsks, "lost", "a:o11 b:p1 split/A*1"),
    _broken(TheLastDecides, "lost", "a:o1 b:p1 c:p1"),
    _broken(ASealIsNoDecision, "lost", "a:o1 b:p1 d:p1"),
    _broken(TakenForASeal, "lost", "a:o1 b:p1 d:p1"),
    _broken(TakenForASeal, "lost", "a:b1 w~1", rules=BORN),
    _broken(ReadAsASeal, "lost", "a:o1 b:p1 c:p1"),
    _broken(OwnerPassesIt, "lost", "a:o1 b:p1"),
    _broken(TransfersDeleted, "lost", "a:o1 b:p1 c:q1 split/A*1"),
    _broken(CheckpointForgets, "lost", "a:o11 b:p1 split/A*1"),
    _broken(BornInItsChain, "lost", "a:b1 d:p1", rules=BORN),
    _broken(BornInItsChain, "lost", "a:b1 w~1", rules=BORN),
    _broken(ReservationLeftOut, "reused", "a:o11 b:p1", rules=BUFFERED),
    _broken(SealedFirst, "lost", "a:o1 b:p1 w~1"),
]


def _holds(name: str, words: str, faults: int, *seen: str, rules: Any = (), progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, rules=rules, judge=PlaceJudge), frozenset(seen), progress)


RULES = [
    _holds("p is transferred", "a:o2 b:p1", 1, *LATE, SEALED, VOIDED, progress=True),
    _holds("two takers, one of both partitions", "a:o1 b:b1 c:p1", 0, SEALED, LOST_PLACE, progress=True),
    _holds("one by a transfer, one by a fence", "a:o1 b:p1 d:p1", 1, SEALED, LOST_PLACE),
    _holds("two hops", "a:o1 b:b1 c:b1", 0, SEALED, LOST_PLACE),
    _holds("the owner takes it back", "a:o2p1 b:p1", 0, SEALED, VOIDED),
    _holds("with the owner's consent", "a:og1 b:p1 c:p1", 0, LOST_PLACE, SEALED),
    _holds("closed, and both are transferred", "a:o1x b:b1 c:p1", 0, "closed", LOST_PLACE),
    _holds("a next life, and a taker", "a:o2 b:p1 c/A:n1p1", 0, "adopted", SEALED, VOIDED),
    _holds("a claim that came late", "a:o1 b:p1 c/B:np1", 0, "adopted", RESUMED, SEALED),
    _holds("split under a taker", "a:o11 b:p1 split/A*1", 1, *LATE, *SPLIT[:1], SEALED, AGAIN, STALE),
    _holds("both lanes are split", "a:o11 b:p11 split/A*1 split/B*1", 0, "split", SEALED),
    _holds("a reader across transfers", "a:o1 b:p1 reader*1 split/A*1", 0, "split", SEALED),
    _holds("a reader across two", "a:o1 b:p1 c:p1 reader*1", 0, SEALED),
    _holds("a planner across transfers", "a:o1 b:p1 planner*1 split/A*1", 0, SEALED, BY_LANE, ASKED),
    _holds("shared writers behind a transfer", "a:o1 b:p1 w~1", 0, SEALED),
    _holds("a transfer behind shared writers", "a:o1 w~2 b:p1", 0, STOPPED, LOST_PLACE, SEALED),
    _holds("buffered acks", "a:o12 b:p1", 1, *LATE, SEALED, VOIDED, rules=BUFFERED),
    _holds("atomic, others in its entry", "a:o2 b:p1", 1, *LATE, SEALED, VOIDED, rules=MIXED),
    _holds("a new topic", "a:b1 b:p1", 1, *LATE, SEALED, LOST_PLACE, rules=BORN, progress=True),
    _holds("two who want all of it", "a:b1 b:b1", 1, SEALED, LOST_PLACE, rules=BORN),
    _holds("one of them without a lane", "a:b1 d:p1", 1, SEALED, LOST_PLACE, rules=BORN),
    _holds("a new topic, and shared writers", "a:b1 w~1 v~1", 0, SEALED, rules=BORN),
    _holds("a new topic, and a reader", "a:p1 b:p1 reader*2", 0, SEALED, rules=BORN),
    _holds("a new topic, and a planner", "a:b1 b:p1 planner*2", 0, BY_LANE, ASKED, rules=BORN),
    _holds("a new topic is split", "a:o11 b:p1 split/A*1 split/G*1", 0, "split", SEALED, rules=BORN),
    _holds("where topics are born is split", "a:p1 b:q1 c:p1 split/G*1", 0, "split", rules=BORN),
]

WIDE = [
    _holds("three takers", "a:o2 b:b1 c:p1 d:q1 split/A*1", 1, SEALED, VOIDED, "split"),
    _holds("two hops, split", "a:o11 b:p11 c:p1 split/A*1 split/B*1", 1, *LATE, SEALED, "split"),
    _holds("a reader", "a:o11 b:p1 c:p1 reader*2 split/A*1", 1, SEALED, "split"),
    _holds("a new topic", "a:b1 b:p1 d:q1 w~1 reader*1 split/G*1", 1, rules=BORN),
]
"""For long runs: the first million states of each."""

EVERYTHING = (
    "a:o23p1 b:p2 d:b1 c/A:n2b1 f:b2x g:b1 reader*3 planner*3 split/A*3 split/B*1 split/D*1 split/F*1"
)
DEEP = [
    _holds("everything", EVERYTHING, 3, "split", SEALED, VOIDED, "adopted"),
    _holds("everything, of a new topic", EVERYTHING + " split/G*1", 3, SEALED, rules=BORN),
    _holds("everything buffered", EVERYTHING, 3, "adopted", "split", SEALED, rules=BUFFERED),
    _holds("everything, and shared", f"{EVERYTHING} w~2 v~1", 3, SEALED, STOPPED, rules=BORN + BUFFERED),
]
"""For random walks: far beyond what can be searched."""
