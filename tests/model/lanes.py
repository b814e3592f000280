"""Lanes: one chain of combined segments for a process, for all its partitions. Each actor as a sequence of single
requests.

A lane is a chain of places, filled by create-if-absent. An entry is data, a seal, or a fence. A data entry names the
id of the last one before it that counts (`prev`), so that several may be under way at once; one whose `prev` is not
that is void, and counts for nothing. Seals and fences always count. Who writes a partition is said by the topic's
chain of claims: claim k of p is lane L. The records of p are, claim by claim, the batches marked (p, k) in valid
entries of its lane, up to the seal of (p, k).

A splitter rewrites what is below `until` of a lane by partition, into the topic's table, publishes `until` in the
lane's checkpoint, and deletes the data entries below it. Seals, fences and void entries stay, and the checkpoint says
where (`kept`): any other place below `until` may have been emptied, and whatever is found or missed there counts for
nothing.

A partition's own chain, which shared writers append to, is here one more lane, whose entries come from several
writers.

Each rule is a method of `Lanes`, so that `lanes_runs` can break one and leave the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.store import OK, Begin, Create, Delete, Get, Objects, OneOf, Put, Snapshot, Swap

DATA, SEAL, FENCE, VOID = "data", "seal", "fence", "void"
HELD, SENT, DOUBT, LANDED = "held", "sent", "doubt", "landed"
Step = Generator[Any, Any, Any]


class Place(NamedTuple):
    """Of a lane, or of a topic's chain of claims."""

    chain: str
    seq: int


class Batch(NamedTuple):
    """The rows of one partition in an entry. No offset at or past `reserved` was shown before it was stored. `seq`: only
    where it has a place in its partition's chain (`places`)."""

    part: str
    claim: int
    base: int
    records: tuple[str, ...]
    reserved: int
    seq: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.records)


class Entry(NamedTuple):
    """`seals`: the claims that end here, behind its batches. Of a void entry only id and prev may be left. `moves`: where
    claims that end here go on (`transfers`). `known`: the place below which its maker knew what is
    there (`lost_transfers`)."""

    kind: str
    id: tuple[Any, ...]
    prev: Any = None
    batches: tuple[Batch, ...] = ()
    seals: frozenset[tuple[str, int]] = frozenset()
    moves: tuple[Any, ...] = ()
    known: int = 0


class Claim(NamedTuple):
    part: str
    claim: int
    lane: str
    base: int


class Claims(NamedTuple):
    """A place in a topic's chain of claims: of one partition or of many, never deleted. `closed`: the topic is
    gone."""

    id: tuple[Any, ...]
    claims: tuple[Claim, ...] = ()
    closed: bool = False


class Known(NamedTuple):
    """What a lane says of a claim up to some place. `end` -1: no batch yet, so it is where the claim begins."""

    part: str
    claim: int
    end: int = -1
    reserved: int = -1
    sealed: bool = False


class Checkpoint(NamedTuple):
    """Of a lane: everything below `until` is in the tables. `edge`: the id of the last entry below it that counts.
    `kept`: where seals, fences and voids are below it; every other place below it held valid data, and may be
    empty."""

    version: int = 0
    nonce: str = ""
    until: int = 0
    edge: Any = None
    claims: tuple[Known, ...] = ()
    kept: frozenset[int] = frozenset()


class Table(NamedTuple):
    """Of a topic: what was split, by partition and claim."""

    version: int = 0
    nonce: str = ""
    batches: tuple[Batch, ...] = ()
    gone: bool = False

    def end(self, part: str, claim: int) -> int:
        return max((b.end for b in self.batches if (b.part, b.claim) == (part, claim)), default=-1)


class Stand(NamedTuple):
    """Where somebody stands in a lane who has read it from `start` on."""

    start: int
    next: int
    edge: Any
    claims: tuple[Known, ...]

    def claim(self, part: str, claim: int) -> Known:
        return next((c for c in self.claims if (c.part, c.claim) == (part, claim)), Known(part, claim))


class Own(NamedTuple):
    """A claim of a process: its next offset, and the reservation that was stored last. `seq`: the next place in the
    partition's chain, where it has one."""

    part: str
    claim: int
    next: int
    reserved: int
    seq: int = 0


class Writer(NamedTuple):
    """A process: its lane, its next place there and the last id before that, and its claims. `made`, `ids`: counters;
    `tries`: how often it made its uploads again since the last ack. `memory`: what it remembers of lanes (`guesses`)."""

    lane: str
    seq: int = 0
    prev: Any = None
    own: tuple[Own, ...] = ()
    made: int = 0
    ids: int = 0
    tries: int = 0
    stopped: bool = False
    memory: Any = None


class Upload(NamedTuple):
    seq: int
    entry: Entry
    state: str = SENT


class Lanes:
    """The rules that hold. `ahead`: buffered acks, offsets are reserved. `atomic`: some flushes are one append; `mixed`: it
    shares its entry with records before and behind it. `apart`: each partition is a topic of its own."""

    def __init__(
        self,
        ahead: int = 0,
        atomic: bool = False,
        mixed: bool = False,
        apart: bool = False,
        parts: tuple[str, ...] = ("p", "q"),
    ) -> None:
        self.ahead, self.atomic, self.apart, self.parts = ahead, atomic or mixed, apart, parts
        self.mixed = mixed

    def topic(self, part: str) -> str:
        return part if self.apart else "t"

    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.topic(part) for part in self.parts))

    def owned(self, who: str, lane: str) -> tuple[tuple[Own, ...], dict[Any, Any]]:
        """A process that owns all partitions from the start, and what stands in the store for that."""
        stands = {}
        for topic in self.topics():
            claims = tuple(Claim(part, 0, lane, 0) for part in self.parts if self.topic(part) == topic)
            stands[Place(f"claims/{topic}", 0)] = Claims((who, 0), claims)
        return tuple(Own(part, 0, 0, 0) for part in self.parts), stands

    # A lane

    def is_valid(self, entry: Entry, edge: Any) -> bool:
        """Void is a data entry that was sent behind one that does not stand there."""
        return entry.kind == DATA and bool(entry.prev == edge)

    def behind(self, at: Stand, entry: Entry) -> Stand:
        claims = {(c.part, c.claim): c for c in at.claims}
        valid = self.is_valid(entry, at.edge)
        for batch in entry.batches if valid else ():
            was = claims.get((batch.part, batch.claim), Known(batch.part, batch.claim))
            if not was.sealed:
                claims[batch.part, batch.claim] = was._replace(end=batch.end, reserved=batch.reserved)
        for key in entry.seals if valid or entry.kind != DATA else ():
            claims[key] = claims.get(key, Known(*key))._replace(sealed=True)
        edge = entry.id if self.moves_edge(entry, valid) else at.edge
        return Stand(at.start, at.next + 1, edge, tuple(sorted(claims.values())))

    def moves_edge(self, entry: Entry, valid: bool) -> bool:
        """A void entry counts for nothing: else what was sent behind it would be valid."""
        return valid or entry.kind in (SEAL, FENCE)

    def checkpoint(self, lane: str) -> Step:
        found = yield Get(("checkpoint", lane))
        return Checkpoint() if found is None else found

    def load(self, lane: str) -> Step:
        found = yield from self.checkpoint(lane)
        return Stand(found.until, found.until, found.edge, found.claims)

    def is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        """Whether any place from where the reading began may have been emptied by the time the checkpoint was read:
        then nothing counts that was found, missed or created there."""
        return checkpoint.until > at.start

    def create(self, place: Place, entry: Any) -> Step:
        """One PUT. In doubt: look. Returns what is there, ours or another's; absent means the same bytes again."""
        while True:
            answer = yield Create(place, entry)
            if answer == OK:
                return entry
            found = yield Get(place)
            if found is not None:
                return found

    def put_at_end(self, lane: str, at: Stand, entry: Entry, wanted: tuple[Claim, ...]) -> Step:
        """Read to the first empty place, and put a seal or a fence there; a seal only if it is still wanted."""
        while True:
            if wanted and all(at.claim(one.part, one.claim).sealed for one in wanted):
                return at
            found = yield Get(Place(lane, at.next))
            if found is None:
                mine = entry._replace(id=(*entry.id, at.next))
                found = yield from self.create(Place(lane, at.next), mine)
                if found.id == mine.id:
                    return self.behind(at, found)
                del mine
            at = self.behind(at, found)
            del found

    def end_lane(self, lane: str, entry: Entry, wanted: tuple[Claim, ...] = ()) -> Step:
        """Put it at the lane's end, THEN ask the checkpoint. If that has passed the place where the reading began,
        begin again from there; what was put stays."""
        while True:
            at = yield from self.load(lane)
            at = yield from self.put_at_end(lane, at, entry, wanted)
            checkpoint = yield from self.checkpoint(lane)
            if not self.is_past(checkpoint, at):
                return at
            yield Said("seen", (f"a {entry.kind} began again",))
            del checkpoint, at

    # Claims

    def read_claims(self, topic: str, known: tuple[Claims, ...] = ()) -> Step:
        while True:
            found = yield Get(Place(f"claims/{topic}", len(known)))
            if found is None:
                return known
            known = (*known, found)

    def newest(self, known: tuple[Claims, ...], part: str) -> Claim | None:
        return next((c for one in reversed(known) for c in one.claims if c.part == part), None)

    def take(self, who: str, at: Writer, parts: str) -> Step:
        """Seal first, claim second. One seal, and one entry of claims, for all that is in the same lane and topic.
        Who loses the claim to another begins again; here once, or two takers could go on for ever."""
        topic, tries = self.topic(parts[0]), 2
        known = yield from self.read_claims(topic)
        while True:
            held = {own.part for own in at.own}
            todo = [self.newest(known, p) or Claim(p, -1, "", 0) for p in parts if p not in held]
            if not todo or not tries or (known[-1:] and known[-1].closed):
                if todo and tries:
                    yield Said("seen", ("a taker met a closed topic",))
                return at
            wanted = tuple(claim for claim in todo if claim.lane == todo[0].lane)
            del held, todo
            bases = yield from self.ended(who, at, wanted)
            new = tuple(
                Claim(c.part, c.claim + 1, at.lane, base) for c, base in zip(wanted, bases, strict=True)
            )
            del bases
            known, won = yield from self.put_claims(who, topic, known, new)
            if won:
                more = tuple(Own(c.part, c.claim, c.base, c.base) for c in new)
                at = at._replace(own=tuple(sorted((*at.own, *more))))
            else:
                yield Said("seen", ("another's claim",))
                tries -= 1
                known = yield from self.read_claims(topic, known)
            del wanted, new, won

    def ended(self, who: str, at: Writer, wanted: tuple[Claim, ...]) -> Step:
        """The offsets at which the next claims begin."""
        lane = wanted[0].lane
        if not lane:
            return (0,) * len(wanted)
        seals = frozenset((claim.part, claim.claim) for claim in wanted)
        end = yield from self.end_lane(lane, Entry(SEAL, (who, "seal"), seals=seals), wanted)
        return tuple(max(one.base, self.begins(end.claim(one.part, one.claim))) for one in wanted)

    def begins(self, known: Known) -> int:
        """No offset is used again that was shown."""
        return max(known.end, known.reserved)

    def put_claims(self, who: str, topic: str, known: tuple[Claims, ...], new: tuple[Claim, ...]) -> Step:
        """One place further if another's entry is not about ours. Claims are never deleted, so nobody need ask."""
        while True:
            mine = Claims((who, len(known)), new)
            found = yield from self.create(Place(f"claims/{topic}", len(known)), mine)
            known = (*known, found)
            if found.id == mine.id:
                return known, True
            if found.closed or {c.part for c in found.claims} & {c.part for c in new}:
                return known, False
            del mine, found

    # A process

    def process(self, who: str, lane: str, script: str, own: tuple[Own, ...] = ()) -> Actor:
        """`2`: a flush of two uploads under way at once; `p`, `q`, `b`: takes p, q, both; `n`: is the next life of
        its lane; `g`: flushes, and gives p up by the same entry; `h`: by the second of two; `x`: closes."""
        at = Writer(lane, own=own)
        while script and not at.stopped:
            word, script = script[0], script[1:]
            if word == "b" and self.apart:
                word, script = "p", "q" + script
            if word == "n":
                at = yield from self.adopt(who, at)
            elif word in "pqb":
                at = yield from self.take(who, at, {"b": "pq"}.get(word, word))
            elif word == "x":
                at = yield from self.close(who, at)
            elif word in self.words:
                at = yield from self.does(who, at, word)
            elif at.own:
                at = yield from self.flush(who, at, {"g": 1, "h": 2}.get(word) or int(word), word in "gh")
            del word

    words = ""
    """Those of a script that `does` knows."""

    def does(self, who: str, at: Writer, word: str) -> Step:
        return at
        yield

    def adopt(self, who: str, at: Writer) -> Step:
        """Fence first. Then the lane alone says which claims are its own: those with a batch, and not sealed."""
        end = yield from self.end_lane(at.lane, Entry(FENCE, (who, "fence")))
        yield Said("seen", ("adopted",))
        own = tuple(
            Own(c.part, c.claim, self.begins(c), self.begins(c))
            for c in end.claims
            if c.end >= 0 and not c.sealed
        )
        return at._replace(seq=end.next, prev=end.edge, own=own)

    def close(self, who: str, at: Writer) -> Step:
        """A fence that seals all its claims: whoever comes next need not."""
        entry = Entry(FENCE, (who, "close"), seals=frozenset((own.part, own.claim) for own in at.own))
        while not at.stopped:
            found = yield from self.create(Place(at.lane, at.seq), entry)
            if found.id == entry.id:
                yield Said("seen", ("closed",))
                return at._replace(stopped=True)
            at, _ = yield from self.blocked(who, at, (Upload(at.seq, entry, DOUBT),), found)
            entry = entry._replace(seals=frozenset((own.part, own.claim) for own in at.own))
            del found
        return at

    def flush(self, who: str, at: Writer, count: int, give: bool) -> Step:
        """Several uploads, acked in order. 412 or no answer is doubt, and the oldest in doubt is looked at."""
        at, ups, shown = self.prepare(who, at, count, give)
        if shown:
            yield Said("shown", shown)
        del shown, count, give
        while ups:
            requests = tuple(
                Create(Place(at.lane, up.seq), up.entry) if up.state == SENT else Get(Place(at.lane, up.seq))
                for up in ups
                if up.state == SENT or up is ups[0]  # others in doubt wait until they are the oldest
            )
            which, answer = yield OneOf(requests)
            request = requests[which]
            which = next(n for n, up in enumerate(ups) if up.seq == request.key.seq)
            if isinstance(request, Create):
                ups = state(ups, which, self.sent(answer))
            elif answer is None:
                ups = state(ups, 0, SENT)
            elif answer.id == ups[0].entry.id:
                ups = state(ups, 0, LANDED)
            else:
                at, ups = yield from self.blocked(who, at, ups, answer)
            del requests, which, answer, request
            while ups and ups[0].state == LANDED:
                yield Said("acked", ups[0].entry.batches)
                at, ups = self.acked(at, ups[0]), tuple(self.released(up) for up in ups[1:])
        return at

    def released(self, up: Upload) -> Upload:
        return up._replace(state=SENT) if up.state == HELD else up

    def sent(self, answer: str) -> str:
        return LANDED if answer == OK else DOUBT

    def acked(self, at: Writer, up: Upload) -> Writer:
        new = {batch.part: batch for batch in up.entry.batches}
        own = tuple(
            o._replace(next=new[o.part].end, reserved=new[o.part].reserved) if o.part in new else o
            for o in at.own
            if (o.part, o.claim) not in up.entry.seals
        )
        return at._replace(seq=up.seq + 1, prev=up.entry.id, own=own, tries=0)

    def prepare(self, who: str, at: Writer, count: int, give: bool) -> tuple[Writer, Any, Any]:
        """p gets two records in each flush, q one. Of atomic ones every second is: marked with `&`."""
        wanted = []
        for n in range(at.made, at.made + count):
            marks = {"p": ("", ""), "q": ("",)}
            if self.mixed and len(at.own) > 1:
                marks = {"p": ("", "&", ""), "q": ("&", "")}
            elif self.atomic and n % 2 and len(at.own) > 1:
                marks = {"p": ("&", "&"), "q": ("&",)}
            wanted.append(
                {
                    own.part: tuple(f"{who}{n}{own.part}{i}{mark}" for i, mark in enumerate(marks[own.part]))
                    for own in at.own
                }
            )
        seals = frozenset((own.part, own.claim) for own in at.own if give and own.part == "p")
        at, ups = self.linked(who, at._replace(made=at.made + count), wanted, seals)
        return at, ups, self.may_show(at, ups)

    def linked(self, who: str, at: Writer, wanted: list[Any], seals: frozenset[Any]) -> tuple[Writer, Any]:
        """Uploads for the next places: each with a new id, the id before it, and dense offsets."""
        seq, prev, ends, ups = at.seq, at.prev, {own.part: own.next for own in at.own}, []
        for n, new in enumerate(wanted):
            batches = []
            for own in at.own:
                if records := new.get(own.part, ()):
                    end = ends[own.part] + len(records)
                    reserved = end + (self.ahead if (at.ids + n) % 2 == 0 else 0)  # it may fall
                    batches.append(Batch(own.part, own.claim, ends[own.part], records, reserved))
                    ends[own.part] = end
            last = seals if n == len(wanted) - 1 else frozenset()
            entry = Entry(DATA, (who, at.ids + n), prev, tuple(batches), last)
            ups.append(Upload(seq, entry))
            seq, prev = seq + 1, entry.id
        return at._replace(ids=at.ids + len(wanted)), tuple(ups)

    def may_show(self, at: Writer, ups: tuple[Upload, ...]) -> tuple[Any, ...]:
        """Buffered records are shown before they are stored, below the reservation that was acked last and below
        every one that is under way before them; and nothing from an atomic append on that is under way."""
        limits, shown = {own.part: own.reserved for own in at.own}, []
        for batch in (batch for up in ups for batch in up.entry.batches):
            for n, record in enumerate(batch.records):
                if self.hides(record):
                    limits[batch.part] = min(limits[batch.part], batch.base + n)
                if batch.base + n < limits[batch.part]:
                    shown.append((batch.part, batch.base + n, record))
            limits[batch.part] = min(limits[batch.part], batch.reserved)
        return tuple(shown)

    def hides(self, record: str) -> bool:
        return is_atomic(record)

    def blocked(self, who: str, at: Writer, ups: tuple[Upload, ...], found: Entry) -> Step:
        """Another's entry stands where our oldest upload should be. Ask first: it may stand where ours was split and
        deleted. Else take it in, and make all uploads again behind it, with new ids: those under way are void wherever
        they land. Only the oldest is sent until it stands: else our own voids may stand in our way for ever."""
        checkpoint = yield from self.checkpoint(at.lane)
        if self.was_split(checkpoint, at.seq):
            yield Said("seen", ("its own was split, and another stands there",))
            return at, state(ups, 0, LANDED)
        del checkpoint
        if self.stops(found):
            yield Said("denied", records_of(ups))
            return at._replace(stopped=True), ()
        ended = (
            found.seals if found.kind != DATA else frozenset()
        )  # data in our place is void, and seals nothing
        gone = {(own.part, own.claim) for own in at.own} & ended
        old, at = ups, at._replace(own=tuple(o for o in at.own if (o.part, o.claim) not in gone))
        prev = found.id if self.moves_edge(found, False) else at.prev
        at = at._replace(seq=at.seq + 1, prev=prev, tries=at.tries + 1)
        at, ups = self.again(who, at, ups, {part for part, _ in gone})
        ups = self.held(ups)
        if at.tries > 6:
            yield Said("endless", (records_of(ups),))
        left = set(records_of(ups))
        failed = tuple(record for record in records_of(old) if record not in left)
        if gone:
            yield Said("seen", ("a seal in its place",))
        elif found.kind in (DATA, VOID):
            yield Said("seen", ("a void entry of its own in its place",))
        if failed:
            yield Said("denied", failed)
        return at, ups

    def held(self, ups: tuple[Upload, ...]) -> tuple[Upload, ...]:
        return (*ups[:1], *(up._replace(state=HELD) for up in ups[1:]))

    def was_split(self, checkpoint: Checkpoint, seq: int) -> bool:
        """A place below `until` that is not kept held valid data; and behind what we know, only ours could be valid
        there."""
        return seq < checkpoint.until and seq not in checkpoint.kept

    def stops(self, found: Entry) -> bool:
        return found.kind == FENCE

    def again(self, who: str, at: Writer, ups: tuple[Upload, ...], gone: set[str]) -> tuple[Writer, Any]:
        """An atomic append that has lost a partition fails whole. What is left gets dense offsets again."""
        wanted = []
        for up in ups:
            fails = gone & {batch.part for batch in up.entry.batches}
            new = {
                batch.part: tuple(
                    record for record in batch.records if not (fails and self.fails_whole(record))
                )
                for batch in up.entry.batches
                if batch.part not in gone
            }
            if any(new.values()):
                wanted.append(new)
        seals = frozenset(key for up in ups for key in up.entry.seals if key[0] not in gone)
        return self.linked(who, at, wanted, seals)

    def fails_whole(self, record: str) -> bool:
        return is_atomic(record)

    # Shared writers, in a partition's own chain

    def shared(self, who: str, count: int) -> Actor:
        """Appends to p in its own chain, which it claims if it is claimed for a lane, or was ended. Who meets the end
        reads the claims again, and creates nothing behind it without a claim of its own or a peer's."""
        known, claim, at, left, tries = (), None, None, count, 3
        while left and tries:
            if claim is None:
                known = yield from self.read_claims(self.topic("p"), known)
                claim = self.newest(known, "p")
                if known[-1:] and known[-1].closed:
                    return
                at = None
                if claim is not None and claim.lane == "own":
                    at = Stand(0, 0, None, ())
            if at is None:
                tries -= 1
                wanted = (claim or Claim("p", -1, "", 0),)
                known, claim = yield from self.switch(who, known, wanted)
                continue
            assert claim is not None, "whoever has read a chain has a claim to it"
            found = yield Get(Place("own", at.next))
            if found is None:
                known_end = at.claim("p", claim.claim)
                base = max(claim.base, known_end.end)
                batch = Batch("p", claim.claim, base, (f"{who}{count - left}",), base + 1)
                mine = Entry(DATA, (who, count - left, at.next), at.edge, (batch,))
                del known_end, base, batch
                found = yield from self.create(Place("own", at.next), mine)
                if found.id == mine.id:
                    yield Said("acked", mine.batches)
                    left -= 1
                del mine
            at = self.behind(at, found)
            del found
            if self.meets_end(at, claim):
                yield Said("seen", ("a shared writer met the end of its chain",))
                known = yield from self.read_claims(self.topic("p"), known)
                newer = self.newest(known, "p")
                if newer is None or newer == claim or newer.lane != "own":
                    at = None
                claim = newer
                del newer
        return

    def meets_end(self, at: Stand, claim: Claim) -> bool:
        return at.claim("p", claim.claim).sealed

    def switch(self, who: str, known: tuple[Claims, ...], wanted: tuple[Claim, ...]) -> Step:
        """A switch is a claim like any other: p is in its own chain from now on. Returns None to read the claims
        again."""
        bases = yield from self.ended(who, Writer("own"), wanted)
        new = (Claim("p", wanted[0].claim + 1, "own", bases[0]),)
        known, _ = yield from self.put_claims(who, self.topic("p"), known, new)
        yield Said("seen", ("p was switched to its own chain",))
        return known, None

    # Readers

    def reader(self, who: str, rounds: int) -> Actor:
        """Follows p: reads places, THEN asks the checkpoint, and only then believes them, those that it found and the
        empty one. From the table it takes what was split over it: the checkpoint first, the table afterwards."""
        claim, lane, at, offset = -1, "", Stand(0, 0, None, ()), 0
        while rounds:
            need = yield Begin()
            sealed = claim < 0
            while True:
                if sealed:
                    known = yield from self.read_claims(self.topic("p"))
                    found = next((c for one in known for c in one.claims if c[:2] == ("p", claim + 1)), None)
                    closed = bool(known) and known[-1].closed
                    del known
                    if closed:
                        return
                    if found is None:
                        break
                    claim, lane = found.claim, found.lane
                    del found, closed
                    at, offset = yield from self.reload(claim, lane, offset)
                    if at is None:
                        return
                at, got, past = yield from self.read_run(claim, lane, at)
                if past:
                    yield Said("seen", ("a reader reloads",))
                    at, offset = yield from self.reload(claim, lane, offset)
                    if at is None:
                        return
                    sealed = False
                    del got, past
                    continue
                offset = yield from self.give(offset, got)
                sealed = at.claim("p", claim).sealed
                del got, past
                if not sealed:
                    break
            yield Said("end", ("p", offset, need))
            del need
            rounds -= 1

    def read_run(self, claim: int, lane: str, at: Stand) -> Step:
        at, got = at._replace(start=at.next), ()
        while not at.claim("p", claim).sealed:
            found = yield Get(Place(lane, at.next))
            if found is None:
                break
            if self.is_valid(found, at.edge):
                got += tuple(b for b in found.batches if (b.part, b.claim) == ("p", claim))
            at = self.behind(at, found)
            del found
        checkpoint = yield from self.checkpoint(lane)
        return at, got, self.reader_is_past(checkpoint, at)

    def reader_is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return self.is_past(checkpoint, at)

    def reload(self, claim: int, lane: str, offset: int) -> Step:
        at = yield from self.load(lane)
        table = yield from self.table(self.topic("p"))
        if self.is_gone(table):
            yield Said("seen", ("a reader met a tombstone",))
            return None, offset
        got = tuple(b for b in table.batches if (b.part, b.claim) == ("p", claim))
        del table
        offset = yield from self.give(offset, got)
        return at, offset

    def is_gone(self, table: Table) -> bool:
        """A tombstone is not a table without rows: the topic is gone, and so is what was split."""
        return table.gone

    def give(self, offset: int, got: tuple[Batch, ...]) -> Step:
        """What is below its offset it has: a table may hold more than the checkpoint says."""
        records = tuple((b.base + n, r) for b in got for n, r in enumerate(b.records) if b.base + n >= offset)
        if records:
            yield Said("given", ("p", offset, records))
            offset = records[-1][0] + 1
        return offset

    # Split

    def table(self, topic: str) -> Step:
        found = yield Get(("table", topic))
        return Table() if found is None else found

    def swap(self, key: tuple[str, str], base: Any, new: Any) -> Step:
        """One conditional PUT. In doubt: look. Returns what stands afterwards: ours, or a later one."""
        while True:
            answer = yield Swap(key, base.version, new)
            if answer == OK:
                return new
            found = yield Get(key)
            if found is not None and found.version > base.version:
                return found

    def splitter(self, who: str, lane: str, rounds: int) -> Actor:
        while rounds:
            objects = yield Snapshot()
            work = self.plan(dict(objects), lane)
            del objects
            if work is not None:
                yield from self.split(who, lane, *work)
            del work
            rounds -= 1

    def plan(self, objects: Objects, lane: str) -> Any:
        """From `until` to the first empty place, and never the newest entry. At once, although it is many requests:
        nothing changes in a place that is filled."""
        base: Checkpoint = objects.get(("checkpoint", lane), Checkpoint())
        at = Stand(base.until, base.until, base.edge, base.claims)
        end = next(
            n for n in range(base.until, len(objects) + 1 + base.until) if Place(lane, n) not in objects
        )
        batches, left, kept, goes = [], [], set(base.kept), []
        for seq in range(base.until, self.split_end(end)):
            entry: Entry = objects[Place(lane, seq)]
            valid = self.is_valid(entry, at.edge)
            if valid:
                batches += [b for b in entry.batches if not at.claim(b.part, b.claim).sealed]
            else:
                kept.add(seq)
                left += [(Place(lane, seq), self.left_of(entry))] if entry.kind == DATA else []
            goes += [Place(lane, seq)] if self.may_go(entry, valid) else []
            at = self.behind(at, entry)
        if at.next <= base.until:
            return None
        new = Checkpoint(base.version + 1, "", at.next, at.edge, at.claims, frozenset(kept))
        return base, new, tuple(batches), tuple(left), tuple(goes)

    def may_go(self, entry: Entry, valid: bool) -> bool:
        """Valid data, nothing else."""
        return valid

    def split_end(self, end: int) -> int:
        return end - 1

    def left_of(self, void: Entry) -> Entry:
        """A lost race leaves no megabytes. The place stays taken."""
        return Entry(VOID, void.id, void.prev)

    def split(
        self, who: str, lane: str, base: Checkpoint, new: Checkpoint, batches: Any, voids: Any, goes: Any
    ) -> Step:
        """Voids, tables, checkpoint, deletes: in that order, and each is made sure of before the next."""
        while voids:
            answer = yield Put(*voids[0])
            voids = voids[1:] if answer == OK else voids
            del answer
        topics = tuple(t for t in self.topics() if any(self.topic(b.part) == t for b in batches))
        yield from self.fill_tables(who, topics, batches)
        del batches
        stands = yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))
        if stands.until >= new.until:
            yield Said("seen", ("split",))
            del stands, base, new, topics, voids
            yield from self.remove(goes)

    def fill_tables(self, who: str, topics: tuple[str, ...], batches: tuple[Batch, ...]) -> Step:
        """What a table has of a claim already is known by its offsets: a splitter before us may have died in
        between."""
        while topics:
            base = yield from self.table(topics[0])
            more = tuple(
                b for b in batches if self.topic(b.part) == topics[0] and b.base >= base.end(b.part, b.claim)
            )
            if more and not base.gone:
                new = base._replace(
                    version=base.version + 1, nonce=who, batches=self.filed(base.batches + more)
                )
                stands = yield from self.swap(("table", topics[0]), base, new)
                if stands == new:
                    topics = topics[1:]
                del stands, new
            else:
                topics = topics[1:]
            del base, more

    def filed(self, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        return tuple(sorted(batches))

    def remove(self, places: tuple[Place, ...]) -> Step:
        """In any order."""
        while places:
            which, answer = yield OneOf(tuple(Delete(place) for place in places))
            if answer == OK:
                places = places[:which] + places[which + 1 :]
            del which, answer

    # Deleting the topic of p

    def deleter(self, who: str) -> Actor:
        """No claim any more, then a seal of every claim there is, then the tombstone."""
        topic = self.topic("p")
        known = yield from self.close_claims(who, topic)
        yield from self.seal_all(who, known)
        yield Said("ended", tuple(part for part in self.parts if self.topic(part) == topic))
        del known
        while True:
            base = yield from self.table(topic)
            new = Table(base.version + 1, who, gone=True)
            stands = yield from self.swap(("table", topic), base, new)
            if stands.gone:
                return
            del base, new, stands

    def close_claims(self, who: str, topic: str) -> Step:
        known = yield from self.read_claims(topic)
        while not (known and known[-1].closed):
            found = yield from self.create(
                Place(f"claims/{topic}", len(known)), Claims((who, len(known)), closed=True)
            )
            known = (*known, found)
            del found
        return known

    def seal_all(self, who: str, known: tuple[Claims, ...]) -> Step:
        todo = tuple(claim for part in self.parts if (claim := self.newest(known, part)))
        lanes = tuple(sorted({claim.lane for claim in todo}))
        while lanes:
            wanted = tuple(claim for claim in todo if claim.lane == lanes[0])
            yield from self.ended(who, Writer(""), wanted)
            lanes = lanes[1:]
            del wanted


def state(ups: tuple[Upload, ...], which: int, new: str) -> tuple[Upload, ...]:
    return (*ups[:which], ups[which]._replace(state=new), *ups[which + 1 :])


def records_of(ups: tuple[Upload, ...]) -> tuple[str, ...]:
    return tuple(record for up in ups for batch in up.entry.batches for record in batch.records)


def is_atomic(record: str) -> bool:
    return record.endswith("&")
