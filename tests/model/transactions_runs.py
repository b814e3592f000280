"""Who meets whom in the model of transactions, and each of its rules, broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.model.actors import Actor
from tests.model.search import World
from tests.model.store import Get
from tests.model.transactions import (
    ABORT,
    COMMIT,
    COORDINATOR,
    DECIDED,
    ONGOING,
    START,
    Coordinated,
    Data,
    Log,
    Marker,
    Step,
    TransactionJudge,
    Transactions,
)

HOW = {"c": COMMIT, "a": ABORT, "?": "?"}


class Run(NamedTuple):
    """`a:PQc,Pa`: producer a, which commits a transaction in P and Q and aborts one in P (`?`: leaves it open). `f*2`:
    somebody who carries out two decisions. `clock`: a time-out. `late:P`: a batch of the first transaction that was under
    way for long; `again:a`: a request to end it."""

    words: str
    faults: int = 0
    kinds: tuple[str, ...] = ("lost", "412")

    def world(self, rules: type[Transactions] = Transactions) -> World:
        return World(
            TransactionJudge(),
            [(word, self._actor(rules(), word)) for word in self.words.split()],
            self.faults,
            self.kinds,
            objects=START,
        )

    @staticmethod
    def _actor(rules: Transactions, word: str) -> Callable[[], Actor]:
        if word == "clock":
            return rules.clock
        if "*" in word:
            return partial(rules.finish, int(word.split("*")[1]))
        who, plan = word.split(":")
        if who == "late":
            return partial(rules.late, plan)
        if who == "again":
            return partial(rules.ended_again, HOW[plan])
        return partial(rules.producer, who, tuple((each[:-1], HOW[each[-1]]) for each in plan.split(",")))


class NoNumber(Transactions):
    """A partition compares only epochs: a marker that is repeated ends the producer's next transaction."""

    def is_stale(self, last: Marker, marker: Marker) -> bool:
        return marker.epoch < last.epoch


class NobodyIsAsked(Transactions):
    """A partition takes a transactional batch without asking the coordinator."""

    def verified(self, place: str, epoch: int) -> Step:
        return True
        yield


class AskedTooEarly(Transactions):
    """A marker comes between the question and the batch, and the answer still counts."""

    def is_as_before(self, log: Log, now: Log) -> bool:
        return True


class SameEpoch(Transactions):
    """A transaction that is aborted for its producer leaves it its epoch."""

    def fenced(self, known: Coordinated) -> int:
        return known.epoch


class MarkersFirst(Transactions):
    """Markers are put before the decision is durable."""

    def end(self, who: str, epoch: int, how: str) -> Step:
        known = yield Get(COORDINATOR)
        if known.epoch != epoch or known.state in DECIDED:
            return None
        left = tuple(sorted(known.places))
        while left:
            yield from self.mark(left[0], Marker(epoch, known.number, how))
            left = left[1:]
        done = yield from super().end(who, epoch, how)
        return done


class DoneTooEarly(Transactions):
    """That all markers stand is written when the first of them does."""

    def carry_out(self, known: Coordinated) -> Step:
        left = tuple(sorted(known.places))
        yield from self.mark(left[0], Marker(known.epoch, known.number, known.state))
        done = known._replace(version=known.version + 1, state="done", places=frozenset(), by="done")
        yield from self.changed(COORDINATOR, known, done)


class OneDecisionForTwo(Transactions):
    """What is decided can be decided otherwise until its markers stand."""

    def end(self, who: str, epoch: int, how: str) -> Step:
        known = yield Get(COORDINATOR)
        if known.epoch != epoch or known.state not in (ONGOING, *DECIDED):
            return None
        done = yield from self.changed(
            COORDINATOR, known, known._replace(version=known.version + 1, state=how, by=who)
        )
        return done or None


class BlindPartition(Transactions):
    """A leader that was replaced still writes: what it has not seen is not compared."""

    def data(self, place: str, data: Data) -> Step:
        verified = yield from self.verified(place, data.epoch)
        if not verified:
            return False
        del verified
        while True:
            now = yield Get(place)
            done = yield from self.changed(place, now, Log(now.version + 1, (*now.entries, data)))
            if done:
                return True
            del now, done


class Holds(NamedTuple):
    name: str
    run: Run
    seen: frozenset[str] = frozenset()


class Contrast(NamedTuple):
    variant: type[Transactions]
    kind: str
    run: Run


AGAIN, LATE, TIMED_OUT = "a marker again", "too late", "timed out"
RULES = [
    Holds("two transactions, two coordinators", Run("a:Pc,Pa f*2 g*1"), frozenset({AGAIN})),
    Holds("two partitions, two coordinators", Run("a:PQc f*1 g*1"), frozenset({AGAIN})),
    Holds("a new life", Run("a:Pc b:Pc f*2"), frozenset({LATE})),
    Holds("a new life, and two coordinators", Run("a:P? b:Pc f*2 g*1"), frozenset({AGAIN, LATE})),
    Holds("a time-out", Run("a:Pc,Pc f*2 clock"), frozenset({TIMED_OUT, LATE})),
    Holds("a late batch", Run("a:Pa late:P f*1 g*1"), frozenset({LATE, "a late batch, in time"})),
    Holds("ended twice, and the other way", Run("a:PQc again:c again:a f*1 g*1"), frozenset({AGAIN})),
    Holds("lost answers", Run("a:Pc f*1 g*1", 1), frozenset({AGAIN})),
]
CONTRASTS = [
    Contrast(NoNumber, "mixed", Run("a:Pc,Pa f*2 g*1")),
    Contrast(NobodyIsAsked, "hangs", Run("a:Pa late:P f*1")),
    Contrast(AskedTooEarly, "mixed", Run("a:Pc b:Pc f*2")),
    Contrast(SameEpoch, "mixed", Run("a:P? b:Pc f*2")),
    Contrast(MarkersFirst, "mixed", Run("a:Pc f*1 clock")),
    Contrast(DoneTooEarly, "hangs", Run("a:PQc f*1")),
    Contrast(OneDecisionForTwo, "decided twice", Run("a:PQc f*1 again:a")),
    Contrast(BlindPartition, "hangs", Run("a:Pc f*1 clock")),
]
WIDE = [
    Holds("everything", Run("a:PQc,Pa b:PQa,Qc f*3 g*2 clock", 1), frozenset({AGAIN, LATE, TIMED_OUT})),
]
"""For random walks: far beyond what can be searched."""
