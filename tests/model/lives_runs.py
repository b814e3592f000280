"""Which threads and processes meet on a lane with a name, and every rule of that, broken.

`a1:q1` is thread 1 of process a, whose lane is A: it opens q and appends a record. `a2:Q1` appends with the writer of q that
there is from the start, `a1:-` loads p and opens it with a later word, `k` writes a checkpoint. `ask/A:pq` asks for p and q.
Other words are those of `transfers_runs`: `b:p1` takes p over and flushes, `c/A:np1` is the next life of lane A, elsewhere.
The topic is new; `held` says which partitions are a's from the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.model.actors import Actor
from tests.model.harness import Contrast, Holds
from tests.model.lanes import Place
from tests.model.lanes_runs import late_arrival
from tests.model.lives import LifeJudge, Lives
from tests.model.places import Known
from tests.model.search import World

_THREAD = re.compile(r"(\w)(\d):(\S+)")
_OTHER = re.compile(r"(\w)(?:/(\w))?:(\w+)")
_ASK = re.compile(r"ask/(\w):(\w+)")


class Run(NamedTuple):
    words: str
    faults: int = 0
    held: str = "q"
    parts: str = "pq"
    wide: bool = False
    kinds: tuple[str, ...] = ("lost",)

    def world(self, variant: type[Lives] = Lives) -> World:
        rules = variant(wide=self.wide, born=True, parts=tuple(self.parts))
        made: list[tuple[str, Callable[[], Actor]]] = []
        book, entry = rules.process_with("A", self.held)
        before: dict[Any, Any] = {("book", "a"): book}
        if entry is not None:
            before[Place("G", 0)] = entry
        for word in self.words.split():
            if found := _ASK.fullmatch(word):
                made.append((word[:5], partial(rules.asker, word[:5], *found.groups())))
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

# Each rule, broken: a variant overrides one method


class ForgetsThatItEnded(Lives):
    """Who tries a claim again begins it anew in its book, although the first try stands and somebody has ended it since."""

    def begins_anew(self, known: Known | None) -> bool:
        return known is None or known.begun


def _broken(
    variant: type[Lives], kind: str | tuple[str, ...], words: str, *args: Any, **more: Any
) -> Contrast:
    return Contrast(variant, kind, Run(words, *args, **more))


CONTRASTS = [
    _broken(ForgetsThatItEnded, "lost", "a1:p a2:Q1k b:p1", 1),
]


def _holds(name: str, run: Run, *seen: str) -> Holds:
    return Holds(name, run, frozenset(seen))


MET = "another's transfer is met"

RULES = [
    _holds("a claim is tried again", Run("a1:p1 a2:Q1 b:p1", 1), AGAIN, MET),
    _holds("and a checkpoint is written", Run("a1:p a2:Q1k b:p1", 1), AGAIN, MET, SAID),
]
