"""Who meets whom in the model of transactions, and each of its rules, broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.model.actors import Actor
from tests.model.harness import Contrast, Holds
from tests.model.search import Outcome, Violation, World
from tests.model.store import Get
from tests.model.together import IDLE, Change, Together
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
    at_the_end,
    decided,
)

HOW = {"c": COMMIT, "a": ABORT, "?": "?", "!": "!"}


class Run(NamedTuple):
    """`a:PQc,Pa`: producer a, which commits a transaction in P and Q and aborts one in P (`?`: leaves it open). `f*2`:
    somebody who carries out two decisions. `clock`: a time-out. `late:P`: a batch of the first transaction that was under
    way for long; `again:a`: a request to end it; `twice:a`: one that comes after another. `A:Pc`: a producer in the short
    cut; `a~Pc,Pc`: one whose coordinator begins the next transaction while it puts the markers (`!`: it dies then);
    `taker`: the next one who coordinates; `r:P`: a reader of P."""

    words: str
    faults: int = 0
    kinds: tuple[str, ...] = ("lost", "412")

    def world(self, rules: type[Transactions] = Together) -> World:
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
        if isinstance(rules, Together):
            if word == "taker":
                return rules.taker
            if word[0].isupper() or "~" in word:
                who, plan = word.replace("~", ":").split(":")
                return partial(rules.across if "~" in word else rules.together, who, _plan(plan))
        if "*" in word:
            return partial(rules.finish, int(word.split("*")[1]))
        who, plan = word.split(":")
        if who == "r":
            return partial(rules.reader, plan)
        if who == "late":
            return partial(rules.late, plan)
        if who == "again":
            return partial(rules.ended_again, HOW[plan])
        if who == "twice":
            assert isinstance(rules, Together)
            return partial(rules.ended_twice, HOW[plan])
        return partial(rules.producer, who, _plan(plan))


def _plan(words: str) -> tuple[tuple[str, str], ...]:
    return tuple((each[:-1], HOW[each[-1]]) for each in words.split(","))


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
        yield from self.changed(COORDINATOR, known, self.done(known, known.state, "done"))


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


class EndedFromMemory(Transactions):
    """A coordinator that was replaced answers by what it knows: the transaction before this one ended so, too."""

    def end(self, who: str, epoch: int, how: str) -> Step:
        known = yield Get(COORDINATOR)
        if known.number > 1:
            return True
        ended = yield from super().end(who, epoch, how)
        return ended


class ReadBehindTheLook(Transactions):
    """What is read is shown up to its end, by what was known before it was read."""

    def committed(
        self, known: tuple[Data | Marker, ...], found: tuple[Data | Marker, ...]
    ) -> tuple[Data, ...]:
        behind = (each for each in found[len(known) :] if isinstance(each, Data))
        return (*decided(known, COMMIT), *behind)


class AbortedIsShown(Transactions):
    """What is decided is shown, however."""

    def committed(
        self, known: tuple[Data | Marker, ...], found: tuple[Data | Marker, ...]
    ) -> tuple[Data, ...]:
        return decided(known, COMMIT) + decided(known, ABORT)


class DecidedApart(Together):
    """The record that a transaction is done is stored first, and its markers then."""

    def told_at_once(self, changes: tuple[Change, ...]) -> Step:
        left = changes
        while left:
            key, old, new = left[0]
            done = yield from self.changed(key, old, new)
            if not done:
                return False
            left = left[1:]
            del key, old, new, done
        return True


class MarkersApart(Together):
    """The markers are stored together, and the decision then."""

    def told_at_once(self, changes: tuple[Change, ...]) -> Step:
        told = yield from self.all_changed(changes[1:])
        if not told:
            return False
        done = yield from self.changed(*changes[0])
        return done


class BatchAlone(Together):
    """The first batch is stored, and that its partition is part of the transaction is in memory."""

    def both(self, base: Coordinated, begun: Coordinated, place: str, log: Log, data: Data) -> Step:
        stored = yield from self.changed(place, log, Log(log.version + 1, (*log.entries, data)))
        if stored:
            yield from self.changed(COORDINATOR, base, begun)
        return stored


class BegunInMemory(Together):
    """What a coordinator has in memory counts after it was replaced: it writes over what is there."""

    def both(self, base: Coordinated, begun: Coordinated, place: str, log: Log, data: Data) -> Step:
        now = yield Get(COORDINATOR)
        stored = yield from self.all_changed(
            (
                (COORDINATOR, now, begun._replace(version=now.version + 1)),
                (place, log, Log(log.version + 1, (*log.entries, data))),
            )
        )
        return stored


class AbortsAnything(Together):
    """A producer that aborts when nothing goes on is told that it is done: what it means may be committed."""

    def end(self, who: str, epoch: int, how: str) -> Step:
        ended = yield from super().end(who, epoch, how)
        if ended is None and how == ABORT:
            known = yield Get(COORDINATOR)
            return known.epoch == epoch and known.state in IDLE
        return ended


class NotToldYet(Together):
    """The producer goes on when one partition was told how its transaction before ended."""

    def told_before(self, decided: Coordinated) -> Step:
        place = min(decided.places)
        yield from self.mark(place, Marker(decided.epoch, decided.number, decided.state))


class EndingForgotten(Together):
    """The next transaction is recorded without what is still to be told of the one before."""

    def begun_over(self, known: Coordinated, places: frozenset[str], who: str) -> Coordinated:
        return super().begun_over(known, places, who)._replace(ending=None)


class EndedOver(Together):
    """What goes on is ended, or times out, while the one before is still ending."""

    def looked(self) -> Step:
        known = yield Get(COORDINATOR)
        return known


def judged(world: World, found: Outcome) -> Violation | None:
    """What went wrong on the way, or at an end."""
    if found.kind is not None:
        return found.kind, str(found)
    ends = (at_the_end(world.objects(state), world.told(state)) for state in found.over)
    return next((each for each in ends if each is not None), None)


AGAIN, LATE, TIMED_OUT = "a marker again", "too late", "timed out"
BEHIND = "read behind what is known"
BESIDE = "ended beside the next"
REPLACED, LOST, TWO_STEPS = "replaced", "begun, and lost", "in two steps after all"
RULES = [
    Holds("two transactions, two coordinators", Run("a:Pc,Pa f*2 g*1"), frozenset({AGAIN})),
    Holds("two partitions, two coordinators", Run("a:PQc f*1 g*1"), frozenset({AGAIN})),
    Holds("a new life", Run("a:Pc b:Pc f*2"), frozenset({LATE})),
    Holds("a new life, and two coordinators", Run("a:P? b:Pc f*2 g*1"), frozenset({AGAIN, LATE})),
    Holds("a time-out", Run("a:Pc,Pc f*2 clock"), frozenset({TIMED_OUT, LATE})),
    Holds("a late batch", Run("a:Pa late:P f*1 g*1"), frozenset({LATE, "a late batch, in time"})),
    Holds("ended twice, and the other way", Run("a:PQc again:c again:a f*1 g*1"), frozenset({AGAIN})),
    Holds("lost answers", Run("a:Pc f*1 g*1", 1), frozenset({AGAIN})),
    Holds("a reader", Run("a:Pc,Pa r:P f*2 clock"), frozenset({BEHIND})),
    Holds("together", Run("A:PQc,PQa f*1"), frozenset()),
    Holds("together, and a reader", Run("A:PQc,Pa r:P f*1 taker"), frozenset({BEHIND, REPLACED, LOST})),
    Holds("together, and a time-out", Run("A:PQc,Pc f*1 clock"), frozenset({REPLACED, TIMED_OUT})),
    Holds("together, replaced", Run("A:PQc,Pa taker f*1"), frozenset({REPLACED, LOST, TWO_STEPS})),
    Holds("together, and a new life", Run("A:Pc B:PQc f*1"), frozenset({REPLACED})),
    Holds("together, and a new life elsewhere", Run("A:P? b:Pc f*2 taker"), frozenset({REPLACED})),
    Holds("together, and a late batch", Run("A:PQa late:P f*1 taker"), frozenset({LATE})),
    Holds("together, ended twice", Run("A:PQc twice:c twice:a f*1"), frozenset({"ended twice"})),
    Holds("together, lost answers", Run("A:PQc,Pa f*1 taker", 1), frozenset({REPLACED, TWO_STEPS})),
    Holds("across, one over the other", Run("a~Pc,PQc f*1 clock"), frozenset({AGAIN, BESIDE})),
    Holds("across, and two coordinators", Run("a~PQc,Pa f*2 g*1"), frozenset({AGAIN, BESIDE})),
    Holds("across, lost answers", Run("a~Pc,Pa f*1", 1), frozenset({AGAIN, BESIDE})),
    Holds("across, killed between", Run("a~PQc,P! f*3 clock"), frozenset({AGAIN, BESIDE, TIMED_OUT})),
    Holds("across, killed, and a new life", Run("a~PQa,P! b:PQc f*3"), frozenset({BESIDE})),
    Holds("across, and a new life beside it", Run("a~PQc,Pc b:Pc f*2"), frozenset({AGAIN, BESIDE})),
    Holds("across, a new life, two coordinators", Run("a~PQc,P! b:P? f*2 g*1"), frozenset({AGAIN, BESIDE})),
    Holds("across, and a late batch", Run("a~PQc,Qc late:P f*1"), frozenset({LATE, BESIDE})),
    Holds("across, and a reader", Run("a~Pa,Pc r:P f*1 taker"), frozenset({BEHIND, BESIDE})),
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
    Contrast(EndedFromMemory, "denied", Run("a:Pc,Pc f*2")),
    Contrast(ReadBehindTheLook, "dirty", Run("a:Pa r:P f*1")),
    Contrast(AbortedIsShown, "dirty", Run("a:Pc,Pa r:P f*2")),
    Contrast(DecidedApart, "hangs", Run("A:PQc late:P f*1")),
    Contrast(MarkersApart, "mixed", Run("A:PQc clock f*1")),
    Contrast(BatchAlone, "hangs", Run("A:Pc taker f*1")),
    Contrast(BegunInMemory, "decided twice", Run("A:PQc clock f*1")),
    Contrast(AbortsAnything, "denied", Run("A:Pc twice:a f*1")),
    Contrast(NotToldYet, "mixed", Run("a~PQc,Qa f*1")),
    Contrast(EndingForgotten, "hangs", Run("a~PQc,P! f*2")),
    Contrast(EndedOver, "mixed", Run("a~PQc,P! f*2 clock")),
    Contrast(EndedOver, "mixed", Run("a~PQc,P! f*2 b:P?")),
]
WIDE = [
    Holds(
        "across", Run("a~PQc,Pa,Qc b~PQa,Qc f*3 g*2 clock taker", 1), frozenset({AGAIN, BESIDE, TIMED_OUT})
    ),
    Holds(
        "together", Run("A:PQc,Pa B:PQa,Qc f*3 g*2 clock taker", 1), frozenset({AGAIN, REPLACED, TIMED_OUT})
    ),
    Holds("everything", Run("a:PQc,Pa b:PQa,Qc f*3 g*2 clock", 1), frozenset({AGAIN, LATE, TIMED_OUT})),
]
"""For random walks: far beyond what can be searched."""
