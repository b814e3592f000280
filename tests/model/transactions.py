"""How a transaction is decided and told to its partitions, in every interleaving. `broker_shim/transactions` follows it.

Each step is one request to a log, through whoever leads it at that moment: a fenced leader's request changes nothing, so an
append is a swap of what its leader has seen last. `C` is the coordinator's log, folded to the newest record of one
transactional id; `P` and `Q` are partitions.

    the producer  asks, in this order: init, add, data, end; each through the coordinator or a partition, which looks
                  before it writes. A producer that sleeps between two requests is a zombie once its next life has begun.
    finishing     whoever coordinates, or believes that it does: reads the decision, puts a marker into each partition, then
                  writes that all of them stand. Two of them at once are a take-over, or requests that are delivered twice.
    the clock     at any time says that a transaction has taken too long.

    the reader    is shown the log up to the first transaction that is not decided, without what was aborted.

What must hold: a partition ends the records of a transaction with that transaction's decision and no other; what was acked
to the producer and committed is there; nobody is shown anything else; when everybody has come to an end, nothing hangs.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.search import Violation
from tests.model.store import OK, Get, Objects, Swap

COORDINATOR = "C"
EMPTY, ONGOING, COMMIT, ABORT, DONE = "empty", "ongoing", "commit", "abort", "done"
DECIDED = (COMMIT, ABORT)
Step = Generator[Any, Any, Any]


class Ending(NamedTuple):
    """Decided, and the next one has begun over it."""

    number: int
    how: str
    places: frozenset[str]


class Coordinated(NamedTuple):
    """The newest record of the transactional id. `number`: its transactions, counted (in the product: their start)."""

    version: int
    state: str
    epoch: int
    number: int
    places: frozenset[str]
    by: str = ""
    """Who wrote it: no two records are the same."""
    how: str = ""
    """Of one that is done: how it was decided."""
    ending: Ending | None = None
    """The transaction before this one, if not all of its partitions are known to have been told."""


class Data(NamedTuple):
    """A batch. `number` is what we know and the partition does not: which transaction its producer meant."""

    epoch: int
    number: int
    name: str


class Marker(NamedTuple):
    epoch: int
    number: int
    how: str


class Log(NamedTuple):
    version: int
    entries: tuple[Data | Marker, ...]

    @property
    def is_open(self) -> bool:
        return bool(self.entries) and isinstance(self.entries[-1], Data)

    @property
    def last_end(self) -> Marker | None:
        return next((each for each in reversed(self.entries) if isinstance(each, Marker)), None)

    @property
    def ends(self) -> int:
        return sum(isinstance(each, Marker) for each in self.entries)


NOBODY = Coordinated(1, EMPTY, 0, 0, frozenset())
START: Objects = {COORDINATOR: NOBODY, "P": Log(1, ()), "Q": Log(1, ())}


class Transactions:
    """The rules. A variant breaks one of them."""

    # ── the coordinator ──────────────────────────────────────────────────────────────────────────────────

    def changed(self, key: str, old: Any, new: Any) -> Step:
        """Write, if nobody else has. Whether it stands: doubt is settled by a look."""
        answer = yield Swap(key, old.version, new)
        if answer == OK:
            return True
        if answer == "412":
            found = yield Get(key)
            return found == new
        found = yield Get(key)
        while found.version == old.version:
            answer = yield Swap(key, old.version, new)
            found = yield Get(key)
        return found == new

    def init(self, who: str) -> Step:
        """A new life: whatever goes on is aborted first, with an epoch that fences it; then the epoch is raised."""
        while True:
            known = yield from self.looked()
            if known.state == ONGOING:
                fenced = known._replace(
                    version=known.version + 1, state=ABORT, epoch=self.fenced(known), by=who, ending=None
                )
                yield from self.changed(COORDINATOR, known, fenced)
                del fenced
            elif known.state not in DECIDED:
                begun = Coordinated(known.version + 1, EMPTY, known.epoch + 1, known.number, frozenset(), who)
                done = yield from self.changed(COORDINATOR, known, begun)
                if done:
                    return begun.epoch
                del begun, done
            del known

    def looked(self) -> Step:
        """The newest record. What is ending has ended before anybody is answered by it."""
        known = yield Get(COORDINATOR)
        told = None
        while known.ending is not None and known.ending != told:
            told = known.ending
            yield from self.tell(tuple(sorted(told.places)), Marker(known.epoch, told.number, told.how))
            known = yield Get(COORDINATOR)
        return known

    def tell(self, places: tuple[str, ...], marker: Marker) -> Step:
        """Afterwards the marker stands in all of them."""
        left = places
        while left:
            yield from self.mark(left[0], marker)
            left = left[1:]

    def fenced(self, known: Coordinated) -> int:
        return known.epoch + 1

    def add(self, who: str, epoch: int, places: frozenset[str]) -> Step:
        """The number of the transaction that they are part of now; None: fenced."""
        while True:
            known = yield from self.looked()
            if known.epoch != epoch:
                return None
            if known.state not in DECIDED:
                is_new = known.state != ONGOING
                begun = Coordinated(
                    known.version + 1,
                    ONGOING,
                    epoch,
                    known.number + is_new,
                    places if is_new else known.places | places,
                    who,
                )
                done = yield from self.changed(COORDINATOR, known, begun)
                if done:
                    return begun.number
                del is_new, begun, done
            del known

    def end(self, who: str, epoch: int, how: str) -> Step:
        """Whether it is decided so; None: fenced, or another decision stands."""
        while True:
            known = yield from self.looked()
            if known.epoch != epoch or known.state != ONGOING:
                return True if known.epoch == epoch and how in (known.state, known.how) else None
            done = yield from self.changed(
                COORDINATOR, known, known._replace(version=known.version + 1, state=how, by=who, ending=None)
            )
            if done:
                return True
            del known, done

    def clock(self) -> Actor:
        """The transaction has taken too long."""
        known = yield from self.looked()
        if known.state == ONGOING:
            yield Said("seen", ("timed out",))
            aborted = known._replace(
                version=known.version + 1, state=ABORT, epoch=self.fenced(known), by="clock", ending=None
            )
            yield from self.changed(COORDINATOR, known, aborted)

    def finish(self, rounds: int) -> Actor:
        """Carry decisions out. `rounds`: how often it looks for one."""
        while rounds:
            rounds -= 1
            known = yield Get(COORDINATOR)
            if known.ending is not None:
                yield from self.carry_out_ending(known, known.ending)
            elif known.state in DECIDED:
                yield from self.carry_out(known)
            del known

    def carry_out_ending(self, known: Coordinated, ending: Ending) -> Step:
        """The next transaction goes on meanwhile, or nobody has been told yet that it does."""
        yield Said("seen", ("ended beside the next",))
        yield from self.tell(tuple(sorted(ending.places)), Marker(known.epoch, ending.number, ending.how))
        yield from self.changed(
            COORDINATOR, known, known._replace(version=known.version + 1, ending=None, by="done")
        )

    def carry_out(self, known: Coordinated) -> Step:
        yield from self.tell(tuple(sorted(known.places)), Marker(known.epoch, known.number, known.state))
        yield from self.changed(COORDINATOR, known, self.done(known, known.state, "done"))

    def done(self, known: Coordinated, how: str, by: str) -> Coordinated:
        """The record that all markers stand."""
        return known._replace(version=known.version + 1, state=DONE, places=frozenset(), by=by, how=how)

    # ── partitions ───────────────────────────────────────────────────────────────────────────────────────

    def mark(self, place: str, marker: Marker) -> Step:
        """Until it stands there, or a later one does."""
        while True:
            log = yield Get(place)
            last = log.last_end
            if last is not None and self.is_stale(last, marker):
                yield Said("seen", ("a marker again",))
                return
            done = yield from self.changed(place, log, Log(log.version + 1, (*log.entries, marker)))
            if done:
                return
            del log, last, done

    def is_stale(self, last: Marker, marker: Marker) -> bool:
        return marker.epoch < last.epoch or marker.number <= last.number

    def data(self, place: str, data: Data) -> Step:
        """Whether the batch is stored."""
        log = yield Get(place)
        while True:
            last = log.last_end
            if last is not None and data.epoch < last.epoch:
                return False
            if not log.is_open:
                verified = yield from self.verified(place, data.epoch)
                if not verified:
                    yield Said("seen", ("too late",))
                    return False
                del verified
            # The answer came, and we go on: from here on the partition is as it was looked at, or all begins again.
            now = yield Get(place)
            if self.is_as_before(log, now):
                done = yield from self.changed(place, now, Log(now.version + 1, (*now.entries, data)))
                if done:
                    return True
                log = yield Get(place)
                del done
            else:
                log = now
            del now, last

    def is_as_before(self, log: Log, now: Log) -> bool:
        """Whether no marker has come since the coordinator was asked."""
        return log.ends == now.ends

    def verified(self, place: str, epoch: int) -> Step:
        known = yield from self.looked()
        return known.epoch == epoch and known.state == ONGOING and place in known.places

    # ── producers ────────────────────────────────────────────────────────────────────────────────────────

    def producer(self, who: str, plan: tuple[tuple[str, str], ...]) -> Actor:
        """`plan`: for each transaction its places and how it ends; "?" leaves it open."""
        epoch = yield from self.init(who)
        while plan:
            places, how = plan[0]
            plan = plan[1:]
            number = yield from self.add(who, epoch, frozenset(places))
            if number is None:
                return
            left = places
            while left:
                stored = yield from self.data(left[0], Data(epoch, number, who))
                if not stored:
                    return
                yield Said("acked", (left[0], Data(epoch, number, who)))
                left = left[1:]
                del stored
            if how == "?":
                return
            ended = yield from self.end(who, epoch, how)
            if not ended:
                return
            yield Said("ended", (number, how))
            del places, how, number, left, ended

    def late(self, place: str) -> Actor:
        """A batch of the first transaction that was under way for long: its producer has given it up."""
        stored = yield from self.data(place, Data(1, 1, "late"))
        if stored:
            yield Said("seen", ("a late batch, in time",))

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, place: str) -> Actor:
        """Who is shown only what is committed. What is known of transactions and what is read are two looks at a log that
        grows, through a broker that need not be its leader."""
        known = yield Get(place)
        found = yield Get(place)
        if len(found.entries) > len(known.entries):
            yield Said("seen", ("read behind what is known",))
        left = self.committed(known.entries, found.entries)
        del known, found
        while left:
            yield Said("shown", (place, left[0]))
            left = left[1:]

    def committed(
        self, known: tuple[Data | Marker, ...], found: tuple[Data | Marker, ...]
    ) -> tuple[Data, ...]:
        """Of what was found: what is known to be decided, and not aborted."""
        return decided(known[: len(found)], COMMIT)

    # ── requests that come late ──────────────────────────────────────────────────────────────────────────

    def ended_again(self, how: str) -> Actor:
        """A request to end the first transaction that was under way for long, or is sent twice."""
        ended = yield from self.end("again", 1, how)
        if ended:
            yield Said("ended", (1, how))


def decided(entries: tuple[Data | Marker, ...], how: str) -> tuple[Data, ...]:
    """The batches whose transaction ends so, in this log."""
    found: list[Data] = []
    waiting: list[Data] = []
    for each in entries:
        if isinstance(each, Data):
            waiting.append(each)
        else:
            found += waiting if each.how == how else []
            waiting = []
    return tuple(found)


class TransactionJudge:
    """Has heard: decisions by number, and what was acked. Decisions are read from the coordinator's log as they come."""

    def first(self) -> Any:
        return frozenset(), frozenset()

    def acked_end(self, told: Any) -> int:
        return 0

    def stored(self, told: Any, objects: Objects) -> tuple[Any, Violation | None]:
        decisions, acked = told
        known = objects[COORDINATOR]
        if known.state in DECIDED or known.how:
            decisions |= {(known.number, known.how or known.state)}
            if len({how for number, how in decisions if number == known.number}) > 1:
                return (decisions, acked), ("decided twice", f"{known.number} both ways")
        told = (decisions, acked)
        for place in ("P", "Q"):
            open_batches: list[Data] = []
            for each in objects[place].entries:
                if isinstance(each, Data):
                    open_batches.append(each)
                    continue
                for data in open_batches:
                    if (data.number, each.how) not in decisions:
                        return told, (
                            "mixed",
                            f"{data} is ended in {place} by {each}, decided: {sorted(decisions)}",
                        )
                open_batches = []
        return told, None

    def heard(self, told: Any, said: Said) -> tuple[Any, Violation | None]:
        decisions, acked = told
        if said.what == "acked":
            return (decisions, acked | {said.args}), None
        if said.what == "ended" and said.args not in decisions:
            return told, ("denied", f"{said.args} is not what was decided: {sorted(decisions)}")
        if said.what == "shown":
            place, data = said.args
            if (data.number, COMMIT) not in decisions:
                return told, ("dirty", f"{data} of {place} was shown, decided: {sorted(decisions)}")
        return told, None


def at_the_end(objects: Objects, told: Any) -> Violation | None:
    """When everybody has ended and somebody has carried out what is decided."""
    _, acked = told
    known = objects[COORDINATOR]
    if known.state in DECIDED or known.ending is not None:
        return None  # nobody was left to carry it out
    for place, data in sorted(acked):
        entries = objects[place].entries
        if data not in entries:
            return ("lost", f"{data} was acked in {place}")
        ends = [each for each in entries[entries.index(data) :] if isinstance(each, Marker)]
        if not ends and not (known.number == data.number and known.state == ONGOING):
            return ("hangs", f"{data} is open in {place}, and {known} will not end it")
    for place in ("P", "Q"):
        last = objects[place].entries[-1:]
        if (
            last
            and isinstance(last[0], Data)
            and not (known.state == ONGOING and known.number == last[0].number and place in known.places)
        ):
            return ("hangs", f"{last[0]} is open in {place}, and {known} will not end it")
    return None
