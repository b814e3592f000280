"""Consumer groups of embedded readers: who may save the position of which partition, without a clock.

One document says who is a member, which member owns which partition since which generation, and from which position. A
member has a slot: an object of its own, which only it writes and which holds the positions it has saved, each with the
generation since which it owns the partition. To save is one swap of the own slot, which nobody else wants. Who takes a
partition away from a living member is that member itself: it stops, and moves the partition in the document together with
its last position. Who takes it away from another one swaps that one's slot first: from then on the other can save nothing
any more, so what its slot holds is final and may be folded into the document.

Nothing here says when a member is dead: a reaper comes at any time, which is what a clock that says anything does. Slots
are taken again, never deleted: a request that comes late, or twice, meets a version that was replaced.

Each rule is a method of `Groups`, so that `groups_runs` can break one and leave the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.search import Violation
from tests.model.store import OK, UNKNOWN, Create, Get, Objects, Request, Swap

Step = Generator[Any, Any, Any]
DOC = "doc"
Owner = tuple[int, int]
"""A slot, and the generation since which it owns the partition."""


class Tag(NamedTuple):
    """A saved position: it counts while the document says that this slot owns it since that generation."""

    partition: int
    generation: int
    offset: int


class Slot(NamedTuple):
    version: int
    life: str | None
    saved: tuple[Tag, ...] = ()


class Doc(NamedTuple):
    version: int
    by: str
    members: tuple[tuple[int, str], ...]
    owners: tuple[Owner | None, ...]
    positions: tuple[int, ...]


def slot_key(slot: int) -> tuple[str, int]:
    return ("slot", slot)


def position(doc: Doc, slots: dict[int, Slot], partition: int) -> int:
    """What was saved last: by the owner since it owns it, or before that."""
    owner = doc.owners[partition]
    if owner is not None and owner[0] in slots:
        for tag in slots[owner[0]].saved:
            if (tag.partition, tag.generation) == (partition, owner[1]):
                return tag.offset
    return doc.positions[partition]


def wanted(doc: Doc) -> tuple[int | None, ...]:
    """Who should own what: evenly, and nothing moves that need not. Everybody computes the same."""
    slots = [slot for slot, _ in doc.members]
    if not slots:
        return (None,) * len(doc.owners)
    most = -(-len(doc.owners) // len(slots))
    counts, found = dict.fromkeys(slots, 0), list[int | None]()
    for owner in doc.owners:
        keeps = owner is not None and counts.get(owner[0], most) < most
        found.append(owner[0] if keeps and owner is not None else None)
        if keeps and owner is not None:
            counts[owner[0]] += 1
    for place, slot in enumerate(found):
        if slot is None:
            found[place] = min(slots, key=lambda one: (counts[one], one))
            counts[found[place] or 0] += 1
    return tuple(found)


class Groups:
    """The rules that hold."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions

    # What a swap of the document says

    def settled(self, key: Any, old: Any, new: Any) -> Step:
        """One swap and, in doubt, a look. True: ours stands. Asked again until it is known."""
        while True:
            answer = yield self.swap(key, old, new)
            if answer == OK:
                return True
            found = yield Get(key)
            if found == new:
                return True
            if found != old:
                return False
            del answer, found

    def swap(self, key: Any, old: Any, new: Any) -> Request:
        return Create(key, new) if old is None else Swap(key, old.version, new)

    def folded(self, doc: Doc, slot: int, held: Slot | None) -> Doc:
        """What the slot has saved of all that it owns is now in the document; nobody owns it."""
        slots = {} if held is None else {slot: held}
        mine = [p for p, owner in enumerate(doc.owners) if owner is not None and owner[0] == slot]
        return doc._replace(
            members=tuple(one for one in doc.members if one[0] != slot),
            owners=tuple(None if p in mine else owner for p, owner in enumerate(doc.owners)),
            positions=tuple(
                position(doc, slots, p) if p in mine else was for p, was in enumerate(doc.positions)
            ),
        )

    def shared_out(self, doc: Doc, by: str) -> Doc:
        """The next version. What nobody owns goes to whom it should belong to."""
        following = doc._replace(version=doc.version + 1, by=by)
        goals = wanted(following)
        owners = tuple(
            owner if owner is not None or goal is None else (goal, following.version)
            for owner, goal in zip(doc.owners, goals, strict=True)
        )
        return following._replace(owners=owners)

    # Members

    def member(self, who: str, slot: int, saves: int, leaves: bool) -> Actor:
        """Takes a slot, joins, saves a few times what it owns, gives up what should be another's, and leaves, or dies."""
        held = yield from self.take_slot(who, slot)
        joined = yield from self.join(who, slot, held)
        doc = held if joined else None
        del joined
        while saves and doc is not None:
            saves -= 1
            doc = yield Get(DOC)
            mine = self.owned(doc, who, slot)
            if mine is None:
                yield Said("seen", ("found out that it was replaced",))
                return
            found = tuple((p, since, position(doc, {slot: held}, p)) for p, since in mine)
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
                yield Said("seen", ("gave up what should be another's",))
                yield from self.give(who, slot, held, doc, moves)
            del moves
        if leaves and doc is not None:
            yield from self.leave(who, slot, held)

    def owned(self, doc: Doc, who: str, slot: int) -> tuple[tuple[int, int], ...] | None:
        """None: it is no member any more."""
        if (slot, who) not in doc.members:
            return None
        return tuple(
            (p, owner[1]) for p, owner in enumerate(doc.owners) if owner is not None and owner[0] == slot
        )

    def take_slot(self, who: str, slot: int) -> Step:
        """Whoever had it before can save nothing any more. What that one has saved stays in it until it is folded."""
        while True:
            held = yield Get(slot_key(slot))
            new = Slot(1, who) if held is None else self.taken(held, who)
            done = yield from self.settled(slot_key(slot), held, new)
            if done:
                return new
            del held, new, done

    def taken(self, held: Slot, who: str | None) -> Slot:
        return Slot(held.version + 1, who, held.saved)

    def join(self, who: str, slot: int, held: Slot) -> Step:
        """One swap: what the slot's former life owned is folded, what nobody owns is shared out. False: its slot was taken
        from it meanwhile, and others may have folded it."""
        while True:
            doc = yield Get(DOC)
            old = Doc(0, "", (), (None,) * self.partitions, (0,) * self.partitions) if doc is None else doc
            if (slot, who) in old.members:
                return True
            now = yield Get(slot_key(slot))
            if now.life != who:
                return False
            folded = self.folded(old, slot, held)
            new = self.shared_out(folded._replace(members=tuple(sorted((*folded.members, (slot, who))))), who)
            done = yield from self.settled(DOC, doc, new)
            if done:
                return True
            del doc, old, now, folded, new, done

    def save(self, who: str, slot: int, held: Slot, tags: tuple[Tag, ...]) -> Step:
        """One swap of the own slot. In doubt: look. None: refused, another has the slot. If nobody can say whether it came,
        the caller is told so, and the next save meets whichever of the two is there."""
        while True:
            new = Slot(held.version + 1, who, tags)
            answer = yield self.swap(slot_key(slot), held, new)
            if answer == OK:
                yield Said("saved", (who, tags))
                return new
            found = yield from self.look(slot, answer, new)
            if found == new:
                yield Said("saved", (who, tags))
                return new
            if found is None or found.life != who:
                came = found is not None and self.came(found, tags)
                yield Said("saved" if came else "refused", (who, tags))
                return None
            if found == held and answer == UNKNOWN:
                yield Said("seen", ("a save in doubt",))
                return held
            held = found
            del new, answer, found

    def came(self, found: Slot, tags: tuple[Tag, ...]) -> bool:
        """Who takes a slot keeps what it holds: so it shows whether our save came before we were replaced."""
        return found.saved == tags

    def look(self, slot: int, answer: Any, new: Slot) -> Step:
        found = yield Get(slot_key(slot))
        return found

    def to_give(self, doc: Doc, who: str, slot: int) -> tuple[tuple[int, int], ...]:
        return tuple(
            (p, goal)
            for p, (owner, goal) in enumerate(zip(doc.owners, wanted(doc), strict=True))
            if owner is not None and owner[0] == slot and goal is not None and goal != slot
        )

    def give(self, who: str, slot: int, held: Slot, doc: Doc, moves: tuple[tuple[int, int], ...]) -> Step:
        """The document names the next owner, with our last position. Nothing is saved until it is known what came of it."""
        new = self.given(doc, who, slot, held, moves)
        yield from self.settled(DOC, doc, new)

    def given(self, doc: Doc, who: str, slot: int, held: Slot, moves: tuple[tuple[int, int], ...]) -> Doc:
        goals = dict(moves)
        version = doc.version + 1
        return doc._replace(
            version=version,
            by=who,
            owners=tuple((goals[p], version) if p in goals else owner for p, owner in enumerate(doc.owners)),
            positions=tuple(
                position(doc, {slot: held}, p) if p in goals else was for p, was in enumerate(doc.positions)
            ),
        )

    def leave(self, who: str, slot: int, held: Slot) -> Step:
        """It saves nothing any more, so what it holds is final: folded by itself."""
        while True:
            doc = yield Get(DOC)
            if self.owned(doc, who, slot) is None:
                return
            new = self.shared_out(self.folded(doc, slot, held), who)
            done = yield from self.settled(DOC, doc, new)
            if done:
                yield Said("seen", ("left",))
                return
            del doc, new, done

    # Whoever believes that another is dead, rightly or not

    def reaper(self, who: str, slot: int) -> Actor:
        """Swaps the slot, so that its member can save nothing any more; then folds what it holds."""
        doc = yield Get(DOC)
        life = None if doc is None else dict(doc.members).get(slot)
        if life is None:
            return
        del doc
        held = yield from self.fence(who, slot, life)
        while True:
            doc = yield Get(DOC)
            if dict(doc.members).get(slot) != life:
                return
            new = self.shared_out(self.folded(doc, slot, held), who)
            done = yield from self.settled(DOC, doc, new)
            if done:
                yield Said("seen", ("replaced one",))
                return
            del doc, new, done

    def fence(self, who: str, slot: int, life: str) -> Step:
        """What the slot holds when that life can write it no more."""
        while True:
            held = yield Get(slot_key(slot))
            if held is None or held.life != life:
                return held
            new = self.taken(held, None)
            done = yield from self.settled(slot_key(slot), held, new)
            if done:
                return new
            del held, new, done


class Told(NamedTuple):
    """The saves that ever counted; for each partition the largest of which somebody was told, and the one that counts."""

    counted: frozenset[Tag] = frozenset()
    saved: tuple[int, ...] = ()
    now: tuple[Tag, ...] = ()


class GroupsJudge:
    """lost (a position that was saved, its member was told, counts no more), ignored (told that it is saved, and it never
    counted: a late save that was not refused), wrong start (not where the last save was), denied (told that it is refused,
    and it counts)."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def first(self) -> Told:
        return Told(saved=(0,) * self.partitions, now=tuple(Tag(p, 0, 0) for p in range(self.partitions)))

    def acked_end(self, told: Told) -> int:
        return 0

    def stored(self, told: Told, objects: Objects) -> tuple[Told, Violation | None]:
        doc = objects.get(DOC)
        if doc is None:
            return told, None
        slots = {key[1]: held for key, held in objects.items() if isinstance(key, tuple)}
        now = tuple(self.counting(doc, slots, was) for was in told.now)
        for p, tag in enumerate(now):
            if tag.offset < told.saved[p]:
                return told, ("lost", f"{told.saved[p]} of {p} was saved; {tag.offset} counts now")
        return told._replace(now=now, counted=told.counted | set(now)), None

    def counting(self, doc: Doc, slots: dict[int, Slot], was: Tag) -> Tag:
        """The save that counts now. One that was folded into the document is still the same."""
        p, owner = was.partition, doc.owners[was.partition]
        offset = position(doc, slots, p)
        held = slots[owner[0]].saved if owner is not None and owner[0] in slots else ()
        if owner is not None and Tag(p, owner[1], offset) in held:
            return Tag(p, owner[1], offset)
        return was._replace(offset=offset)

    def heard(self, told: Told, said: Said) -> tuple[Told, Violation | None]:
        match said.what, said.args:
            case "starts", (who, found):
                for p, _, offset in found:
                    if not told.saved[p] <= offset <= told.now[p].offset:
                        return told, (
                            "wrong start",
                            f"{who} is at {offset} of {p}; {told.now[p].offset} counts",
                        )
            case "saved", (who, tags):
                saved = list(told.saved)
                for tag in tags:
                    if tag not in told.counted:
                        return told, ("ignored", f"{who} is told that {tag} is saved: it never counted")
                    if tag.offset > told.now[tag.partition].offset:
                        return told, ("lost", f"{who} is told that {tag} is saved; it counts no more")
                    saved[tag.partition] = max(saved[tag.partition], tag.offset)
                return told._replace(saved=tuple(saved)), None
            case "refused", (who, tags):
                if set(tags) & set(told.now):
                    return told, ("denied", f"{who} is told that {tags} are refused, and they count")
        return told, None
