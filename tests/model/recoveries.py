"""A process that comes back with a WAL: what that kept goes into its fence, and where it kept less than readers may have
seen there are two fences.

What differs from `transfers`, whose rules hold otherwise:

* `w` and `v` have a WAL. Their local records are shown at once, below what is reserved; what was sent of them may arrive
  after their death. The next life, which adopts the lane if that has a name, ends the claim there, and puts what the WAL
  kept into a fence in the partition's own chain, at its old offsets. If another has been there since, it is kept aside, and
  never stored.
* The records of a fence end where the WAL ended, and readers may have seen more: what was reserved. So the first fence
  reserves that and leads nowhere, and the second one, empty, says where the records go on. Only that one leads into the
  lane: both are in the partition's chain, so who takes over between them stands where the second wants to be.
* A life may die at any of that, and the next one begins again with the same WAL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.lanes import Batch, Entry, Own, Place, Step, Upload, Writer
from tests.model.lanes_judge import Log
from tests.model.places import ADOPT, PlaceJudge, Segment, Tail, after, batch_of
from tests.model.search import Violation
from tests.model.store import Create, Objects
from tests.model.transfers import Transfers

WITH_WAL = frozenset("wv")


class Kept(NamedTuple):
    """A record in a WAL."""

    epoch: int
    offset: int
    record: str


Wal = tuple[Kept, ...]


class Recoveries(Transfers):
    """The rules that hold. There is one partition, p. `named`: the lanes of those with a WAL have names."""

    def __init__(self, ahead: int = 3, named: bool = False, **rules: Any) -> None:
        super().__init__(ahead=ahead, parts=("p",), **rules)
        self.named = named

    def owned(self, who: str, lane: str) -> tuple[tuple[Own, ...], dict[Any, Any]]:
        """Local records may be shown from the start."""
        _, stands = super().owned(who, lane)
        for key, what in stands.items():
            if isinstance(what, Segment):
                stands[key] = what._replace(reserved=self.ahead)
            else:
                moves = tuple(
                    (p, claim, fence._replace(reserved=self.ahead)) for p, claim, fence in what.moves
                )
                stands[key] = what._replace(moves=moves)
        return (Own("p", 1, 0, self.ahead, seq=1),), stands

    def process(self, who: str, lane: str, script: str, own: tuple[Own, ...] = ()) -> Actor:
        if who in WITH_WAL:
            return self.with_wal(who, lane, script, own)
        return super().process(who, lane, script, own)

    def with_wal(self, who: str, lane: str, script: str, own: tuple[Own, ...]) -> Actor:
        """`l`: a local record; `s`: one that is shown, and that the WAL loses (a power cut); `u`: a local record, and all
        that waits is sent, and nobody is told what became of it. `1`: a flush. `r`: dies, and the next life opens p; `f`:
        and dies when its first fence is sent."""
        at = Writer(lane, own=own)
        wal: Wal = ()
        due: tuple[str, ...] = ()
        while script and not at.stopped:
            word, script = script[0], script[1:]
            if word in "rf":
                at, wal = yield from self.next_life(who, at, wal, word == "f")
                due = ()
            elif at.own and word in "lsu":
                at, kept, up = self.local(who, at, due, word == "u")
                yield Said("shown", tuple(("p", one.offset, one.record) for one in kept))
                due = () if up is not None else (*due, *(one.record for one in kept))
                wal += kept if word != "s" else ()
                if up is not None:
                    yield Create(Place(at.lane, up.seq), up.entry)
                del kept, up
            elif at.own:
                at = yield from self.flush(who, at, int(word), False)
            del word

    def local(
        self, who: str, at: Writer, due: tuple[str, ...], sent: bool
    ) -> tuple[Writer, Wal, Upload | None]:
        """Nothing, if all that is reserved was used up."""
        own = at.own[0]
        if own.next >= own.reserved:
            return at, (), None
        one = Kept(own.claim, own.next, f"{who}{at.made}l")
        at = at._replace(made=at.made + 1)
        if not sent:
            return at._replace(own=(own._replace(next=own.next + 1),)), (one,), None
        before = at._replace(own=(own._replace(next=own.next - len(due)),))
        at, ups = self.linked(who, before, [{"p": (*due, one.record)}], frozenset())
        batch: Batch = ups[0].entry.batches[0]
        own = own._replace(next=batch.end, reserved=min(own.reserved, batch.reserved), seq=batch.seq + 1)
        at = at._replace(own=(own,), seq=at.seq + 1, prev=ups[0].entry.id)
        return at, (one,), ups[0]

    # The next life

    def next_life(self, who: str, at: Writer, wal: Wal, dies: bool) -> Step:
        """In the same lane if that has a name, else in one of its own."""
        at = Writer(at.lane, made=at.made, ids=at.ids + 1)
        name = f"{who}{at.ids}"
        if self.named:
            end = yield from self.end_lane(at.lane, Entry(ADOPT, (name, "adopt")))
            at = at._replace(seq=end.next, prev=end.edge)
            del end
        else:
            at = at._replace(lane=name)
        at, wal = yield from self.open(name, at, wal, dies)
        return at, wal

    def read_back(self, wal: Wal, life: int) -> Wal:
        """It is there until all of it stands."""
        return wal

    def open(self, name: str, at: Writer, wal: Wal, dies: bool) -> Step:
        """Who loses a place begins again; here a few times. Behind our own first fence nobody reads anything: we go on from
        what we know."""
        tries, seen = 4, None
        while tries:
            tries -= 1
            if seen is None:
                _, tail, got = yield from self.load_chain("p")
                del _
            else:
                tail, got = seen
            seen = None
            replay, aside = self.judged(self.read_back(wal, at.ids), tail, got)
            if aside:
                yield Said("seen", ("kept aside",))
                yield Said("denied", tuple(one.record for one in aside))
                wal = tuple(one for one in wal if one not in aside)
            if replay and replay[0].offset != tail.end:
                yield Said("damage", (replay, tail))
            del aside
            own: tuple[Own, ...] = ()
            if not replay and self.goes_on(at, tail):
                yield Said("seen", ("a claim of the own lane goes on",))
                own = (self.resumed(tail),)
            elif not replay and tail.open:
                at = yield from self.transfer(name, at, (tail,))
                own = at.own
            else:
                is_new = False
                if tail.open:
                    is_new = yield from self.is_new(name, tail)
                if is_new:
                    yield Said("seen", ("more was found by the seal",))
                else:
                    own, seen = yield from self.fenced(name, at, tail, got, replay, dies)
                    if dies:
                        return at, wal
                del is_new
            if own:
                yield Said("recovered", wal)
                return at._replace(own=own), ()
            del tail, got, replay, own
        return at, wal

    def fenced(self, name: str, at: Writer, tail: Tail, got: Any, replay: Wal, dies: bool) -> Step:
        """What is ours then; and behind the first of two fences where we go on."""
        fence, is_last = self.fence(name, at, tail, replay)
        if dies:
            yield Create(Place("p", tail.seq), fence)
            return (), None
        found = yield from self.create(Place("p", tail.seq), fence)
        if not self.is_ours(found, fence):
            yield Said("seen", ("another's claim",))
            return (), None
        end = fence.base + len(fence.records)
        if is_last:
            return (Own("p", fence.epoch, end, fence.reserved, tail.seq + 1),), None
        yield Said("seen", ("the first of two fences stands",))
        return (), (after(tail, fence), got + batch_of(tail, fence))

    def judged(self, wal: Wal, tail: Tail, got: tuple[Batch, ...]) -> tuple[Wal, Wal]:
        """What is stored again, and what is kept aside: another has been there since."""
        there = {batch.base + n for batch in got for n in range(len(batch.records))}
        replay, aside = [], []
        for one in wal:
            if one.offset < tail.end:
                aside += [] if one.offset in there else [one]
            elif self.is_of_another(one, tail):
                aside.append(one)
            else:
                replay.append(one)
        return tuple(replay), tuple(aside)

    def is_of_another(self, one: Kept, tail: Tail) -> bool:
        return one.epoch != tail.epoch

    def is_new(self, name: str, tail: Tail) -> Step:
        """End the claim. Whether there is more to judge then: what was under way, or another's transfer."""
        tails = yield from self.ended(name, None, (tail,))
        return tails != (tail,)

    def fence(self, name: str, at: Writer, tail: Tail, replay: Wal) -> tuple[Segment, bool]:
        """The next one, and whether it is the last."""
        start = self.goes_on_at(tail)
        base = tail.end if replay else start
        end = base + len(replay)
        is_last = end >= start
        reserved = end + self.ahead if is_last else self.first_reserves(start, end)
        lane = at.lane if self.leads(is_last) else ""
        records = tuple(one.record for one in replay)
        return Segment((name, tail.seq), self.epoch(at, tail), base, records, reserved, lane, at.seq), is_last

    def goes_on_at(self, tail: Tail) -> int:
        """Past everything that readers may have seen."""
        return self.base(tail)

    def first_reserves(self, start: int, end: int) -> int:
        return start

    def leads(self, is_last: bool) -> bool:
        """Into the lane."""
        return is_last

    def epoch(self, at: Writer, tail: Tail) -> int:
        return tail.epoch + 1

    def is_ours(self, found: Any, fence: Segment) -> bool:
        return bool(found.id == fence.id)


class RecoveryJudge(PlaceJudge):
    """`forgotten`: a partition is open again, and a record that the WAL kept is not at its offset. `damage`: what the WAL
    kept does not follow what is stored. Of two fences with one epoch the first leads nowhere: so they were read."""

    def view(self, objects: Objects, part: str) -> tuple[Log, Violation | None]:
        return super().view({key: self._as_read(objects, key, what) for key, what in objects.items()}, part)

    def _as_read(self, objects: Objects, key: Any, what: Any) -> Any:
        if isinstance(what, Segment) and what.lane:
            second = objects.get(Place(key.chain, key.seq + 1))
            if second is not None and (second.epoch, second.lane) == (what.epoch, what.lane):
                return what._replace(lane="")
        return what

    def heard(self, told: Any, said: Said) -> tuple[Any, Violation | None]:
        if said.what == "damage":
            return told, ("damage", f"the WAL goes on with {said.args[0]} behind {said.args[1]}")
        if said.what == "recovered":
            log = dict(told.logs[0])
            for one in said.args:
                if log.get(one.offset) != one.record:
                    return told, ("forgotten", f"{one} is not in {told.logs[0]}")
            return told, None
        return super().heard(told, said)
