"""Who remembers a lane claims partitions of it without a look.

What differs from `lost_transfers`, whose rules hold otherwise:

* A process *remembers* lanes as they stood at any moment before, and where partitions ended then. Who has created a topic
  remembers that nobody has put anything where it begins. The engine forgets after a second. Here nobody does: no clock is
  right, so what is remembered may be of any age.
* It puts its transfer right behind the last entry that it remembers, with one request: a *guess*. If the place is taken, or
  nobody answers, it reads the lane, and takes what stands of its own.
* Behind it the checkpoint is asked, as behind every entry that somebody puts at a lane's end: it must not know of an entry
  that was in this place before.
* Who has claimed *says* later what the lane holds, in its checkpoint, if every claim there has ended: of lanes that nobody
  owns nobody else would. If the checkpoint is another one than it has read the lane by, it reads the lane again.
* A claim that a checkpoint says has gone on elsewhere is looked for no further in that lane.
* A transfer that a checkpoint knows may be deleted (`erase`).

Who claims reads many objects with one look: what comes between these reads is searched in `transfers`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.lanes import SEAL, Batch, Entry, Own, Place, Step, Writer
from tests.model.lanes_judge import Log
from tests.model.lives import at_once
from tests.model.lost_transfers import LostTransfers
from tests.model.places import ADOPT, Checkpoint, PlaceJudge, Stand, Tail, after, split_over, standing
from tests.model.search import Violation
from tests.model.store import OK, Begin, Create, Delete, Get, Look, Objects, OneOf, Put
from tests.model.transfers import BY_FENCE, TRANSFER


class Mind(NamedTuple):
    """A lane as it was read once. `version`, `until`: of the checkpoint that it was read by. `kept`: the places without data
    that counts."""

    lane: str
    at: Stand
    version: int = 0
    until: int = 0
    kept: frozenset[int] = frozenset()


class Memory(NamedTuple):
    """Of a process. `claimed`: the lane into which it has put its last transfer."""

    minds: tuple[Mind, ...] = ()
    tails: tuple[Tail, ...] = ()
    claimed: str = ""

    def of(self, lane: str) -> Mind | None:
        return next((mind for mind in self.minds if mind.lane == lane), None)

    def having(self, new: Mind) -> Memory:
        others = (mind for mind in self.minds if mind.lane != new.lane)
        return self._replace(minds=tuple(sorted((*others, new), key=lambda mind: mind.lane)))


class Gone(NamedTuple):
    """What was deleted."""

    entry: Entry


class Guesses(LostTransfers):
    """The rules that hold."""

    words = "cmts"
    """Of a process: `c` has created the topic, `m` remembers all lanes, `t` where partitions end, `s` says what it knows."""

    def does(self, who: str, at: Writer, word: str) -> Step:
        memory = self.memory(at)
        if word == "c":
            new = Mind("G", Stand(0, 0, None, (), 0))
            memory = Memory((new,), tuple(self.first(part) for part in self.parts))
        elif word == "m":
            minds = yield Look(self.minds_now)
            memory = memory._replace(minds=minds)
        elif word == "t":
            tails = yield Look(self.tails_now, (self.parts,))
            memory = memory._replace(tails=tails)
        else:
            memory = yield from self.say(who, memory)
        return at._replace(memory=memory)

    def memory(self, at: Writer | None) -> Memory:
        return (at and at.memory) or Memory()

    # Reading, at once

    def minds_now(self, objects: Objects) -> tuple[Mind, ...]:
        lanes = {at[0] for at, what in objects.items() if is_entry(at, what)}  # type: ignore[index]
        return tuple(self.mind_now(objects, lane) for lane in sorted(lanes | {"G"}))

    def mind_now(self, objects: Objects, lane: str) -> Mind:
        base = objects.get(("checkpoint", lane), Checkpoint())
        at, kept = standing(self, objects, lane, set(base.kept))
        return Mind(lane, at, base.version, base.until, frozenset(kept))

    def read_lane(self, lane: str) -> Step:
        mind = yield Look(self.mind_now, (lane,))
        return mind.at

    def load_all(self, parts: tuple[str, ...]) -> Step:
        tails = yield Look(self.tails_now, (parts,))
        return tails

    def tails_now(self, objects: Objects, parts: tuple[str, ...]) -> tuple[Tail, ...]:
        return tuple(self.chain_now(objects, part)[0] for part in parts)

    def chain_now(self, objects: Objects, part: str) -> tuple[Tail, tuple[Batch, ...]]:
        _, tail, got = at_once(objects, self.load_chain(part))
        return tail, got

    def read_for(self, tail: Tail) -> Step:
        found = yield from self.checkpoint(tail.lane)
        at = Stand(found.next, found.next, found.edge, found.claims, found.ended, found.gone)
        if self.says_enough(at, tail):
            yield Said("seen", ("a checkpoint says enough",))
            return at
        del found, at
        at = yield from self.read_lane(tail.lane)
        return at

    def says_enough(self, at: Stand, tail: Tail) -> bool:
        return at.claim(tail.part, tail.epoch).left

    def follower(self, who: str, rounds: int) -> Actor:
        """Follows p through lanes, in which nobody seals it, and goes on where it stood in the one that it is in."""
        tail, offset, mind = self.first("p"), 0, None
        while rounds:
            need = yield Begin()
            while True:
                if mind is None or mind.lane != tail.lane:
                    mind = yield Look(self.mind_now, (tail.lane,))
                else:
                    mind = yield from self.read_on(mind)
                known = mind.at.claim(tail.part, tail.epoch)
                if self.is_stale(known, tail):
                    tail, got = yield Look(self.chain_now, ("p",))
                    mind, known = None, None
                else:
                    tail, got = self.along(tail, known)
                offset = yield from self.give(offset, got)
                if known is not None and known.moved is None:
                    break
                tail = tail if known is None else after(tail, known.moved)
            del known, got
            yield Said("end", ("p", offset, need))
            rounds -= 1

    def read_on(self, mind: Mind) -> Step:
        """What was added; or all of it, if something was emptied from there on."""
        at = mind.at
        while True:
            found = yield Get(Place(mind.lane, at.next))
            if found is None:
                break
            at = self.behind(at, found)
        checkpoint = yield from self.checkpoint(mind.lane)
        if checkpoint.until <= mind.at.next:
            return mind._replace(at=split_over(at, checkpoint.until))
        yield Said("seen", ("a follower reads again",))
        del at, checkpoint
        mind = yield Look(self.mind_now, (mind.lane,))
        return mind

    # Claims

    def take(self, who: str, at: Writer, parts: str) -> Step:
        """What is remembered first: those are claimed if nothing has come of them since."""
        tails = tuple(one for one in self.memory(at).tails if one.part in parts and self.may_recall(at, one))
        while tails:
            same = tuple(one for one in tails if one.lane == tails[0].lane)
            tails = tuple(one for one in tails if one not in same)
            if who in BY_FENCE:
                same = yield from self.ended(who, at, same)
                at = yield from self.claim_all(who, at, same)
            else:
                at = yield from self.transfer(who, at, same, True)
            del same
        at = at._replace(memory=self.memory(at)._replace(tails=()))
        at = yield from super().take(who, at, parts)
        return at

    def may_recall(self, at: Writer, tail: Tail) -> bool:
        return tail.open and not tail.doubt and tail.lane not in ("", at.lane)

    def transfer(self, who: str, at: Writer, wanted: tuple[Tail, ...], exact: bool = False) -> Step:
        lane = wanted[0].lane
        mind, in_doubt = self.memory(at).of(lane), False
        is_guess = mind is not None
        while True:
            if mind is None:
                mind = yield Look(self.mind_now, (lane,))
            won = self.stands(who, at, wanted, mind) if in_doubt else ()
            entry, own = self.moving(who, at, self.left(wanted, mind, exact), mind.at)
            if is_guess and not own:
                mind, is_guess = None, False
                continue
            if not own and not won:
                yield Said("seen", ("another's claim",))
                return at
            seq, at = mind.at.next, at._replace(ids=at.ids + 1)
            entry, found = entry._replace(id=(who, "transfer", at.ids), known=seq), None
            if own:
                answer = yield Create(Place(lane, seq), entry)
                if answer != OK:
                    found = yield Get(Place(lane, seq))
                is_there = answer == OK or (found is not None and found.id == entry.id)
                if not is_there:
                    in_doubt = found is None
                    yield Said("seen", ("a claim in doubt" if in_doubt else "a place is taken",))
                    mind, is_guess = self.read_again(mind, found), False
                    del answer, found, entry, own, won, is_there
                    continue
                del answer, is_there
            began = seq if is_guess else mind.at.start
            checkpoint = yield from self.checkpoint(lane)
            is_known = bool(own) and self.knows(checkpoint, seq)
            if not is_known and not self.was_emptied(checkpoint, began):
                yield Said("seen", ("guessed" if is_guess else "claimed",))
                return self.having_claimed(at, mind, entry, (*own, *won))
            yield Said("seen", (f"{'a guess' if is_guess else 'a claim'} is not believed",))
            mind, is_guess, in_doubt = None, False, True
            del checkpoint, found, entry, own, won

    def read_again(self, mind: Mind, found: Entry | None) -> Mind | None:
        """Where it stands who has found another's entry in its place. None: it reads the lane."""
        return None

    def left(self, wanted: tuple[Tail, ...], mind: Mind, exact: bool) -> tuple[Tail, ...]:
        """Of those that are remembered, those of which nothing has come since."""
        if not exact:
            return wanted
        return tuple(one for one in wanted if self.where(one, mind.at.claim(one.part, one.epoch)) == one)

    def stands(self, who: str, at: Writer, wanted: tuple[Tail, ...], mind: Mind) -> tuple[Own, ...]:
        """What an earlier try has claimed, of which nobody was told."""
        found = ((one.part, mind.at.claim(one.part, one.epoch).moved) for one in wanted)
        return tuple(
            Own(part, fence.epoch, fence.base, fence.base, fence.id[1] + 1)
            for part, fence in found
            if fence is not None and (fence.id[0], fence.lane) == (who, at.lane)
        )

    def goes_on_behind(self, objects: Objects, lane: str, seq: int) -> bool:
        return any(is_entry(at, what) and at[0] == lane and at[1] > seq for at, what in objects.items())  # type: ignore[index]

    def was_emptied(self, checkpoint: Checkpoint, began: int) -> bool:
        """Whether a place may have been, from that one on: where the reading began, or which was guessed."""
        return checkpoint.until > began

    def knows(self, checkpoint: Checkpoint, seq: int) -> bool:
        """Whether it knows of an entry in the place into which one was put just now."""
        return checkpoint.next > seq

    def having_claimed(self, at: Writer, mind: Mind, entry: Entry, own: tuple[Own, ...]) -> Writer:
        if entry.moves:
            mind = mind._replace(at=self.behind(mind.at, entry), kept=mind.kept | {mind.at.next})
        memory = self.memory(at).having(mind)._replace(claimed=mind.lane)
        return at._replace(own=tuple(sorted((*at.own, *own))), memory=memory)

    # Seals and adoptions, by what is remembered, too

    def ended(self, who: str, at: Any, wanted: Any) -> Step:
        if at is not None and who not in BY_FENCE:
            done = yield from super().ended(who, at, wanted)
            return done
        wanted = tuple(one for one in wanted if self.may_take(one))
        done, wanted = tuple(t for t in wanted if not t.open), tuple(t for t in wanted if t.open)
        while wanted:
            same = tuple(tail for tail in wanted if tail.lane == wanted[0].lane)
            wanted = tuple(tail for tail in wanted if tail.lane != same[0].lane)
            seal = Entry(SEAL, (who, "seal"), seals=frozenset((one.part, one.epoch) for one in same))
            end = yield from self.put_behind(self.memory(at).of(same[0].lane), same[0].lane, seal, same)
            done += self.behind_seal(same, end)
            del same, seal, end
        return done

    def adopt(self, who: str, at: Writer) -> Step:
        end = yield from self.put_behind(self.memory(at).of(at.lane), at.lane, Entry(ADOPT, (who, "adopt")))
        yield Said("seen", ("adopted",))
        return at._replace(seq=end.next, prev=end.edge, own=self.carried_on(end))

    def put_behind(self, mind: Mind | None, lane: str, entry: Entry, wanted: tuple[Tail, ...] = ()) -> Step:
        """At the lane's end: what was added since is read, and a listing shows that nothing stands behind."""
        tries = 0
        while True:
            if mind is not None:
                mind = yield Look(self.added, (mind,))
            if mind is None:
                mind = yield Look(self.mind_now, (lane,))
            if wanted and all(self.has_ended(mind.at, one) for one in wanted):
                return mind.at
            seq, tries = mind.at.next, tries + 1
            mine = self.signed(entry._replace(id=(*entry.id, seq, tries), known=seq), mind.at)
            if mine is None:
                return mind.at
            found = yield from self.create(Place(lane, seq), mine)
            if found.id == mine.id:
                checkpoint = yield from self.checkpoint(lane)
                is_known = self.knows(checkpoint, seq) and self.seals_ask()
                if not is_known and not self.was_emptied(checkpoint, mind.at.start):
                    return self.behind(mind.at, mine)
                yield Said("seen", (f"a {entry.kind} is not believed",))
                mind = None
                del checkpoint, is_known
            del mine, found

    def seals_ask(self) -> bool:
        return True

    def added(self, objects: Objects, mind: Mind) -> Mind | None:
        """The lane as it is now, read on from there; None if that cannot be told from there."""
        at = mind.at._replace(start=mind.at.next)
        while (found := objects.get(Place(mind.lane, at.next))) is not None:
            at = self.behind(at, found)
        checkpoint = objects.get(("checkpoint", mind.lane), Checkpoint())
        if self.was_emptied(checkpoint, mind.at.next) or self.goes_on_behind(objects, mind.lane, at.next):
            return None
        return mind._replace(at=at)

    # Checkpoints of lanes that nobody owns

    def say(self, who: str, memory: Memory) -> Step:
        mind = memory.of(memory.claimed)
        if mind is None:
            return memory
        base = yield from self.checkpoint(mind.lane)
        if not self.is_read_by(base, mind):
            yield Said("seen", ("read again to be said",))
            mind = yield Look(self.mind_now, (mind.lane,))
        at, version = mind.at, base.version + 1
        if base.next >= at.next or at.gone >= 0 or not all(known.sealed for known in at.claims):
            return memory
        new = Checkpoint(version, who, mind.until, at.next, at.edge, at.claims, mind.kept, at.ended)
        stands = yield from self.swap(("checkpoint", mind.lane), base, new)
        if stands == new:
            yield Said("seen", ("said",))
            mind = mind._replace(version=version)
        return memory.having(mind)

    def is_read_by(self, base: Checkpoint, mind: Mind) -> bool:
        return base.version == mind.version

    # Damage

    def erase(self, who: str, lane: str, rounds: int) -> Actor:
        """Deletes a transfer that the checkpoint knows. (What it was stays known to the judge.)"""
        while rounds:
            found = yield Look(self.known_twice, (lane,))
            if found:
                which, _ = yield OneOf(tuple(Put(("gone", *place), Gone(entry)) for place, entry in found))
                yield Delete(found[which][0])
                yield Said("seen", ("an entry is gone",))
                del which, _
            del found
            rounds -= 1

    def known_twice(self, objects: Objects, lane: str) -> tuple[tuple[Place, Entry], ...]:
        reach = objects.get(("checkpoint", lane), Checkpoint()).next
        places = [Place(lane, seq) for seq in range(reach)]
        return tuple((at, objects[at]) for at in places if at in objects and objects[at].kind == TRANSFER)


def is_entry(key: Any, what: Any) -> bool:
    """Of a lane."""
    return isinstance(key, Place) and isinstance(what, Entry)


class GuessJudge(PlaceJudge):
    """Goes by what was deleted, as if it were there."""

    def view(self, objects: Objects, part: str) -> tuple[Log, Violation | None]:
        whole = dict(objects)
        whole.update({Place(*key[1:]): what.entry for key, what in objects.items() if isinstance(what, Gone)})  # type: ignore[index]
        return super().view(whole, part)
