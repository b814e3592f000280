"""Which actors meet a process that comes back with a WAL: the rules that hold, and every variant with what the search must
find in it.

`w:ollr1` has p from the start, acks two records as local, dies, and its next life opens p and flushes. `u` sends what waits,
and nobody is told what became of it; `s` is shown, and lost with the WAL's end; `f` is a life that dies when its first fence
is sent. Three offsets are reserved: `lll` is all that readers may have seen, so there is one fence. Other words are those of
`transfers_runs`: `b` takes over by a transfer, `d` by a seal and a fence in the partition's chain.
"""

from __future__ import annotations

from typing import Any

from tests.model.lanes import Place, Step, Writer
from tests.model.lanes_runs import Contrast, Holds, Run
from tests.model.places import Segment, Tail, after
from tests.model.places_runs import LOST_PLACE
from tests.model.recoveries import Kept, Recoveries, RecoveryJudge, Wal
from tests.model.store import Get
from tests.model.transfers_runs import BORN

NAMED = (("named", True),)
FIRST, ASIDE, MORE = "the first of two fences stands", "kept aside", "more was found by the seal"

# Each rule, broken: a variant overrides one method


class FirstLeadsIntoTheLane(Recoveries):
    """The first fence leads into the lane already, and the second, in the partition's chain, has its epoch: who takes over
    between them goes on in the lane, and the second does not meet it."""

    def leads(self, is_last: bool) -> bool:
        return True

    def epoch(self, at: Writer, tail: Tail) -> int:
        return tail.epoch if tail.lane == at.lane and not tail.open else tail.epoch + 1

    def load_chain(self, part: str) -> Step:
        """A listing shows the second, too."""
        base, tail, got = yield from super().load_chain(part)
        if tail.lane:
            found = yield Get(Place(part, tail.seq))
            if found is not None and (found.epoch, found.lane) == (tail.epoch, tail.lane):
                tail = after(tail, found)._replace(open=tail.open, alive=tail.alive)
        return base, tail, got


class FirstLeadsUnderAnEpochOfItsOwn(Recoveries):
    """The first fence leads into the lane already; the second has the next epoch."""

    def leads(self, is_last: bool) -> bool:
        return True


class SecondIsBelieved(Recoveries):
    """Who has its first fence takes the place behind it for its own, and does not look what stands there."""

    def is_ours(self, found: Any, fence: Segment) -> bool:
        return found.id == fence.id or not fence.records


class FirstReservesNothing(Recoveries):
    """The first fence reserves what it holds: who takes over behind it begins where the WAL ended."""

    def first_reserves(self, start: int, end: int) -> int:
        return end


class KeptIsAllThatWasSeen(Recoveries):
    """The records go on where the WAL ended: one fence is enough."""

    def goes_on_at(self, tail: Tail) -> int:
        return tail.end


class ClaimGoesOn(Recoveries):
    """What the WAL kept is put into a fence, and the claim in the lane is not ended before."""

    def is_new(self, name: str, tail: Tail) -> Step:
        return False
        yield


class JudgedBeforeTheSeal(Recoveries):
    """What the WAL is to bring back is judged before the claim is ended, and not again afterwards."""

    def is_new(self, name: str, tail: Tail) -> Step:
        yield from super().is_new(name, tail)
        return False


class WalGoesFirst(Recoveries):
    """The WAL is emptied when it was read, before what it kept stands in a fence."""

    def read_back(self, wal: Wal, life: int) -> Wal:
        return wal if life == 1 else ()


class SameEpoch(Recoveries):
    """The second fence has the epoch of the first."""

    def epoch(self, at: Writer, tail: Tail) -> int:
        return tail.epoch + (tail.lane != "" or tail.shared or tail.reserved == tail.end)


class EpochsNotCompared(Recoveries):
    """What lies behind the end of what is stored is stored again, whoever has been there since."""

    def is_of_another(self, one: Kept, tail: Tail) -> bool:
        return False


def _broken(variant: type[Recoveries], kind: str, words: str, faults: int = 0, rules: Any = BORN) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, rules=rules, judge=RecoveryJudge))


CONTRASTS = [
    _broken(FirstLeadsIntoTheLane, "lost", "w:ollr1 b:p1"),
    _broken(FirstLeadsIntoTheLane, "lost", "w:ollr1 b:p1", rules=BORN + NAMED),
    _broken(FirstLeadsUnderAnEpochOfItsOwn, "lost", "w:ollr1 b:p1"),
    _broken(SecondIsBelieved, "lost", "w:ollr1 b:p1"),
    _broken(FirstReservesNothing, "reused", "w:olsr1 b:p1"),
    _broken(KeptIsAllThatWasSeen, "reused", "w:olsr1 b:p1"),
    _broken(ClaimGoesOn, "forgotten", "w:our1", 1),
    _broken(JudgedBeforeTheSeal, "forgotten", "w:our1 b:p1", 1),
    _broken(WalGoesFirst, "forgotten", "w:olfr1", 1),
]

NOT_NEEDED = [
    _broken(FirstLeadsIntoTheLane, "", "w:ollr1"),
    _broken(FirstLeadsIntoTheLane, "", "w:ollr1 d:p1", rules=()),
    _broken(SameEpoch, "", "w:ollfr1 b:p1", 1),
    _broken(EpochsNotCompared, "", "w:ollr1 b:p1", 1),
]
"""The first two say where the broken rule does no harm: alone, and where claims are in the partition's chain."""


def _holds(
    name: str, words: str, faults: int, *seen: str, rules: Any = BORN, progress: bool = False
) -> Holds:
    return Holds(name, Run(words, faults, rules=rules, judge=RecoveryJudge), frozenset(seen), progress)


RULES = [
    _holds("taken over by a transfer", "w:oulr1 b:p1", 1, FIRST, ASIDE, MORE, LOST_PLACE, progress=True),
    _holds("taken over by a fence", "w:oulr1 d:p1", 1, FIRST, ASIDE, LOST_PLACE, rules=(), progress=True),
    _holds("two takers", "w:ollr1 b:p1 d:p1", 0, FIRST, ASIDE, LOST_PLACE),
    _holds("taken over, and taken back", "w:ollr1 b:p1 c:p1", 0, FIRST, ASIDE, LOST_PLACE),
    _holds("the WAL kept all that was seen", "w:olllr1 b:p1", 1, ASIDE, MORE, LOST_PLACE),
    _holds("the WAL lost its end", "w:olsr1 b:p1", 1, FIRST, ASIDE, MORE, LOST_PLACE),
    _holds("dies between the fences", "w:ollfr1 b:p1", 1, ASIDE, LOST_PLACE),
    _holds("comes back twice", "w:olrlr1 b:p1", 0, FIRST, ASIDE, LOST_PLACE),
    _holds("in a lane with a name", "w:oulr1 b:p1", 1, FIRST, ASIDE, MORE, rules=BORN + NAMED),
    _holds("dies, in a lane with a name", "w:olfr1 b:p1", 1, ASIDE, rules=BORN + NAMED),
    _holds("a next life without this disk", "w:oulr1 c/W:np1", 0, FIRST, ASIDE, rules=BORN + NAMED),
    _holds("that, and a taker", "w:olr1 c/W:n1 b:p1", 0, FIRST, ASIDE, rules=BORN + NAMED),
    _holds("two with a WAL", "w:olr1 v:rlr1", 0, FIRST, ASIDE, LOST_PLACE),
    _holds("shared writers", "w:ollr1 x~1", 1, FIRST, ASIDE, LOST_PLACE),
    _holds("a reader", "w:ollr1 b:p1 reader*1", 0, FIRST, ASIDE),
    _holds("split", "w:oulr1 b:p1 split/W*1", 0, FIRST, ASIDE, rules=BORN + NAMED),
]

WIDE = [
    _holds("two takers, lost answers", "w:oulr1 b:p1 d:p1 c:p1", 1, FIRST, ASIDE, LOST_PLACE),
    _holds("two with a WAL, and a taker", "w:oulfr1 v:rlr1 b:p1", 1, FIRST, ASIDE, rules=BORN + NAMED),
]
"""For long runs: the first million states of each."""

EVERYTHING = "w:oulsr1lfrur1 v:rlfr1 b:p2 d:p1 c/W:n1p1 x~1 reader*2 split/W*2 split/G*1"
DEEP = [
    _holds("everything", EVERYTHING, 3, ASIDE),
    _holds("everything, in lanes with names", EVERYTHING, 3, ASIDE, rules=BORN + NAMED),
]
"""For random walks: far beyond what can be searched."""
