"""Lanes as they are built: a part of an entry has a place in its partition's own chain.

Processes, their uploads and their doubts are those of `lanes`. What differs is where claims and tables are:

* A claim is a fence in the partition's own chain, which shared writers use as well: from here on it goes on in lane L.
  Nobody numbers claims. The next one goes to the place behind the last part, which its taker computes from the sealed lane.
* What is split goes into the partition's manifest, together with all that its chain has besides. The lane's checkpoint says
  `until` afterwards, and may reach further (`next`) than what was split: it repeats the parts in between.
* Nobody goes on behind a claim before a seal names it (`left`): so who knows a partition as it once was, in a lane, learns
  from the lane alone what became of it (`planner`), and asks for nothing of the partition's own.
* What cannot be read (`JUNK`) may stand in a place of a lane: somebody's, or a seal that was damaged. Its owner never goes
  on behind it, because it may have been a seal: it ends all its claims, and claims the partitions again for another lane.
* A lane ends with a fence, which ends all claims that began before it (`since`): it stops the owner, and lets nobody in.
  The next life of a named lane begins with
  an `adopt`: nothing ends, but what the former life puts behind it does not name it, and is void.

Each rule is a method of `Places`, so that `places_runs` can break one and leave the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.lanes import FENCE, SEAL, Batch, Entry, Lanes, Own, Place, Step, Upload, Writer, records_of
from tests.model.lanes_judge import LaneJudge, Log
from tests.model.search import Violation
from tests.model.store import Begin, Create, Get, Objects, Put, Snapshot

ADOPT, JUNK = "adopt", "junk"
STALE = "stale"


class Segment(NamedTuple):
    """What stands in a place of a partition's own chain: a shared writer's records, or a fence. With a `lane` it is a claim,
    and the chain goes on there, in entries from `since` on."""

    id: tuple[Any, ...]
    epoch: int
    base: int
    records: tuple[str, ...] = ()
    reserved: int = 0
    lane: str = ""
    since: int = 0
    shared: bool = False


class Known(NamedTuple):
    """What a lane says of a claim. `seq`, `end`, `reserved`: of the partition's chain before the first of `parts`, which are
    pairs of an entry's place and a batch. `moved`: the fence behind them, if it is in the lane (`transfers`). `doubt`: what
    ends it may have been lost (`lost_transfers`). `begun`: nothing of it is in the lane (`lives`)."""

    part: str
    claim: int
    seq: int = 0
    end: int = 0
    reserved: int = 0
    sealed: bool = False
    left: bool = False
    parts: tuple[tuple[int, Batch], ...] = ()
    moved: Segment | None = None
    doubt: bool = False
    begun: bool = False


class Tail(NamedTuple):
    """Where a partition's chain ends for somebody who has read it. `open`: no seal names the claim, as far as was read;
    `alive`: no fence has ended it, either. `doubt`: where it goes on may have been lost."""

    part: str
    seq: int = 0
    epoch: int = 0
    end: int = 0
    reserved: int = 0
    lane: str = ""
    since: int = 0
    shared: bool = False
    open: bool = False
    alive: bool = False
    doubt: bool = False


class Manifest(NamedTuple):
    version: int = 0
    nonce: str = ""
    tail: Tail | None = None
    batches: tuple[Batch, ...] = ()


class Checkpoint(NamedTuple):
    """Of a lane up to `next`: what lies below `until` is in manifests, and may be gone unless it is `kept`. `ended`: the
    place behind the last fence."""

    version: int = 0
    nonce: str = ""
    until: int = 0
    next: int = 0
    edge: Any = None
    claims: tuple[Known, ...] = ()
    kept: frozenset[int] = frozenset()
    ended: int = 0
    gone: int = -1


class Stand(NamedTuple):
    """Where somebody stands in a lane who has read it from `start` on. `gone`: the last place that could not be read;
    `waiting`: until it is told what counts of such a place and of those behind it, the edge before it, and those."""

    start: int
    next: int
    edge: Any
    claims: tuple[Known, ...]
    ended: int
    gone: int = -1
    waiting: tuple[Any, tuple[tuple[int, Entry], ...]] | None = None

    def claim(self, part: str, claim: int) -> Known:
        return next((c for c in self.claims if (c.part, c.claim) == (part, claim)), Known(part, claim))


class Places(Lanes):
    """The rules that hold."""

    def owned(self, who: str, lane: str) -> tuple[tuple[Own, ...], dict[Any, Any]]:
        stands = {Place(part, 0): Segment((who, part), 1, 0, lane=lane) for part in self.parts}
        return tuple(Own(part, 1, 0, 0, seq=1) for part in self.parts), stands

    def first(self, part: str) -> Tail:
        """Of a partition that nobody has written."""
        return Tail(part)

    # A lane

    def behind(self, at: Any, entry: Entry) -> Any:
        claims = {(c.part, c.claim): c for c in at.claims}
        valid = self.is_valid(entry, at.edge)
        for batch in entry.batches if valid else ():
            was = claims.get((batch.part, batch.claim))
            was = was or Known(batch.part, batch.claim, batch.seq, batch.base, batch.base)
            if not was.sealed:
                claims[was[:2]] = was._replace(parts=(*was.parts, (at.next, batch)))
        for key in claims if entry.kind == FENCE else ():
            claims[key] = claims[key]._replace(sealed=True)
        for key in entry.seals if valid or entry.kind == SEAL else ():
            claims[key] = claims.get(key, Known(*key))._replace(sealed=True, left=True)
        edge = entry.id if self.moves_edge(entry, valid) else at.edge
        before = at.next + 1 if entry.kind == FENCE else at.ended
        return Stand(at.start, at.next + 1, edge, tuple(sorted(claims.values())), before)

    def moves_edge(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind in (SEAL, FENCE, ADOPT)

    def stops(self, found: Entry) -> bool:
        return found.kind in (FENCE, ADOPT)

    def blocked(self, who: str, at: Writer, ups: tuple[Upload, ...], found: Entry) -> Step:
        if found.kind == JUNK and self.stops_at_junk():
            yield Said("seen", ("an owner moves",))
            yield Said("denied", records_of(ups))
            at = yield from self.move(who, at)
            return at, ()
        result = yield from super().blocked(who, at, ups, found)
        return result

    def stops_at_junk(self) -> bool:
        return True

    def move(self, who: str, at: Writer) -> Step:
        """To another lane: end all claims in this one, and claim the partitions again, where their chains say."""
        parts = "".join(own.part for own in at.own)
        seals = frozenset((own.part, own.claim) for own in at.own)
        yield from self.leave(who, at, seals)
        at = yield from self.take(who, at._replace(lane=f"{at.lane}'", seq=0, prev=None, own=()), parts)
        return at

    def leave(self, who: str, at: Writer, seals: frozenset[Any]) -> Step:
        yield from self.end_lane(at.lane, Entry(SEAL, (who, "leave"), seals=seals))

    def junk(self, who: str, rounds: int) -> Actor:
        """Puts what nobody can read where lane A ends."""
        while rounds:
            objects = yield Snapshot()
            seq = 0
            while Place("A", seq) in dict(objects):
                seq += 1
            yield Create(Place("A", seq), Entry(JUNK, (who, seq)))
            del objects, seq
            rounds -= 1

    def rot(self, who: str, rounds: int) -> Actor:
        """Damages a seal of lane A. (What it was stays known to the judge.)"""
        while rounds:
            objects = yield Snapshot()
            seals = tuple(
                sorted(
                    (place, entry)
                    for place, entry in objects
                    if isinstance(entry, Entry) and entry.kind == SEAL and place.chain == "A"
                )
            )
            del objects
            if seals:
                yield Put(seals[0][0], seals[0][1]._replace(kind=JUNK))
                yield Said("seen", ("a seal is damaged",))
            del seals
            rounds -= 1

    def checkpoint(self, lane: str) -> Step:
        found = yield Get(("checkpoint", lane))
        return Checkpoint() if found is None else found

    def load(self, lane: str) -> Step:
        found = yield from self.checkpoint(lane)
        return Stand(found.next, found.next, found.edge, found.claims, found.ended, found.gone)

    def has_ended(self, at: Stand, tail: Tail) -> bool:
        """Whether somebody may have gone on behind the claim."""
        return at.claim(tail.part, tail.epoch).left

    def is_alive(self, at: Stand, tail: Tail) -> bool:
        """Whether what comes in the lane still counts for the claim."""
        return not (tail.since < at.ended or at.claim(tail.part, tail.epoch).sealed)

    def put_at_end(self, lane: str, at: Any, entry: Entry, wanted: Any) -> Step:
        while True:
            if wanted and all(self.has_ended(at, one) for one in wanted):
                return at
            found = yield Get(Place(lane, at.next))
            if found is None:
                mine = self.signed(entry._replace(id=(*entry.id, at.next)), at)
                if mine is None:
                    return at
                found = yield from self.create(Place(lane, at.next), mine)
                if found.id == mine.id:
                    return self.behind(at, found)
                at = self.behind(at, found)
                yield from self.outrun(lane, at, mine)
                del mine, found
                continue
            at = self.behind(at, found)
            del found

    def outrun(self, lane: str, at: Stand, entry: Entry) -> Step:
        """Another's entry came to the lane's end first, and we stand behind it."""
        return
        yield

    def signed(self, entry: Entry, at: Stand) -> Entry | None:
        """As it goes to the lane's end, by what was read of the lane; None if there is nothing to say."""
        return entry

    def read_lane(self, lane: str) -> Step:
        """Entries up to the first empty place, and the checkpoint AFTERWARDS: if it has passed the place where the reading
        began, all over again."""
        while True:
            at = yield from self.load(lane)
            while True:
                found = yield Get(Place(lane, at.next))
                if found is None:
                    break
                at = self.behind(at, found)
                del found
            del found
            checkpoint = yield from self.checkpoint(lane)
            if not self.reader_is_past(checkpoint, at):
                return split_over(at, checkpoint.until)
            yield Said("seen", ("a lane is read again",))
            del at, checkpoint

    # A partition's chain

    def load_chain(self, part: str) -> Step:
        """The manifest, and what follows it. Once more if some of that went into the manifest meanwhile."""
        while True:
            found = yield Get(("manifest", part))
            base = Manifest() if found is None else found
            del found
            followed = yield from self.follow(base.tail or self.first(part), base.batches)
            if followed is not None:
                return base, *followed
            yield Said("seen", ("a manifest was stale",))
            del base, followed

    def follow(self, tail: Tail, got: tuple[Batch, ...]) -> Step:
        """What follows, in lanes and in the partition's own chain. None if that cannot be told from here."""
        while True:
            if tail.lane:
                at = yield from self.read_for(tail)
                known = at.claim(tail.part, tail.epoch)
                if self.is_stale(known, tail):
                    return None
                tail, more = self.along(tail, known)
                tail = tail._replace(open=not self.has_ended(at, tail), alive=self.is_alive(at, tail))
                got += more
                moved = known.moved
                if self.in_doubt(at, tail):
                    moved = yield from self.looked_for(tail)
                    if moved is None:
                        return tail._replace(doubt=True), got
                    if moved == STALE:
                        return None
                    tail = tail._replace(open=False)
                del at, known, more
                if tail.open:
                    return tail, got
                if self.goes_where(tail, moved):
                    tail = after(tail, moved)
                    del moved
                    continue
                del moved
            found = yield Get(Place(tail.part, tail.seq))
            if found is None:
                return tail, got
            tail, got = after(tail, found), got + batch_of(tail, found)
            del found

    def read_for(self, tail: Tail) -> Step:
        """The lane in which the chain goes on, as far as it matters."""
        at = yield from self.read_lane(tail.lane)
        return at

    def in_doubt(self, at: Stand, tail: Tail) -> bool:
        """Whether something was lost that may say where the claim goes on: here a fence does, in the partition's chain."""
        return False

    def looked_for(self, tail: Tail) -> Step:
        """The fence behind the tail, as another lane tells it; None if none does, STALE if a manifest holds more."""
        return None
        yield

    def goes_where(self, tail: Tail, moved: Segment | None) -> bool:
        """Whether the next place of the chain is in the lane that the claim was in."""
        return moved is not None

    def is_stale(self, known: Known, tail: Tail) -> bool:
        return known.seq > tail.seq

    def along(self, tail: Tail, known: Known) -> tuple[Tail, tuple[Batch, ...]]:
        """Behind the parts that follow the tail, and those."""
        more = tuple(batch for _, batch in known.parts if batch.seq >= tail.seq)
        if more:
            last = more[-1]
            tail = tail._replace(seq=last.seq + 1, end=last.end, reserved=last.reserved)
        return tail, more

    # Claims

    def take(self, who: str, at: Writer, parts: str) -> Step:
        """Read the chains, end their claims, and only then put fences with claims of our own behind the last parts. One seal
        for all that are in the same lane. Who loses a place begins again; here once."""
        tries = 2
        while tries:
            held = {own.part for own in at.own}
            todo = tuple(part for part in parts if part not in held)
            del held
            if not todo:
                return at
            tails = yield from self.load_all(todo)
            mine = tuple(one for one in tails if self.goes_on(at, one))
            tails = tuple(one for one in tails if one not in mine)
            if mine:
                yield Said("seen", ("a claim of the own lane goes on",))
                at = at._replace(own=tuple(sorted((*at.own, *map(self.resumed, mine)))))
            del mine, todo
            tails = yield from self.ended(who, at, tails)
            at = yield from self.claim_all(who, at, tails)
            del tails
            tries -= 1
        return at

    def goes_on(self, at: Writer, tail: Tail) -> bool:
        """Whose lane it is may go on with a claim that leads there: of an earlier life, whose fence came late."""
        return tail.lane == at.lane and tail.alive

    def resumed(self, tail: Tail) -> Own:
        base = self.base(tail)
        return Own(tail.part, tail.epoch, base, base, tail.seq)

    def load_all(self, parts: tuple[str, ...]) -> Step:
        tails: tuple[Tail, ...] = ()
        while len(tails) < len(parts):
            _, tail, _ = yield from self.load_chain(parts[len(tails)])
            tails = (*tails, tail)
            del tail, _
        return tails

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        """Where the chains end for good: seals first. A partition is left out whose manifest holds more meanwhile."""
        done, wanted = tuple(t for t in wanted if not t.open), tuple(t for t in wanted if t.open)
        while wanted:
            same = tuple(tail for tail in wanted if tail.lane == wanted[0].lane)
            wanted = tuple(tail for tail in wanted if tail.lane != same[0].lane)
            seal = Entry(SEAL, (who, "seal"), seals=frozenset((one.part, one.epoch) for one in same))
            end = yield from self.end_lane(same[0].lane, seal, same)
            done += self.behind_seal(same, end)
            del same, seal, end
        return done

    def behind_seal(self, tails: tuple[Tail, ...], end: Stand) -> tuple[Tail, ...]:
        fresh = (one for one in tails if not self.is_stale(end.claim(one.part, one.epoch), one))
        return tuple(self.along(one, end.claim(one.part, one.epoch))[0] for one in fresh)

    def base(self, tail: Tail) -> int:
        """No offset is used again that was shown."""
        return max(tail.end, tail.reserved)

    def claim_all(self, who: str, at: Writer, tails: tuple[Tail, ...]) -> Step:
        while tails:
            tail, tails = tails[0], tails[1:]
            base = self.base(tail)
            fence = Segment((who, tail.seq), tail.epoch + 1, base, (), base, at.lane, at.seq)
            found = yield from self.create(Place(tail.part, tail.seq), fence)
            if found.id == fence.id:
                own = Own(tail.part, fence.epoch, base, base, tail.seq + 1)
                at = at._replace(own=tuple(sorted((*at.own, own))))
                del own
            else:
                yield Said("seen", ("another's claim",))
            del tail, base, fence, found
        return at

    # A process

    def adopt(self, who: str, at: Writer) -> Step:
        """One entry, checked like a seal. Then the lane alone says which claims are its own: those with a part, not ended.
        Of others it learns when it opens their partitions."""
        end = yield from self.end_lane(at.lane, Entry(ADOPT, (who, "adopt")))
        yield Said("seen", ("adopted",))
        return at._replace(seq=end.next, prev=end.edge, own=self.carried_on(end))

    def carried_on(self, end: Stand) -> tuple[Own, ...]:
        own = []
        for known in end.claims:
            if known.parts or known.seq:
                tail, _ = self.along(
                    Tail(known.part, known.seq, known.claim, known.end, known.reserved), known
                )
                own += [] if known.sealed else [self.resumed(tail)]
        return tuple(own)

    def linked(self, who: str, at: Writer, wanted: list[Any], seals: frozenset[Any]) -> tuple[Writer, Any]:
        at, ups = super().linked(who, at, wanted, seals)
        seqs, placed = {own.part: own.seq for own in at.own}, []
        for up in ups:
            batches = []
            for batch in up.entry.batches:
                batches.append(batch._replace(seq=seqs[batch.part]))
                seqs[batch.part] += 1
            placed.append(up._replace(entry=up.entry._replace(batches=tuple(batches))))
        return at, tuple(placed)

    def acked(self, at: Writer, up: Upload) -> Writer:
        at, ends = super().acked(at, up), {batch.part: batch.seq + 1 for batch in up.entry.batches}
        return at._replace(own=tuple(own._replace(seq=ends.get(own.part, own.seq)) for own in at.own))

    # Shared writers, in the partition's own chain

    def shared(self, who: str, count: int) -> Actor:
        """Appends to p. Behind a claim it ends that first, and begins an epoch; its peers join it. A fence stops it."""
        tail, left, tries = None, count, 3
        while left and tries:
            if tail is None or tail.lane:
                _, tail, _ = yield from self.load_chain("p")
                tails = yield from self.ended(who, None, (tail,))
                tail = tails[0]._replace(lane="") if tails else None
                del tails, _
                tries -= 1
                continue
            base = tail.end if tail.shared else self.base(tail)
            epoch = tail.epoch + (not tail.shared)
            mine = Segment(
                (who, count - left, tail.seq), epoch, base, (f"{who}{count - left}",), base + 1, shared=True
            )
            found = yield from self.create(Place("p", tail.seq), mine)
            if found.id == mine.id:
                yield Said("acked", batch_of(tail, mine))
                left -= 1
            elif not found.shared:
                yield Said("seen", ("a shared writer was stopped",))
                return
            tail = after(tail, found)
            del base, epoch, mine, found

    # Readers

    def reader(self, who: str, rounds: int) -> Actor:
        tail, offset = self.first("p"), 0
        while rounds:
            need = yield Begin()
            found = yield from self.follow(tail, ())
            if found is None:
                yield Said("seen", ("a reader reloads",))
                _, tail, got = yield from self.load_chain("p")
                del _
            else:
                tail, got = found
            del found
            offset = yield from self.give(offset, got)
            if tail.doubt:
                yield Said("seen", ("a reader is told of a damage",))
            else:
                yield Said("end", ("p", offset, need))
            tail = tail._replace(doubt=False)
            del need, got
            rounds -= 1

    def planner(self, who: str, rounds: int) -> Actor:
        """Knows p as it once was, which the lane's owner has said, and looks at the lane alone for what became of it. If
        that does not tell, p is loaded."""
        _, base, got = yield from self.load_chain("p")
        del _
        while rounds:
            need = yield Begin()
            known = yield from self.known_by_lane(base)
            if known is None:
                yield Said("seen", ("a partition is asked for",))
                _, base, got = yield from self.load_chain("p")
                offset = yield from self.give(0, got)
                del _
            else:
                yield Said("seen", ("a lane tells all of a partition",))
                offset = yield from self.give(0, got + known)
            if not base.doubt:
                yield Said("end", ("p", offset, need))
            base = base._replace(doubt=False)
            del need, known, offset
            rounds -= 1

    def known_by_lane(self, base: Tail) -> Step:
        """What follows; None if the lane does not tell."""
        if not base.lane:
            return None
        at = yield from self.read_lane(base.lane)
        known = at.claim(base.part, base.epoch)
        if self.was_left(at, base) or self.is_stale(known, base) or self.in_doubt(at, base):
            return None
        return self.along(base, known)[1]

    def was_left(self, at: Stand, base: Tail) -> bool:
        return at.claim(base.part, base.epoch).left

    # Split

    def plan(self, objects: Objects, lane: str) -> Any:
        base = objects.get(("checkpoint", lane), Checkpoint())
        at, kept = standing(self, objects, lane, set(base.kept))
        until = self.split_end(at.next)
        if until <= base.until:
            return None
        files = {}
        for known in at.claims:
            for n, batch in known.parts:
                if n < until:
                    files[known.part] = batch.seq + 1
        new = Checkpoint(
            base.version + 1,
            "",
            until,
            at.next,
            at.edge,
            split_over(at, until).claims,
            frozenset(kept),
            at.ended,
            at.gone,
        )
        goes = [
            Place(lane, n)
            for n in range(base.until, until)
            if self.may_go(objects[Place(lane, n)], n not in kept)
        ]
        return base, new, tuple(sorted(files.items())), (), tuple(goes)

    def splitter(self, who: str, lane: str, rounds: int) -> Actor:
        while rounds:
            objects = yield Snapshot()
            work = self.plan(dict(objects), lane)
            del objects
            if work is not None:
                yield from self.split(who, lane, *work)
            del work
            rounds -= 1

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        """Manifests, checkpoint, deletes: in that order, and each is made sure of before the next."""
        while batches:
            yield from self.file(who, *batches[0])
            batches = batches[1:]
        stands = yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))
        if stands.until >= new.until:
            yield Said("seen", ("split",))
            del stands, base, new
            yield from self.remove(goes)

    def file(self, who: str, part: str, seq: int) -> Step:
        """Make sure that the manifest holds the chain up to a place."""
        while True:
            base, tail, got = yield from self.load_chain(part)
            if base.tail is not None and base.tail.seq >= seq:
                return
            new = Manifest(base.version + 1, who, tail._replace(open=False, alive=False), got)
            yield from self.swap(("manifest", part), base, new)
            del base, tail, got, new


def split_over(at: Stand, until: int) -> Stand:
    """What lies below is in manifests: the chain goes on behind it."""
    claims = []
    for known in at.claims:
        done = [batch for n, batch in known.parts if n < until]
        if done:
            last, parts = done[-1], known.parts[len(done) :]
            known = known._replace(seq=last.seq + 1, end=last.end, reserved=last.reserved, parts=parts)
        claims.append(known)
    return at._replace(claims=tuple(claims))


def after(tail: Tail, found: Segment) -> Tail:
    end = found.base + len(found.records)
    return Tail(
        tail.part,
        tail.seq + 1,
        found.epoch,
        end,
        max(end, found.reserved),
        found.lane,
        found.since,
        found.shared,
    )


def batch_of(tail: Tail, found: Segment) -> tuple[Batch, ...]:
    if not found.records:
        return ()
    return (Batch(tail.part, found.epoch, found.base, found.records, found.reserved, tail.seq),)


def standing(rules: Places, objects: Objects, lane: str, kept: set[int]) -> tuple[Stand, set[int]]:
    """A lane as it stands, in one look. `kept`: grows by the places that hold no data that counts."""
    base = objects.get(("checkpoint", lane), Checkpoint())
    at = Stand(base.next, base.next, base.edge, base.claims, base.ended, base.gone)
    while (entry := objects.get(Place(lane, at.next))) is not None:
        if not rules.is_valid(entry, at.edge):
            kept.add(at.next)
        at = rules.behind(at, entry)
    return split_over(at, base.until), kept


def _as_it_was(what: Any) -> Any:
    """A damaged seal or transfer, once it was restored."""
    if isinstance(what, Entry) and what.kind == JUNK and what.seals:
        return what._replace(kind="transfer" if what.moves else SEAL)
    return what


class PlaceJudge(LaneJudge):
    """The log of a partition is what its manifest says, and what follows that in lanes and in its own chain. Every place is
    used once, in order."""

    def view(self, objects: Objects, part: str) -> tuple[Log, Violation | None]:
        rules = self._rules
        assert isinstance(rules, Places)
        objects = {key: _as_it_was(what) for key, what in objects.items()}
        base = objects.get(("manifest", part), Manifest())
        tail, got, why = base.tail or rules.first(part), list(base.batches), None
        while why is None:
            if tail.lane:
                at, _ = standing(rules, objects, tail.lane, set())
                known = at.claim(part, tail.epoch)
                if known.seq > tail.seq:
                    why = "lost", f"{part} was split up to {known.seq}; its manifest reaches to {tail.seq}"
                for _, batch in known.parts:
                    if batch.seq > tail.seq:
                        why = "lost", f"{batch} is not at place {tail.seq} of {part}"
                    if batch.seq >= tail.seq:
                        got.append(batch)
                        tail = tail._replace(seq=batch.seq + 1, end=batch.end, reserved=batch.reserved)
                if known.moved is not None:
                    if known.moved.id[-1] != tail.seq or known.moved.base < tail.end:
                        why = "lost", f"{known.moved} is not at place {tail.seq} of {part}, behind {tail.end}"
                    tail = after(tail, known.moved)
                    continue
                if not (tail.since < at.ended or known.sealed):
                    break
            found = objects.get(Place(part, tail.seq))
            if found is None:
                break
            if found.base < tail.end or found.epoch < tail.epoch:
                why = "lost", f"{found} begins before the end of {part}, {tail.end}"
            got += batch_of(tail, found)
            tail = after(tail, found)
        log: list[tuple[int, str]] = []
        for batch in got:
            if log and batch.base <= log[-1][0]:
                why = why or ("lost", f"{batch} is stored where {part} has {tuple(log)}")
            log += [(batch.base + n, record) for n, record in enumerate(batch.records)]
        return tuple(log), why
