"""Many partitions are claimed with one entry: it ends their claims and says where they go on.

What differs from `places`, whose rules hold otherwise:

* A *transfer* is a seal that holds, for each claim that it ends, the fence with the next claim. The fence has the place in
  the partition's chain that it would have there: behind the last part. Its owner computes it from the lane as it stands
  right before the entry, so nothing comes between. Takers contend for the old lane, not for the partition's chain.
* The first entry that names a claim decides: a transfer where it goes on, a seal that it goes on in the partition's chain.
  Who wants to write there, a shared writer or one without a lane, puts a seal, and then his fence, as ever.
* With `born`, a partition that nobody has written is in a lane as well, G, which nobody owns: its first claims are
  transfers there. One entry claims all partitions of a new topic.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import Said
from tests.model.lanes import Entry, Own, Place, Step, Writer
from tests.model.places import Known, Places, Segment, Stand, Tail
from tests.model.store import Get

TRANSFER = "transfer"
BY_FENCE = frozenset("de")
"""Processes that take partitions over with a seal and a fence, as one does that has records in its fence."""


class Transfers(Places):
    """The rules that hold."""

    def __init__(self, born: bool = False, **rules: Any) -> None:
        super().__init__(**rules)
        self.born = born

    def first(self, part: str) -> Tail:
        return Tail(part, lane="G", open=True, alive=True) if self.born else Tail(part)

    def owned(self, who: str, lane: str) -> tuple[tuple[Own, ...], dict[Any, Any]]:
        if not self.born:
            return super().owned(who, lane)
        moves = tuple((part, 0, Segment((who, 0), 1, 0, lane=lane)) for part in self.parts)
        entry = Entry(
            TRANSFER, (who, "transfer", 0), None, (), frozenset((part, 0) for part in self.parts), moves
        )
        return tuple(Own(part, 1, 0, 0, seq=1) for part in self.parts), {Place("G", 0): entry}

    # A lane

    def behind(self, at: Any, entry: Entry) -> Any:
        if entry.kind != TRANSFER:
            return super().behind(at, entry)
        claims = {(c.part, c.claim): c for c in at.claims}
        for part, claim, fence in entry.moves:
            was = claims.get((part, claim)) or Known(part, claim)
            if self.counts(was):
                claims[part, claim] = was._replace(sealed=True, left=True, moved=fence)
        return Stand(at.start, at.next + 1, entry.id, tuple(sorted(claims.values())), at.ended)

    def counts(self, was: Known) -> bool:
        """The first that names a claim decides."""
        return not was.left

    def moves_edge(self, entry: Entry, valid: bool) -> bool:
        return entry.kind == TRANSFER or super().moves_edge(entry, valid)

    # Claims

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        """Those of a process with a lane go on there, with the very entry that ends their claims."""
        if at is None or who in BY_FENCE:
            done = yield from super().ended(who, at, wanted)
            return done
        return wanted
        yield

    def behind_seal(self, tails: tuple[Tail, ...], end: Stand) -> tuple[Tail, ...]:
        """Who wanted to end a claim and finds it transferred begins again from there."""
        here = tuple(one for one in tails if not self.is_elsewhere(end.claim(one.part, one.epoch)))
        return super().behind_seal(here, end)

    def is_elsewhere(self, known: Known) -> bool:
        return known.moved is not None

    def claim_all(self, who: str, at: Writer, tails: tuple[Tail, ...]) -> Step:
        if who in BY_FENCE:
            at = yield from super().claim_all(who, at, tails)
            return at
        in_lanes, tails = tuple(t for t in tails if t.open), tuple(t for t in tails if not t.open)
        while in_lanes:
            same = tuple(tail for tail in in_lanes if tail.lane == in_lanes[0].lane)
            in_lanes = tuple(tail for tail in in_lanes if tail.lane != same[0].lane)
            at = yield from self.transfer(who, at, same)
            del same
        at = yield from super().claim_all(who, at, tails)
        return at

    def transfer(self, who: str, at: Writer, wanted: tuple[Tail, ...]) -> Step:
        """Read the lane to its first empty place, put the transfer there, THEN ask the checkpoint. If that has passed the
        place where the reading began, begin again. What others were faster with is left out."""
        lane = wanted[0].lane
        while True:
            end = yield from self.load(lane)
            won: tuple[Own, ...] = ()
            while True:
                found = yield Get(Place(lane, end.next))
                if found is None:
                    entry, own = self.moving(who, at, wanted, end)
                    if not own:
                        break
                    found = yield from self.create(Place(lane, end.next), entry)
                    if found.id == entry.id:
                        end, won = self.behind(end, found), own
                        break
                    end = self.behind(end, found)
                    yield from self.outrun(lane, end, entry)
                    del entry, own, found
                    continue
                end = self.behind(end, found)
                del found
            checkpoint = yield from self.checkpoint(lane)
            if not self.transfer_is_past(checkpoint, end):
                if not won:
                    yield Said("seen", ("another's claim",))
                return at._replace(own=tuple(sorted((*at.own, *won))))
            yield Said("seen", ("a transfer began again",))
            del checkpoint, end, won, found

    def transfer_is_past(self, checkpoint: Any, end: Any) -> bool:
        return self.is_past(checkpoint, end)

    def moving(
        self, who: str, at: Writer, wanted: tuple[Tail, ...], end: Stand
    ) -> tuple[Entry, tuple[Own, ...]]:
        """The entry for the next place of the lane, and what is ours once it stands."""
        moves, own = [], []
        for tail in wanted:
            known = end.claim(tail.part, tail.epoch)
            if not self.counts(known) or self.is_stale(known, tail):
                continue
            tail = self.where(tail, known)
            base = self.base(tail)
            fence = Segment((who, tail.seq), tail.epoch + 1, base, (), base, at.lane, at.seq)
            moves.append((tail.part, tail.epoch, fence))
            own.append(Own(tail.part, fence.epoch, base, base, tail.seq + 1))
        seals = frozenset((part, claim) for part, claim, _ in moves)
        entry = Entry(TRANSFER, (who, "transfer", at.lane, end.next), end.edge, (), seals, tuple(moves))
        return entry, tuple(own)

    def where(self, tail: Tail, known: Known) -> Tail:
        """Behind the last part, as the lane stands right before the entry."""
        return self.along(tail, known)[0]
