"""Which actors meet where takers ask owners, and every rule of that, broken.

The words are those of `transfers_runs`: `d` and `e` take partitions over with a seal and a fence, others by a transfer.
"""

from __future__ import annotations

from typing import Any

from tests.model.asks import Asks, is_ask
from tests.model.lanes import Entry, Place, Step, Upload, Writer
from tests.model.lanes_runs import BUFFERED, MIXED, SEALED, VOIDED, Contrast, Holds, Run
from tests.model.lost_transfers_runs import DAMAGED
from tests.model.places import PlaceJudge
from tests.model.store import Get

ASKS, ANSWERS = "a taker asks", "an owner answers"

# Each rule, broken: a variant overrides one method


class TakenForASeal(Asks):
    """Who reads a lane takes an ask for the seal that it asks for."""

    def behind(self, at: Any, entry: Entry) -> Any:
        new = super().behind(at, entry)
        if is_ask(entry):
            claims = {(c.part, c.claim): c for c in new.claims}
            for key in entry.seals & claims.keys():
                claims[key] = claims[key]._replace(sealed=True, left=True)
            new = new._replace(claims=tuple(sorted(claims.values())))
        return new


class AnAskLinks(Asks):
    """Who reads a lane wants the entry behind an ask to name it."""

    def behind(self, at: Any, entry: Entry) -> Any:
        new = super().behind(at, entry)
        return new._replace(edge=entry.id) if is_ask(entry) else new


class TheAskWillDo(Asks):
    """A taker whose ask the lane has reached goes on at once: it does not wait for the seal."""

    def put_at_end(self, lane: str, at: Any, entry: Entry, wanted: Any) -> Step:
        while True:
            found = yield Get(Place(lane, at.next))
            if found is None:
                break
            at = self.behind(at, found)
            if is_ask(found) and entry.seals <= found.seals:
                return at
            del found
        del found
        at = yield from super().put_at_end(lane, at, entry, wanted)
        return at


class GoesOnBehindItsAnswer(Asks):
    """An owner answers with the next entry, and sends what the partition has in later ones all the same."""

    def behind_answer(self, who: str, at: Writer, first: Upload, ups: Any, gone: set[str]) -> Any:
        return at, ups


class HalfAnAppendGoesOn(Asks):
    """What an atomic append has in other partitions is sent, although it has lost one behind the answer."""

    def fails_whole(self, record: str) -> bool:
        return False


class AnAskTells(Asks):
    """An ask says that its maker knew all places before the lane's end: so its link tells what counts behind a lost one."""

    def ask(self, at: Any, name: Any, seals: frozenset[Any]) -> Entry:
        return super().ask(at, name, seals)._replace(known=at.next)


class AsksAreEmptied(Asks):
    """A splitter deletes asks."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return super().may_go(entry, valid) or is_ask(entry)


class AHoleBeforeItIsALoss(Asks):
    """An empty place before an ask is taken for one whose entry was lost, and is passed over."""

    def put_at_end(self, lane: str, at: Any, entry: Entry, wanted: Any) -> Step:
        while True:
            here = yield Get(Place(lane, at.next))
            there = yield Get(Place(lane, at.next + 1))
            if here is None and not is_ask(there):
                break
            at = at._replace(next=at.next + 1) if here is None else self.behind(at, here)
            del here, there
        del here, there
        at = yield from super().put_at_end(lane, at, entry, wanted)
        return at


def _broken(variant: type[Asks], kind: str, words: str, faults: int = 0, rules: Any = ()) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, rules=rules, judge=PlaceJudge))


CONTRASTS = [
    _broken(TakenForASeal, "lost", "a:o111 d:p1"),
    _broken(AnAskLinks, "lost", "a:o111 d:p1"),
    _broken(TheAskWillDo, "lost", "a:o111 d:p1 e:p1"),
    _broken(GoesOnBehindItsAnswer, "lost", "a:o13 d:p1"),
    _broken(HalfAnAppendGoesOn, "half", "a:o13 d:p1", rules=MIXED),
    _broken(AnAskTells, "lost", "a:o111 b:p1 d:q1 rot*1"),
    _broken(AsksAreEmptied, "lost", "a:o111 d:p1 split/A*1"),
    _broken(AHoleBeforeItIsALoss, "lost", "a:o11 d:p1 e:q1"),
]


def _holds(name: str, words: str, faults: int, *seen: str, rules: Any = (), progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, rules=rules, judge=PlaceJudge), frozenset(seen), progress)


RULES = [
    _holds("a busy owner", "a:o111 d:p1", 1, ASKS, ANSWERS, SEALED, progress=True),
    _holds("a busy owner, and a transfer", "a:o111 b:p1", 1, ASKS, ANSWERS, SEALED, progress=True),
    _holds("two uploads under way", "a:o12 d:p1", 1, ASKS, ANSWERS, SEALED, VOIDED),
    _holds("three uploads under way", "a:o13 d:p1", 0, ASKS, ANSWERS, SEALED, VOIDED),
    _holds("of both partitions", "a:o12 b:b1", 0, ASKS, ANSWERS, SEALED, VOIDED),
    _holds("two takers", "a:o11 d:p1 e:p1", 0, ASKS, SEALED),
    _holds("two takers of two partitions", "a:o11 b:p1 d:q1", 0, ASKS, ANSWERS, SEALED),
    _holds("the owner takes it back", "a:o111p1 d:p1", 0, ASKS, ANSWERS, SEALED),
    _holds("its owner gives it up meanwhile", "a:o11g d:p1", 0, ASKS, ANSWERS),
    _holds("its owner closes", "a:o11x d:p1", 0, ASKS, "closed"),
    _holds("its next life meets it", "a:o11 d:p1 c/A:n1", 0, ASKS, ANSWERS, "adopted"),
    _holds("split under it", "a:o111 d:p1 split/A*1", 0, ASKS, ANSWERS, "split"),
    _holds("a reader", "a:o111 d:p1 reader*2", 0, ASKS, ANSWERS),
    _holds("a planner", "a:o111 d:p1 planner*1", 0, ASKS, ANSWERS),
    _holds("shared writers", "a:o111 w~1", 0, ASKS, ANSWERS),
    _holds("a transfer is damaged", "a:o111 b:p1 rot*1", 0, ASKS, ANSWERS, DAMAGED),
    _holds("a transfer is damaged, and a reader", "a:o111 b:p1 reader*1 rot*1", 0, ASKS, ANSWERS, DAMAGED),
    _holds("buffered acks", "a:o12 d:p1", 1, ASKS, ANSWERS, rules=BUFFERED),
    _holds("atomic, others in its entry", "a:o13 d:p1", 0, ASKS, ANSWERS, rules=MIXED),
]

WIDE = [
    _holds("a transfer is damaged", "a:o11 b:p1 d:q1 rot*1", 0, ASKS, ANSWERS, DAMAGED),
    _holds("three takers", "a:o112 b:b1 d:p1 e:q1 split/A*1", 1, ASKS, ANSWERS),
    _holds("two hops", "a:o111 b:p111 d:p1 split/A*1 split/B*1", 1, ASKS, ANSWERS),
]
"""For long runs: the first million states of each."""
