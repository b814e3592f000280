"""Which actors meet where claims are made without a look, and every rule of that, broken.

`a:cp1s` has created the topic (`c`: remembers that nobody has put anything there), claims p, flushes, and says what the lane
holds. `m` remembers all lanes as they are, `t` where the partitions end: `b:mtp1` claims p by both, later. `d` seals by what
it remembers. `erase/G*1` deletes a transfer that G's checkpoint knows, `follower*2` follows p twice and remembers where it
stood. Other words are those of `transfers_runs`.
"""

from __future__ import annotations

from typing import Any

from tests.model.guesses import Guesses, GuessJudge, Mind
from tests.model.lanes import Entry, Writer
from tests.model.lanes_runs import BUFFERED, SEALED, Contrast, Holds, Run
from tests.model.places import Checkpoint, Stand, Tail
from tests.model.transfers_runs import BORN

ALONE = (("parts", ("p",)),)
ADOPTS_LATE = "a*1 c*1 b*6"
"""The owner's record is stored; who will adopt its lane remembers that. Then its partition is taken over, and said to be."""

# Each rule, broken: a variant overrides one method


class GuessesAgain(Guesses):
    """Who finds another's entry in the place that it guessed tries the next one, without reading what that says."""

    def read_again(self, mind: Mind, found: Entry | None) -> Mind | None:
        if found is None:
            return None
        return mind._replace(at=mind.at._replace(next=mind.at.next + 1, edge=found.id))


class NobodyAsks(Guesses):
    """What was put behind what is remembered is believed without a look at the checkpoint."""

    def knows(self, checkpoint: Checkpoint, seq: int) -> bool:
        return False

    def was_emptied(self, checkpoint: Checkpoint, began: int) -> bool:
        return False


class AskedForSplitsAlone(Guesses):
    """The checkpoint is asked how far entries were split, and not how far it knows the lane."""

    def knows(self, checkpoint: Checkpoint, seq: int) -> bool:
        return False


class SealsAskForSplitsAlone(Guesses):
    """So are those who put a seal or an adoption."""

    def seals_ask(self) -> bool:
        return False


class GoesOnAsRemembered(Guesses):
    """A writer that was opened by what is remembered goes on at the place and the offset that it knew, although more has
    come since."""

    def left(self, wanted: tuple[Tail, ...], mind: Mind, exact: bool) -> tuple[Tail, ...]:
        return wanted

    def moving(self, who: str, at: Writer, wanted: tuple[Tail, ...], end: Stand) -> Any:
        entry, own = super().moving(who, at, wanted, end)
        tails = {tail.part: tail for tail in wanted}
        return entry, tuple(
            one._replace(next=self.base(tails[one.part]), seq=tails[one.part].seq + 1) for one in own
        )


class SaysWhatItRemembers(Guesses):
    """Who says what a lane holds goes by what it read when it claimed, whatever the checkpoint says since."""

    def is_read_by(self, base: Checkpoint, mind: Mind) -> bool:
        return True


class ASealedClaimIsEnough(Guesses):
    """A claim that has ended with its lane is looked for no further there: where it goes on may come later."""

    def says_enough(self, at: Stand, tail: Tail) -> bool:
        return at.claim(tail.part, tail.epoch).sealed


class AnyClaimIsEnough(Guesses):
    """A claim that the checkpoint names is looked for no further in its lane."""

    def says_enough(self, at: Stand, tail: Tail) -> bool:
        return any((known.part, known.claim) == (tail.part, tail.epoch) for known in at.claims)


class NeverTakesItsOwn(Guesses):
    """Who was not answered takes its own claim for another's, and begins again from there."""

    def stands(self, who: str, at: Writer, wanted: tuple[Tail, ...], mind: Mind) -> Any:
        return ()


class SplitsAreNotAskedFor(Guesses):
    """The checkpoint is asked how far it knows the lane, and not how far entries were split: which is not as far."""

    def was_emptied(self, checkpoint: Checkpoint, began: int) -> bool:
        return False


def _broken(
    variant: type[Guesses], kind: str, words: str, faults: int = 0, rules: Any = (), prelude: str = ""
) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, prelude=prelude, rules=rules, judge=GuessJudge))


CONTRASTS = [
    _broken(GuessesAgain, "lost", "a:cp1 b:cp1", rules=BORN),
    _broken(NobodyAsks, "lost", "a:o111 b:mp1 split/A*1"),
    _broken(AskedForSplitsAlone, "lost", "a:cp1 b:p1s erase/G*1", rules=BORN),
    _broken(SealsAskForSplitsAlone, "lost", "d:mtp1 b:p1s erase/G*1", rules=BORN),
    _broken(SealsAskForSplitsAlone, "lost", "a:o1 b:ps c/A:mn1 erase/A*1", rules=ALONE, prelude=ADOPTS_LATE),
    _broken(GoesOnAsRemembered, "reused", "a:o1 b:mtp1"),
    _broken(SaysWhatItRemembers, "short", "a:o11 b:ps split/A*1 follower*2", rules=BORN + ALONE),
    _broken(ASealedClaimIsEnough, "short", "a:o1x b:p1 split/A*1 reader*1"),
    _broken(AnyClaimIsEnough, "short", "a:o111 split/A*1 reader*1"),
]

NOT_NEEDED = [
    _broken(NeverTakesItsOwn, "", "a:cb1s b:p1", 1, rules=BORN),
    _broken(SplitsAreNotAskedFor, "", "a:o11 b:mp1s split/A*1", 1),
]


def _holds(
    name: str,
    words: str,
    faults: int,
    *seen: str,
    rules: Any = (),
    progress: bool = False,
    prelude: str = "",
) -> Holds:
    run = Run(words, faults, prelude=prelude, rules=rules, judge=GuessJudge)
    return Holds(name, run, frozenset(seen), progress)


GUESSED, TAKEN, UNSURE = "guessed", "a place is taken", "a claim in doubt"
WRONG, SAID, ENOUGH = "a guess is not believed", "said", "a checkpoint says enough"
GONE, AGAIN = "an entry is gone", "read again to be said"

RULES = [
    _holds("two creators", "a:cp1 b:cp1", 1, GUESSED, TAKEN, UNSURE, SEALED, rules=BORN, progress=True),
    _holds("of both partitions", "a:cb1s b:cb1s", 1, GUESSED, TAKEN, SAID, rules=BORN, progress=True),
    _holds("three creators", "a:cp1 b:cp1 c:cp1", 0, GUESSED, TAKEN, rules=BORN),
    _holds("a creator, and one who looks", "a:cb1s b:p1s", 1, GUESSED, TAKEN, SAID, rules=BORN),
    _holds("two partitions, one after the other", "a:cp1q1s b:cq1", 1, GUESSED, TAKEN, rules=BORN),
    _holds("a memory of any age", "a:cp1s b:cp1s c:mtq1", 0, GUESSED, WRONG, rules=BORN),
    _holds("it closes", "a:cp1x b:mtp1s c:p1", 0, GUESSED, TAKEN, "closed", rules=BORN),
    _holds("one with a fence", "a:cp1s d:mtp1", 1, GUESSED, SEALED, rules=BORN),
    _holds("shared writers", "a:cp1s w~1 v~1", 0, GUESSED, ENOUGH, rules=BORN),
    _holds("a shared writer, lost answers", "a:cp1s w~1", 1, GUESSED, ENOUGH, UNSURE, rules=BORN),
    _holds("a reader", "a:cb1 b:cb1 reader*1", 1, GUESSED, TAKEN, rules=BORN),
    _holds("a planner", "a:cp1s b:p1s planner*1", 0, GUESSED, SAID, rules=BORN),
    _holds("a follower", "a:cp1s b:p1s follower*2", 0, GUESSED, SAID, rules=BORN),
    _holds("where topics are born is split", "a:cp1s b:cq1s split/G*1", 1, WRONG, AGAIN, rules=BORN),
    _holds("a living owner", "a:o12 b:mtp1", 1, GUESSED, TAKEN, UNSURE),
    _holds("buffered acks", "a:o12 b:mtp1", 1, GUESSED, TAKEN, rules=BORN + BUFFERED),
    _holds("split under a guess", "a:o111 b:mp1s split/A*1", 0, GUESSED, WRONG, TAKEN, "split"),
    _holds("lost answers, too", "a:o11 b:mp1s split/A*1", 1, GUESSED, WRONG, UNSURE, "split"),
    _holds("behind an entry of its own", "a:o11 b:p1q1s split/A*1", 0, GUESSED, WRONG, ENOUGH, AGAIN),
    _holds("split, and a reader", "a:o11 b:mtp1 split/A*1 reader*1", 0, GUESSED, WRONG, ENOUGH),
    _holds("split, and a follower", "a:o11 b:mp1s split/A*1 follower*1", 0, GUESSED, rules=BORN),
    _holds("split and said", "a:o11 b:ps split/A*1 follower*2", 0, SAID, AGAIN, rules=BORN + ALONE),
    _holds("closed and split", "a:o11x b:mtb1s split/A*1", 0, GUESSED, "closed", "split", SAID),
    _holds("two takers of a lane that was closed", "a:o1x b:mtb1s c:mb1s", 0, GUESSED, TAKEN, SAID),
    _holds("two hops", "a:o1 b:mp1 c:mtp1", 1, GUESSED, TAKEN),
    _holds("the next life", "a:o1 b:mtp1 c/A:np1", 0, GUESSED, TAKEN, "adopted"),
    _holds("the next life remembers", "a:o1 b:p1 c/A:mnp1", 0, "adopted", TAKEN),
    _holds("a claim is gone", "a:cp1 b:p1s erase/G*1", 1, GUESSED, WRONG, GONE, rules=BORN),
    _holds("gone, and another", "a:cp1 b:p1s c:q1 erase/G*1", 0, GUESSED, WRONG, GONE, rules=BORN),
    _holds("gone, and a seal", "d:mtp1 b:p1s erase/G*1", 0, "a seal is not believed", GONE, rules=BORN),
    _holds("gone, and a shared writer", "w~1 b:p1s erase/G*1", 0, GONE, rules=BORN),
    _holds("gone, and a follower", "a:cp1 b:p1s erase/G*1 follower*1", 0, WRONG, GONE, rules=BORN),
    _holds(
        "gone, and an adoption",
        "a:o1 b:ps c/A:mn1 erase/A*1",
        0,
        "a adopt is not believed",
        GONE,
        rules=ALONE,
        prelude=ADOPTS_LATE,
    ),
]

WIDE = [
    _holds("three creators, lost answers", "a:cp1s b:cp1s c:cp1s", 1, GUESSED, TAKEN, rules=BORN),
    _holds("three who remember", "a:o11x b:mtb1s c:mp1 split/A*1", 1, GUESSED, AGAIN, "split"),
    _holds("the next life, and two takers", "a:o1 b:mtp1 c/A:mnp1s d:p1", 1, GUESSED, "adopted"),
    _holds("a new topic", "a:cb11s b:mtp1s c:mtq1s d:p1 split/G*1 split/A*1", 1, GUESSED, rules=BORN),
]
"""For long runs: the first million states of each."""

EVERYTHING = "a:o12mp1s b:mtp2s d:mtb1 c/A:mn2b1s f:mtb2xs i:mb1s reader*2 planner*2 split/A*3 split/B*1"
FOLLOWED = "a:o12mp1s b:mtp2s c/A:mn2b1s f:mtb2xs h:cb1s follower*3 split/A*3 split/B*1 split/G*1"
DEEP = [
    _holds("everything", EVERYTHING, 3, GUESSED, SAID, "split"),
    _holds("everything, of a new topic", f"{EVERYTHING} split/G*1 h:cb1s", 3, GUESSED, SAID, rules=BORN),
    _holds("everything, followed", FOLLOWED, 3, GUESSED, SAID, AGAIN, rules=BORN),
]
"""For random walks: far beyond what can be searched."""
