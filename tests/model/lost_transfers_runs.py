"""Which actors meet where a transfer cannot be read any more, and every rule of that, broken.

`rot*1` damages the first transfer that stands, at any moment. The other words are those of `transfers_runs`.
"""

from __future__ import annotations

from typing import Any

from tests.model.lanes import Step, Writer
from tests.model.lanes_runs import BUFFERED, SEALED, Contrast, Holds, Run
from tests.model.lost_transfers import LostTransfers
from tests.model.places import Known, PlaceJudge, Stand, Tail
from tests.model.places_runs import MOVED
from tests.model.transfers_runs import BORN

DAMAGED, ALONE, TOLD, FOUND = (
    "a transfer is damaged",
    "a claim in doubt is left alone",
    "a reader is told of a damage",
    "a lane tells of a lost transfer",
)

# Each rule, broken: a variant overrides one method


class TakesInDoubt(LostTransfers):
    """A taker takes what may have been taken by the transfer that was lost."""

    def may_take(self, tail: Tail) -> bool:
        return True


class SealsInDoubt(LostTransfers):
    """A seal names a claim that is in doubt: an owner that leaves its lane at what it cannot read goes on in the partition's
    own chain, as where nothing is ever transferred."""

    def may_end(self, at: Stand, key: tuple[str, int]) -> bool:
        return True


class LeavesByATransfer(LostTransfers):
    """An owner that leaves its lane at what it cannot read claims its partitions for a lane of another name, by a transfer
    behind that place."""

    def leave(self, who: str, at: Writer, seals: frozenset[Any]) -> Step:
        return
        yield

    def may_take(self, tail: Tail) -> bool:
        return True


class NeverLooksElsewhere(LostTransfers):
    """A reader takes what it cannot read for an entry that says nothing."""

    def looked_for(self, tail: Tail) -> Step:
        return None
        yield

    def follow(self, tail: Tail, got: Any) -> Step:
        found = yield from super().follow(tail, got)
        return found if found is None else (found[0]._replace(doubt=False), found[1])


class AdoptsInDoubt(LostTransfers):
    """The next life of a lane goes on with claims that may have been transferred."""

    def is_sure(self, known: Known) -> bool:
        return True


class SplitsPastIt(LostTransfers):
    """A checkpoint is written behind a place that its writer could not read."""

    def waits(self) -> bool:
        return False


def _broken(variant: type[LostTransfers], kind: str, words: str, rules: Any = ()) -> Contrast:
    return Contrast(variant, kind, Run(words, rules=rules, judge=PlaceJudge))


CONTRASTS = [
    _broken(TakesInDoubt, "lost", "a:o1 b:p1 c:p1 rot*1"),
    _broken(TakesInDoubt, "lost", "a:p1 b:p1 rot*1", rules=BORN),
    _broken(TakesInDoubt, "lost", "a:o1 b:p1 d:p1 rot*1"),
    _broken(SealsInDoubt, "lost", "a:o11 b:p1 rot*1"),
    _broken(SealsInDoubt, "lost", "a:o1 b:p1 d:p1 rot*1"),
    _broken(LeavesByATransfer, "lost", "a:o11 b:p1 rot*1"),
    _broken(NeverLooksElsewhere, "short", "a:o1 b:p1 reader*1 rot*1"),
    _broken(AdoptsInDoubt, "lost", "a:o1 b:p1 c/A:n1 rot*1"),
    _broken(SplitsPastIt, "lost", "a:o11 b:p1 split/A*1 rot*1"),
]


def _holds(name: str, words: str, faults: int, *seen: str, rules: Any = ()) -> Holds:
    return Holds(name, Run(words, faults, rules=rules, judge=PlaceJudge), frozenset(seen), False)


RULES = [
    _holds("an owner meets it", "a:o11 b:p1 rot*1", 0, DAMAGED, MOVED, ALONE, FOUND, SEALED),
    _holds("lost answers, too", "a:o1 b:p1 rot*1", 1, DAMAGED, MOVED, ALONE),
    _holds("uploads under way", "a:o2 b:p1 rot*1 reader*1", 0, DAMAGED, MOVED, TOLD, FOUND, SEALED),
    _holds("another taker", "a:o1 b:p1 c:p1 rot*1", 0, DAMAGED, ALONE, FOUND, SEALED),
    _holds("one with a fence", "a:o1 b:p1 d:p1 rot*1", 0, DAMAGED, ALONE, FOUND),
    _holds("a next life", "a:o1 b:p1 c/A:n1p1 rot*1", 0, DAMAGED, "adopted"),
    _holds("a reader", "a:o11 b:p1 reader*2 rot*1", 0, DAMAGED, TOLD, FOUND),
    _holds("a planner", "a:o1 b:p1 planner*2 rot*1", 0, DAMAGED, FOUND),
    _holds("shared writers", "a:o1 b:p1 w~1 rot*1", 0, DAMAGED, ALONE, FOUND),
    _holds("buffered acks", "a:o11 b:p1 rot*1", 0, DAMAGED, MOVED, rules=BUFFERED),
    _holds("split before it", "a:o11 b:p1 split/A*1 rot*1", 0, DAMAGED, "split"),
    _holds("split behind it", "b:p11 reader*1 split/B*1 rot*1", 0, DAMAGED, FOUND, "split", rules=BORN),
    _holds("of a new topic", "a:b1 b:p1 rot*1", 0, DAMAGED, ALONE, FOUND, rules=BORN),
    _holds("of a new topic, and a reader", "a:p1 b:q1 reader*1 rot*1", 0, DAMAGED, TOLD, FOUND, rules=BORN),
    _holds("of a new topic, and shared writers", "a:b1 w~1 rot*1", 0, DAMAGED, ALONE, rules=BORN),
    _holds("of a new topic, two hops", "a:p1 b:p1 c:p1 rot*1", 0, DAMAGED, FOUND, rules=BORN),
]
