"""Groups of embedded readers: the rules that hold, and every variant with what the search must find in it.

`a0:2` is member a in slot 0: it saves twice and leaves; `a0!2` dies instead. `r0` is somebody who believes, at any time,
that whoever has slot 0 is dead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.groups import (
    DOC,
    Doc,
    Groups,
    GroupsJudge,
    Slot,
    Step,
    Tag,
    slot_key,
)
from tests.model.harness import Contrast, Holds
from tests.model.search import World
from tests.model.store import OK, Create, Delete, Get, Objects, Put, Request, Swap

_MEMBER = re.compile(r"(\w)(\d)([:!])(\d)")
_REAPER = re.compile(r"(r\w?)(\d)")


class Run(NamedTuple):
    words: str
    faults: int = 0
    partitions: int = 1
    kinds: tuple[str, ...] = ("lost", "twice", "412")

    def world(self, variant: type[Groups] = Groups) -> World:
        rules = variant(self.partitions)
        made: list[tuple[str, Callable[[], Actor]]] = []
        for word in self.words.split():
            if found := _MEMBER.fullmatch(word):
                who, slot, how, saves = found.groups()
                made.append((who, partial(rules.member, who, int(slot), int(saves), how == ":")))
            elif found := _REAPER.fullmatch(word):
                made.append((word, partial(rules.reaper, word, int(found[2]))))
            else:
                raise ValueError(word)
        return World(GroupsJudge(self.partitions), made, self.faults, self.kinds, late_arrival)


def late_arrival(request: Request, before: Objects, after: Objects) -> str | None:
    match request:
        case Create(key, _) | Swap(key, _, _) if key == DOC:
            return "the document, late"
        case Swap(_, _, Slot(_, None, _)):
            return "a late fence"
        case Swap():
            return "a late save"
    return None


# Each rule, broken: a variant overrides one method


class NoFence(Groups):
    """A member is replaced in the document alone: its slot is not swapped."""

    def fence(self, who: str, slot: int, life: str) -> Step:
        held = yield Get(slot_key(slot))
        return held


class ReadBeforeFence(Groups):
    """What a slot holds is read, and the slot is swapped whatever it holds by then."""

    def fence(self, who: str, slot: int, life: str) -> Step:
        first = yield Get(slot_key(slot))
        held = first
        while held is not None and held.life == life:
            done = yield from self.settled(slot_key(slot), held, self.taken(held, None))
            if done:
                break
            held = yield Get(slot_key(slot))
            del done
        return first


class BlindSaves(Groups):
    """A position is saved with a plain PUT."""

    def save(self, who: str, slot: int, held: Slot, tags: tuple[Tag, ...]) -> Step:
        new = Slot(held.version + 1, who, tags)
        answer = None
        while answer != OK:
            answer = yield Put(slot_key(slot), new)
        yield Said("saved", (who, tags))
        return new


class NoGeneration(Groups):
    """A position in a slot counts whenever the slot owns the partition, also if another has had it in between."""

    def member(self, who: str, slot: int, saves: int, leaves: bool) -> Actor:
        held = yield from self.take_slot(who, slot)
        joined = yield from self.join(who, slot, held)
        doc = held if joined else None
        del joined
        while saves and doc is not None:
            saves -= 1
            doc = yield Get(DOC)
            mine = self.owned(doc, who, slot)
            if mine is None:
                return
            kept = {tag.partition: tag.offset for tag in held.saved}
            found = tuple((p, since, kept.get(p, doc.positions[p])) for p, since in mine)
            del kept
            yield Said("starts", (who, found))
            if found:
                tags = tuple(Tag(p, since, offset + 1) for p, since, offset in found)
                held = yield from self.save(who, slot, held, tags)
                if held is None:
                    return
                del tags
            del mine, found
            moves = self.to_give(doc, who, slot)
            if moves:
                yield from self.give(who, slot, held, doc, moves)
            del moves
        if leaves and doc is not None:
            yield from self.leave(who, slot, held)


class GivesWithoutKnowing(Groups):
    """A partition is given up with one request, and whatever came of it, saving goes on."""

    def give(self, who: str, slot: int, held: Slot, doc: Doc, moves: tuple[tuple[int, int], ...]) -> Step:
        yield self.swap(DOC, doc, self.given(doc, who, slot, held, moves))


class GivesAnOldPosition(Groups):
    """A partition is given up with the position from which it was taken over."""

    def given(self, doc: Doc, who: str, slot: int, held: Slot, moves: tuple[tuple[int, int], ...]) -> Doc:
        return super().given(doc, who, slot, Slot(0, who), moves)


class EmptiesTheSlot(Groups):
    """Who takes a slot throws away what it holds before that is folded."""

    def taken(self, held: Slot, who: str | None) -> Slot:
        return Slot(held.version + 1, who)


class DeletesTheSlot(Groups):
    """Who has replaced a member, and folded what it had saved, deletes the slot: a late creation makes it again."""

    def reaper(self, who: str, slot: int) -> Actor:
        yield from super().reaper(who, slot)
        held = yield Get(slot_key(slot))
        while held is not None and held.life is None:
            yield Delete(slot_key(slot))
            held = yield Get(slot_key(slot))


class JoinsWithoutALook(Groups):
    """Who joins folds what its slot held, and does not look whether the slot is still its own."""

    def join(self, who: str, slot: int, held: Slot) -> Step:
        while True:
            doc = yield Get(DOC)
            old = Doc(0, "", (), (None,) * self.partitions, (0,) * self.partitions) if doc is None else doc
            if (slot, who) in old.members:
                return True
            folded = self.folded(old, slot, held)
            new = self.shared_out(folded._replace(members=tuple(sorted((*folded.members, (slot, who))))), who)
            done = yield from self.settled(DOC, doc, new)
            if done:
                return True
            del doc, old, folded, new, done


class BlindDocument(Groups):
    """The document is replaced with a plain PUT."""

    def settled(self, key: Any, old: Any, new: Any) -> Step:
        if key != DOC:
            done = yield from super().settled(key, old, new)
            return done
        answer = None
        while answer != OK:
            answer = yield Put(key, new)
        return True


class TakesWhatItHeldForLost(Groups):
    """Who finds its slot taken takes a save in doubt for refused, and does not look whether it is there."""

    def came(self, found: Slot, tags: tuple[Tag, ...]) -> bool:
        return False


class BelievesTheRefusal(Groups):
    """Precondition failed is taken for refused, without a look."""

    def look(self, slot: int, answer: Any, new: Slot) -> Step:
        if answer != OK and answer != "no answer":
            return None
        found = yield Get(slot_key(slot))
        return found


CONTRASTS = [
    Contrast(NoFence, "lost", Run("a0:2 r0")),
    Contrast(ReadBeforeFence, "lost", Run("a0:2 r0")),
    Contrast(BlindSaves, "lost", Run("a0:2 r0")),
    Contrast(NoGeneration, "wrong start", Run("a0:3 b1:2 c2:1", partitions=2)),
    Contrast(GivesWithoutKnowing, "ignored", Run("a0:2 b1:1", 1, 2)),
    Contrast(GivesAnOldPosition, "lost", Run("a0:2 b1:1", 0, 2)),
    Contrast(EmptiesTheSlot, "lost", Run("a0!2 b0:1")),
    Contrast(DeletesTheSlot, "ignored", Run("a0:1 r0", 1, kinds=("twice",))),
    Contrast(JoinsWithoutALook, "ignored", Run("a0:1 b0:2")),
    Contrast(BlindDocument, "lost", Run("a0:1 b1:1", 0, 2)),
    Contrast(TakesWhatItHeldForLost, "denied", Run("a0:1 r0", 1)),
    Contrast(BelievesTheRefusal, "denied", Run("a0:1", 1)),
]

GAVE, LEFT, REPLACED = "gave up what should be another's", "left", "replaced one"
OUT, DOUBT = "found out that it was replaced", "a save in doubt"
LATE = ("the document, late", "a late save")


def _holds(name: str, words: str, faults: int, partitions: int, *seen: str, progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, partitions), frozenset(seen), progress)


RULES = [
    _holds("two that share", "a0:2 b1:2", 1, 2, GAVE, LEFT, *LATE, progress=True),
    _holds("one, believed dead", "a0:3 r0", 2, 1, REPLACED, OUT, DOUBT, *LATE, "a late fence", progress=True),
    _holds("believed dead by two", "a0:2 r0 rr0", 1, 1, REPLACED, OUT, *LATE, "a late fence"),
    _holds("two, one believed dead", "a0:2 b1:2 r0", 0, 2, GAVE, LEFT, REPLACED, OUT),
    _holds("a slot taken again", "a0!2 b0:2", 2, 1, LEFT, OUT, *LATE, progress=True),
    _holds("taken again, and believed dead", "a0!2 b0:2 r0", 1, 1, REPLACED, OUT, *LATE),
    _holds("three, two slots", "a0:1 b1:1 c0:1", 0, 2, LEFT, OUT),
]
WIDE = [
    _holds("three and a reaper", "a0:2 b1:2 c2:1 r0", 1, 3, GAVE, LEFT, REPLACED),
    _holds("slots taken again", "a0!2 b1:2 c0:2 r1", 1, 2, GAVE, LEFT, REPLACED),
]
"""For long runs: the first million states of each."""

DEEP = [
    _holds("everything", "a0:4 b1:4 c2:3 d0:2 e1!2 r0 rr1 rs2", 3, 3, GAVE, LEFT, REPLACED, OUT, DOUBT, *LATE)
]
"""For random walks: far beyond what can be searched."""
