"""Which threads and processes meet on a lane with a name, and every rule of that, broken.

`a1:q1` is thread 1 of process a, whose lane is A: it opens q and appends a record. `a2:Q1` appends with the writer of q that
there is from the start, `k` writes a checkpoint. `ask/A:pq` asks for p and q, `ask/A:q2` two places ahead. `split/A` splits
the lane: manifests, and then the checkpoint.
Other words are those of `transfers_runs`: `b:p1` takes p over and flushes, `c/A:np1` is the next life of lane A, elsewhere.
The topic is new; `held` says which partitions are a's from the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.model.actors import Actor
from tests.model.book import Book, Hand, Key, Load
from tests.model.harness import Contrast, Holds
from tests.model.lanes import Place
from tests.model.lanes_runs import late_arrival
from tests.model.lives import LifeJudge, Lives
from tests.model.places import Known
from tests.model.search import World

_THREAD = re.compile(r"(\w)(\d):(\S+)")
_OTHER = re.compile(r"(\w)(?:/(\w))?:(\w+)")
_SPLIT = re.compile(r"split/(\w)")
_ASK = re.compile(r"ask/(\w):([a-z]+)(\d?)")


class Run(NamedTuple):
    words: str
    faults: int = 0
    held: str = "q"
    parts: str = "pq"
    wide: bool = False
    kinds: tuple[str, ...] = ("lost",)
    prelude: str = ""

    def world(self, variant: type[Lives] = Lives) -> World:
        rules = variant(held=self.held, wide=self.wide, born=True, parts=tuple(self.parts))
        made: list[tuple[str, Callable[[], Actor]]] = []
        book, entry = rules.first_book("A")
        before: dict[Any, Any] = {("book", "a"): book}
        if entry is not None:
            before[Place("G", 0)] = entry
        for word in self.words.split():
            if found := _ASK.fullmatch(word):
                made.append((word[:5], partial(rules.asker, word[:5], *found.groups())))
            elif found := _SPLIT.fullmatch(word):
                made.append((word, partial(rules.splitter, word, found[1], 1)))
            elif found := _THREAD.fullmatch(word):
                who, number, script = found.groups()
                made.append((who + number, partial(rules.thread, who + number, who.upper(), script)))
            else:
                who, lane, script = _OTHER.fullmatch(word).groups()  # type: ignore[union-attr]
                made.append((who, partial(rules.process, who, lane or who.upper(), script)))
        return World(LifeJudge(rules), made, self.faults, self.kinds, late_arrival, before)


AGAIN, LATE, BACK, SAID = (
    "a claim is tried again",
    "a claim is answered too late",
    "adopted back",
    "a checkpoint is written",
)

UPLOADS = "a1:P1 a2:P1 a3:P1"
THREE = "a1*3 a2*3 a3*3 ask/A*1 b*4"
"""Three uploads of p are under way, and a transfer of q stands where the first of them should be. Who asks for q
has read the lane before."""

CLAIMED = "a2*3 a1*6"
"""An upload of q is about to be sent, and a claim of p stands, of which its thread was not told."""

CLAIMED_AND_ADOPTED = f"{CLAIMED} c*4"
"""That, and the lane has its next life elsewhere."""

# Each rule, broken: a variant overrides one method


class ForgetsThatItEnded(Lives):
    """Who tries a claim again begins it again in its book, although the first try stands and somebody has ended it since."""

    def begins_again(self, known: Known | None) -> bool:
        return known is None or known.begun


class LeavesTheQueueFirst(Lives):
    """What is sent again leaves its queue before its entry is under way: the one before it may come back behind it."""

    def taken_out(self, book: Book) -> Book:
        return book._replace(again=book.again[1:])

    def has_turn(self, book: Book, load: Load) -> bool:
        return True

    def left_out(self, book: Book) -> Book:
        return book


class AWriterOfALateAnswer(Lives):
    """A claim is answered, and a writer is made of it, whatever life of the lane there is by then."""

    def is_here(self, book: Book, known: Known | None, hand: Hand) -> bool:
        return known is not None


class AWriterOfTheLifeBefore(Lives):
    """What a writer is given counts while its claim goes on, also if the writer is of a life before this one."""

    def is_of_this_life(self, book: Book, key: Key, number: int) -> bool:
        return True


class WipesTheEarlierLife(Lives):
    """Who claims late begins the claim again in its book, although the lane has parts of it: of another life."""

    def begins_again(self, known: Known | None) -> bool:
        return known is None or not known.left


class BeginsBehindASplit(Lives):
    """Who is answered late begins its claim in its book where it was put, although another life has written behind that, and
    has split it."""

    def is_begun_only(self, known: Known) -> bool:
        return True


class GoesOnInANextLife(Lives):
    """Who has not met the next life of its lane goes on with a claim that leads there, and says in its checkpoint that the
    other's records lie before the claim's first part."""

    def is_the_last_life(self, book: Book, adopted_at: int) -> bool:
        return True


class AnswersBehindTheAdoption(Lives):
    """An owner that has met an ask answers it, although it has met the next life of the lane since."""

    def is_silent(self, book: Book) -> bool:
        return False


def _broken(
    variant: type[Lives], kind: str | tuple[str, ...], words: str, *args: Any, **more: Any
) -> Contrast:
    return Contrast(variant, kind, Run(words, *args, **more))


CONTRASTS = [
    _broken(ForgetsThatItEnded, "lost", "a1:p a2:Q1k b:p1", 1),
    _broken(LeavesTheQueueFirst, "lost", f"{UPLOADS} b:q ask/A:q2", held="pq", wide=True, prelude=THREE),
    _broken(AWriterOfALateAnswer, "lost", "a1:p1 a2:Q1q c/A:np1", prelude=CLAIMED),
    _broken(AWriterOfTheLifeBefore, "lost", "a1:P1 a2:Q1q c/A:np1", held="pq"),
    _broken(WipesTheEarlierLife, "lost", "a1:p a2:Q1qk c/A:np1"),
    _broken(BeginsBehindASplit, "lost", "a1:p1 a2:Q1q c/A:np1 split/A", prelude=CLAIMED_AND_ADOPTED),
    _broken(GoesOnInANextLife, "lost", "a1:p a2:Q1k c/A:np1"),
    _broken(AnswersBehindTheAdoption, "lost", "a1:Q1 c/A:nq1 ask/A:q"),
]


def _holds(name: str, run: Run, *seen: str, progress: bool = False) -> Holds:
    return Holds(name, run, frozenset(seen), progress)


MET, ADOPTED, ASKED = "another's transfer is met", "another's adopt is met", "another's ask is met"
SIDE_BY_SIDE: dict[str, Any] = {"held": "pq", "wide": True}

RULES = [
    _holds("a claim is tried again", Run("a1:p1 a2:Q1 b:p1", 1), AGAIN, MET),
    _holds("tried again, and a checkpoint", Run("a1:p a2:Q1k b:p1", 1), AGAIN, MET, SAID, progress=True),
    _holds(
        "three uploads meet two entries",
        Run(f"{UPLOADS} b:q ask/A:q2", prelude=THREE, **SIDE_BY_SIDE),
        MET,
        ASKED,
    ),
    _holds(
        "three uploads, and lost answers",
        Run(f"{UPLOADS} b:q", 1, prelude=THREE.replace("ask/A*1 ", ""), **SIDE_BY_SIDE),
        MET,
    ),
    _holds(
        "two uploads, and both are asked for", Run("a1:P1 a2:P1 ask/A:pq b:q", **SIDE_BY_SIDE), MET, ASKED
    ),
    _holds("a late answer", Run("a1:p1 a2:Q1q c/A:np1", prelude=CLAIMED), LATE, BACK, ADOPTED),
    _holds(
        "a late answer, and a split",
        Run("a1:p1 a2:Q1q c/A:np1 split/A", prelude=CLAIMED_AND_ADOPTED),
        *(LATE, BACK, ADOPTED, "split"),
    ),
    _holds("a late try, and a checkpoint", Run("a1:p a2:Q1qk c/A:np1"), LATE, BACK, ADOPTED, SAID),
    _holds("a writer of the life before", Run("a1:P1 a2:Q1q c/A:np1", held="pq"), BACK, ADOPTED),
    _holds("an ask, and another life", Run("a1:Q1q1 c/A:nq1 ask/A:q"), ASKED, ADOPTED, BACK),
]

WIDE = [
    _holds("a late answer", Run("a1:p1 a2:Q1q c/A:np1"), LATE, BACK, ADOPTED),
    _holds(
        "a late answer, and a split, from the start",
        Run("a1:p1 a2:Q1q c/A:np1 split/A", prelude=CLAIMED),
        *(LATE, BACK, ADOPTED, "split"),
    ),
    _holds("tried again, and adopted by another", Run("a1:p1 a2:Q1 c/A:np1", 1), AGAIN, ADOPTED),
    _holds("both come back", Run("a1:P1p1 a2:Q1q1 c/A:np1", held="pq"), BACK, ADOPTED),
    _holds("a taker, too", Run("a1:p1 a2:Q1q c/A:n b:p1"), BACK, MET, ADOPTED),
    _holds("a late answer, and a checkpoint", Run("a1:p1 a2:Q1qk c/A:np1", 1), AGAIN, BACK, SAID),
    _holds("three uploads, from the start", Run(f"{UPLOADS} b:q ask/A:q2", 1, **SIDE_BY_SIDE), MET, ASKED),
]
"""For long runs: the first million states of each."""

DEEP = [
    _holds(
        "everything", Run("a1:p1p1 a2:Q1q1k a3:Q1 b:p11 c/A:np1b1 ask/A:pq e:q1", 3), BACK, MET, SAID, AGAIN
    ),
    _holds(
        "everything, and uploads",
        Run(f"{UPLOADS} a4:Q1q1k b:q1 c/A:nb1 ask/A:pq", 3, **SIDE_BY_SIDE),
        BACK,
        SAID,
    ),
]
"""For random walks: far beyond what can be searched."""
