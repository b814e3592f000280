"""The short cut for a transaction whose coordinator and partitions commit through one lane of one broker.

    add     is answered from memory: nothing is written yet
    data    the first batch of a transaction in a partition is stored together with the record that the partition is part of
            it: both or none
    end     the record that the transaction is done, with its decision, is stored together with the markers of all of its
            partitions: all or none. What cannot be stored together is decided in two steps, as in `transactions`

A coordinator that was replaced cannot do any of that: its own log is part of each of these appends. What it had in memory
is gone then. The next one does not know a transaction that was begun so: a batch of it is refused, and the coordinator
writes that what was begun is aborted, so that its producer, which asks for that next, can be told so.

Across brokers the markers are sent by whoever coordinates. The next transaction of the same producer is recorded meanwhile,
with what is still to be told; the producer hears of it when both are done.
"""

from __future__ import annotations

from tests.model.actors import Actor, Said
from tests.model.store import OK, Get, SwapAll
from tests.model.store import Swap as One
from tests.model.transactions import (
    ABORT,
    COORDINATOR,
    DECIDED,
    DONE,
    EMPTY,
    ONGOING,
    Coordinated,
    Data,
    Ending,
    Log,
    Marker,
    Step,
    Transactions,
)

Change = tuple[str, Coordinated | Log, Coordinated | Log]
IDLE = (EMPTY, DONE)


class Together(Transactions):
    """The rules. A variant breaks one of them."""

    def all_changed(self, changes: tuple[Change, ...]) -> Step:
        """`changed`, of several logs: whether all of them stand. One that does speaks for all."""
        swaps = SwapAll(tuple(One(key, old.version, new) for key, old, new in changes))
        key, old, new = changes[0]
        answer = yield swaps
        if answer == OK:
            return True
        found = yield Get(key)
        while answer != "412" and found.version == old.version:
            answer = yield swaps
            found = yield Get(key)
        return found == new

    def begun(self, base: Coordinated, places: frozenset[str], who: str) -> Coordinated:
        """What is in memory: the transaction that goes on, with these partitions, or the next one."""
        is_new = base.state != ONGOING
        places = places if is_new else base.places | places
        return Coordinated(base.version + 1, ONGOING, base.epoch, base.number + is_new, places, who)

    def first_batch(self, base: Coordinated, begun: Coordinated, place: str, data: Data) -> Step:
        """The batch, and that its partition is part of the transaction. None: refused, nothing of it is stored."""
        while True:
            log = yield Get(place)
            last = log.last_end
            if last is not None and data.epoch < last.epoch:
                return None
            stored = yield from self.both(base, begun, place, log, data)
            if stored:
                return begun
            now = yield Get(COORDINATOR)
            if now != base:
                yield Said("seen", ("replaced",))
                yield from self.lost(now, data.epoch)
                return None
            del log, last, stored, now

    def both(self, base: Coordinated, begun: Coordinated, place: str, log: Log, data: Data) -> Step:
        stored = yield from self.all_changed(
            ((COORDINATOR, base, begun), (place, log, Log(log.version + 1, (*log.entries, data))))
        )
        return stored

    def lost(self, now: Coordinated, epoch: int) -> Step:
        """A batch of a transaction of which nothing is known, by a producer that nobody has fenced: it was begun in the
        memory of a coordinator that is gone. Nothing of it is anywhere."""
        if now.epoch == epoch and now.state in IDLE:
            yield Said("seen", ("begun, and lost",))
            aborted = self.done(now._replace(number=now.number + 1), ABORT, "lost")
            yield from self.changed(COORDINATOR, now, aborted)

    def end_together(self, who: str, epoch: int, how: str) -> Step:
        """As `end`."""
        known = yield Get(COORDINATOR)
        if known.epoch == epoch and known.state == ONGOING:
            left = tuple(sorted(known.places))
            changes: tuple[Change, ...] = ((COORDINATOR, known, self.done(known, how, who)),)
            while left:
                log = yield Get(left[0])
                marker = Marker(epoch, known.number, how)
                if log.last_end is None or not self.is_stale(log.last_end, marker):
                    changes = (*changes, (left[0], log, Log(log.version + 1, (*log.entries, marker))))
                left = left[1:]
                del log, marker
            done = yield from self.told_at_once(changes)
            if done:
                return True
            yield Said("seen", ("in two steps after all",))
            del left, changes, done
        del known
        ended = yield from self.end(who, epoch, how)
        return ended

    def told_at_once(self, changes: tuple[Change, ...]) -> Step:
        done = yield from self.all_changed(changes)
        return done

    def together(self, who: str, plan: tuple[tuple[str, str], ...]) -> Actor:
        """A producer all of whose partitions, and whose coordinator, are in one lane. `plan` as for `producer`."""
        epoch = yield from self.init(who)
        while plan:
            places, how = plan[0]
            plan = plan[1:]
            base = yield Get(COORDINATOR)
            if base.epoch != epoch or base.state in DECIDED:
                return
            number, left = base.number + 1, places
            while left:
                begun = self.begun(base, frozenset(places), who)
                data = Data(epoch, number, who)
                base = yield from self.first_batch(base, begun, left[0], data)
                if base is None:
                    ended = yield from self.end(who, epoch, ABORT)
                    if ended:
                        yield Said("ended", (number, ABORT))
                    return
                yield Said("acked", (left[0], data))
                left = left[1:]
                del begun, data
            if how == "?":
                return
            ended = yield from self.end_together(who, epoch, how)
            if not ended:
                return
            yield Said("ended", (number, how))
            del places, how, base, number, left, ended

    def taker(self) -> Actor:
        """Another broker coordinates from now on: it has fenced the log, and what was in memory only is gone."""
        known = yield Get(COORDINATOR)
        yield from self.changed(COORDINATOR, known, known._replace(version=known.version + 1, by="taker"))

    def across(self, who: str, plan: tuple[tuple[str, str], ...]) -> Actor:
        """A producer in two steps, and its coordinator, which begins the next transaction while the markers of the one
        before are on their way. The record of it says so, and is not written again when they stand. "!" leaves it at that:
        the coordinator dies before it tells anybody."""
        epoch = yield from self.init(who)
        decided: Coordinated | None = None
        while plan:
            places, how = plan[0]
            plan = plan[1:]
            known = yield Get(COORDINATOR)
            if known.epoch != epoch or (known.state in DECIDED and known != decided):
                return
            begun = self.begun_over(known, frozenset(places), who)
            done = yield from self.changed(COORDINATOR, known, begun)
            if not done or how == "!":
                return
            if decided is not None:
                yield from self.told_before(decided)
            left, number = places, begun.number
            del known, done
            while left:
                stored = yield from self.data(left[0], Data(epoch, number, who))
                if not stored:
                    return
                yield Said("acked", (left[0], Data(epoch, number, who)))
                left = left[1:]
                del stored
            done = yield from self.end(who, epoch, how)
            if not done:
                return
            yield Said("ended", (number, how))
            decided = yield Get(COORDINATOR)
            if decided.number != number or decided.state != how:
                return
            del places, how, begun, left, number, done
        if decided is not None:
            yield from self.told_before(decided)

    def begun_over(self, known: Coordinated, places: frozenset[str], who: str) -> Coordinated:
        ending = Ending(known.number, known.state, known.places) if known.state in DECIDED else None
        return Coordinated(
            known.version + 1, ONGOING, known.epoch, known.number + 1, places, who, ending=ending
        )

    def told_before(self, decided: Coordinated) -> Step:
        """Before the producer is told that the next transaction goes on."""
        yield from self.tell(
            tuple(sorted(decided.places)), Marker(decided.epoch, decided.number, decided.state)
        )

    def ended_twice(self, how: str) -> Actor:
        """A request to end the first transaction that comes after one that was heard."""
        known = yield Get(COORDINATOR)
        if known.number == 1 and known.state != ONGOING:
            yield Said("seen", ("ended twice",))
            yield from self.ended_again(how)
