"""A transfer that nobody can read any more: what is done about the partitions that may have been in it.

What differs from `transfers`, whose rules hold otherwise:

* A place that cannot be read leaves every claim *in doubt* that nothing is known of afterwards: its transfer may have been
  there. Nobody takes such a claim over or goes on with it, and a reader is told instead of believing in an end.
* What counts behind such a place is told by links. Data whose maker knew what was there counts, and so do those that it
  names; data that names the entry right before goes around it, so nothing counted there.
* A part ends the doubt: its owner is still there. So does a seal or a transfer that names the claim, because nobody puts one
  for a claim that is in doubt to him: a fence in the partition's own chain would stand beside the one that was lost.
* A claim in doubt is looked for in all lanes: the next one of the partition, at the next place of its chain, stands if a
  lane holds a part of it, or says where that one went. Nobody puts a part before his claim stands.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import Actor, Said
from tests.model.lanes import DATA, SEAL, Entry, Own, Place, Step, Writer
from tests.model.places import JUNK, STALE, Known, Segment, Stand, Tail, standing
from tests.model.store import Put, Snapshot
from tests.model.transfers import TRANSFER, Transfers

LOST_ID = ("lost",)


class LostTransfers(Transfers):
    """The rules that hold."""

    def rot(self, who: str, rounds: int) -> Actor:
        """Damages a transfer. (What it was stays known to the judge.)"""
        while rounds:
            objects = yield Snapshot()
            found = tuple(
                sorted((place, entry) for place, entry in objects if getattr(entry, "kind", "") == TRANSFER)
            )
            del objects
            if found:
                yield Put(found[0][0], found[0][1]._replace(kind=JUNK))
                yield Said("seen", ("a transfer is damaged",))
            del found
            rounds -= 1

    def create(self, place: Place, entry: Any) -> Step:
        found = yield from super().create(place, entry)
        return found._replace(id=LOST_ID) if getattr(found, "kind", "") == JUNK else found

    def linked(self, who: str, at: Writer, wanted: list[Any], seals: frozenset[Any]) -> tuple[Writer, Any]:
        known = at.seq
        at, ups = super().linked(who, at, wanted, seals)
        return at, tuple(up._replace(entry=up.entry._replace(known=known)) for up in ups)

    def signed(self, entry: Entry, at: Stand) -> Entry | None:
        sure = frozenset(key for key in entry.seals if self.may_end(at, key))
        if entry.kind == SEAL and not sure:
            return None
        return entry._replace(prev=at.edge, seals=sure)

    def may_end(self, at: Stand, key: tuple[str, int]) -> bool:
        return not self.in_doubt(at, Tail(key[0], epoch=key[1]))

    # A lane

    def behind(self, at: Any, entry: Entry) -> Any:
        if entry.kind == JUNK:
            claims = tuple(c if c.left else c._replace(doubt=True) for c in at.claims)
            return at._replace(
                next=at.next + 1, claims=claims, gone=at.next, waiting=at.waiting or (at.edge, ())
            )
        if at.waiting is not None:
            return self.settled(at, entry)
        return self.taken(at, entry)

    def taken(self, at: Stand, entry: Entry) -> Stand:
        """One that is not behind a place of which nothing is known."""
        valid = self.is_valid(entry, at.edge)
        new: Stand = super().behind(at, entry)
        sure = {(batch.part, batch.claim) for batch in entry.batches if valid} | entry.seals
        claims = tuple(c._replace(doubt=c.doubt and (c.part, c.claim) not in sure) for c in new.claims)
        return new._replace(claims=claims, gone=at.gone)

    def settled(self, at: Stand, entry: Entry) -> Stand:
        """What counts behind a place that is lost, if this one tells."""
        assert at.waiting is not None
        edge, waiting = at.waiting
        left, links, prev = {one.id: (n, one) for n, one in waiting}, [], entry.prev
        while prev in left:
            links.append(left.pop(prev))
            prev = links[-1][1].prev
        if entry.kind == DATA and prev == edge:
            claims = tuple(c._replace(doubt=False) for c in at.claims)
            at = at._replace(claims=claims, gone=-1)
        elif entry.kind == DATA and entry.known <= at.gone:  # its maker did not know what was there
            return at._replace(next=at.next + 1, waiting=(edge, (*waiting, (at.next, entry))))
        here = at.next
        for n, one in reversed(links):
            at = self.taken(at._replace(next=n, edge=one.prev, waiting=None), one)
        edge = entry.prev if entry.kind == DATA else at.edge
        return self.taken(at._replace(next=here, edge=edge, waiting=None), entry)

    # Split

    def plan(self, objects: Any, lane: str) -> Any:
        """Nobody says how far a lane was split, or writes down what it holds, who could not read it: the damage would stay
        when the object is restored."""
        at, _ = standing(self, objects, lane, set())
        return None if at.gone >= 0 and self.waits() else super().plan(objects, lane)

    def waits(self) -> bool:
        return True

    # Claims

    def in_doubt(self, at: Stand, tail: Tail) -> bool:
        known = next((c for c in at.claims if (c.part, c.claim) == (tail.part, tail.epoch)), None)
        return at.gone >= tail.since if known is None else known.doubt

    def looked_for(self, tail: Tail) -> Step:
        objects = yield Snapshot()
        lanes = tuple(
            sorted({place.chain for place, what in objects if isinstance(what, Entry)} - {tail.lane})
        )
        del objects
        while lanes:
            at = yield from self.read_lane(lanes[0])
            known = at.claim(tail.part, tail.epoch + 1)
            if known.seq > tail.seq + 1:
                return STALE
            if self.proves(known, tail):
                base = known.parts[0][1].base if known.parts else known.moved.base
                yield Said("seen", ("a lane tells of a lost transfer",))
                return Segment((lanes[0], tail.seq), tail.epoch + 1, base, (), base, lanes[0], 0)
            lanes = lanes[1:]
            del at, known
        return None

    def proves(self, known: Known, tail: Tail) -> bool:
        """Whether the claim stands, behind the tail."""
        if known.parts:
            return known.parts[0][1].seq == tail.seq + 1
        return known.moved is not None and known.moved.id[-1] == tail.seq + 1

    def may_take(self, tail: Tail) -> bool:
        return not tail.doubt

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        sure = tuple(one for one in wanted if self.may_take(one))
        if len(sure) < len(wanted):
            yield Said("seen", ("a claim in doubt is left alone",))
        done = yield from super().ended(who, at, sure)
        return done

    def goes_on(self, at: Writer, tail: Tail) -> bool:
        return super().goes_on(at, tail) and not tail.doubt

    def behind_seal(self, tails: tuple[Tail, ...], end: Stand) -> tuple[Tail, ...]:
        sure = tuple(one for one in tails if self.may_take(self.looked_at(one, end)))
        return super().behind_seal(sure, end)

    def looked_at(self, tail: Tail, end: Stand) -> Tail:
        return tail._replace(doubt=self.in_doubt(end, tail))

    def moving(
        self, who: str, at: Writer, wanted: tuple[Tail, ...], end: Stand
    ) -> tuple[Entry, tuple[Own, ...]]:
        sure = tuple(one for one in wanted if self.may_take(self.looked_at(one, end)))
        return super().moving(who, at, sure, end)

    def carried_on(self, end: Stand) -> tuple[Own, ...]:
        return super().carried_on(end._replace(claims=tuple(c for c in end.claims if self.is_sure(c))))

    def is_sure(self, known: Known) -> bool:
        return not known.doubt
