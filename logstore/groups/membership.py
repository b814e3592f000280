"""One member of a group: join, save, give up, replace others, leave. Each is a few requests; there is no thread here.

* To save, and to show that one lives, is one swap of the own slot. Nobody else wants it, so it meets nobody.
* One listing shows all members' slots as etags. A member whose slot has not changed for its `session_timeout`, on the
  clock of whoever looks, is replaced: its slot is swapped first, so it can save nothing any more; then what the slot holds
  is folded into the document. A clock that is wrong replaces somebody who lives, and that one finds out: nothing else.
* Who should own less gives up partitions by itself, with its last position, in one swap of the document.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from logstore.engine.host.clock import Clock
from logstore.errors import Fenced, Indeterminate, OutcomeUnknown, StoreUnavailable, UnknownTopic
from logstore.groups.documents import Document, Member, Place, Plan, Saved, Slot
from logstore.groups.stored_group import StoredGroup, slots_in
from logstore.layout.groups import SLOTS_MAX, group_slot
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import Doubts
from logstore.objects.wrappers.retrying import RetryPolicy

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 100
_RACES = RetryPolicy(ATTEMPTS_MAX, base_s=0.02, cap_s=1.0)
TOPICS_S = 30.0
"""How often somebody looks whether a topic has new partitions, or was recreated."""
LOOKS_A_SESSION = 6
LOOK_S = 5.0
"""How often a member looks at the others, at the least: as many times in a session, and so often if that is long."""
BEATS_A_SESSION = 3
HUNGRY_S = 1.0
"""Who waits for partitions that others have to give up looks at least this often."""

Change = Callable[[Document], Document | None]
"""The next version, or None if there is nothing to do. Called again when somebody else was faster, or when an answer was
lost: so it must be able to tell that it was done before."""


class Seen(NamedTuple):
    """A slot as listed: since when, on our own clock, it has not changed."""

    etag: str
    since: float


class Membership:
    """Safe for threads: one request at a time. `fenced` says why this life is over; `join` begins another."""

    def __init__(
        self,
        objects: ObjectStore,
        clock: Clock,
        rng: random.Random,
        group: str,
        *,
        name: str | None,
        topics: tuple[str, ...],
        session_timeout: float,
        find_topics: Callable[[Iterable[str]], Mapping[str, tuple[str, int]]],
    ) -> None:
        self._stored = StoredGroup(objects, group)
        self._clock = clock
        self._rng = rng
        self._group = group
        self._name = name
        self._topics = topics
        self._session_timeout = session_timeout
        self._find_topics = find_topics
        self._lock = threading.RLock()  # held during I/O: who saves waits for a look that is under way
        self.life = ""
        self.slot = -1
        self.fenced: str | None = "it has not joined"
        self._held = Slot(0, None)
        self._slot_etag = ""
        self._unsure_of: str | None = None
        self._plan = Plan(self.document, "")
        self._seen: dict[int, Seen] = {}
        self._known_free: dict[int, str] = {}
        self._looked_at = self._beat_at = self._topics_at = float("-inf")

    # What a member knows, from memory

    @property
    def document(self) -> Document:
        """The group as last seen."""
        return self._stored.document

    @property
    def plan(self) -> Plan:
        """What the document, as last seen, means for this member; nothing once it was replaced."""
        document = self.document
        if self.fenced or not self._is_member(document):
            return Plan(document, self.life)
        if self._plan.document is not document or self._plan.life != self.life:
            self._plan = Plan.of(document, self.life, self.slot)
        return self._plan

    def position(self, place: Place, plan: Plan | None = None) -> int | None:
        """What was saved last of a partition that it owns, by that plan or by what it knows now."""
        return (plan or self.plan).document.position(place, self._held)

    @property
    def delay(self) -> float:
        """Until the next look or sign of life is due."""
        return max(0.0, min(self._looked_at + self._look_interval, self._beat_due) - self._clock.monotonic())

    @property
    def _look_interval(self) -> float:
        usual = min(self._session_timeout / LOOKS_A_SESSION, LOOK_S)
        return min(usual, HUNGRY_S) if self.plan.is_hungry else usual

    @property
    def _beat_due(self) -> float:
        return self._beat_at + self._session_timeout / BEATS_A_SESSION

    # Joining and leaving

    def join(self) -> None:
        """As a new life: in the slot of the same name if there is one, else in a free one."""
        with self._lock:
            self.life = self._rng.randbytes(8).hex()
            self._unsure_of = None
            busy: set[int] = set()
            for attempt in range(ATTEMPTS_MAX):
                taken = self._take_slot(attempt, busy)
                if taken and self._enter():
                    self.fenced = None
                    self._beat_at = self._looked_at = self._clock.monotonic()
                    logger.info("group %s: joined as %s in slot %d", self._group, self.life, self.slot)
                    return
            raise StoreUnavailable(
                f"group {self._group}: could not join in {ATTEMPTS_MAX} attempts, others were faster each time: try again"
            )

    def _take_slot(self, attempt: int, busy: set[int]) -> bool:
        """Whoever had it before can save nothing any more. What that one has saved stays in it until it is folded.

        `busy`: slots that somebody has who is joining just now, or died while it did; members free those of the dead."""
        existing = slots_in(self._stored.listed())
        document, _ = self._stored.read()
        mine = [slot for slot, member in document.members.items() if self._name and member.name == self._name]
        slot = mine[0] if mine else self._choose({*document.members, *busy}, existing, attempt)
        held = self._stored.read_slot(slot) if slot in existing else None
        if held is None:
            new, etag = Slot(1, self.life), None
        else:
            was, etag = held
            if was.life is not None and not mine:
                busy.add(slot)
                return False
            new = was.taken(self.life)
        with Doubts():
            info = self._stored.put_slot(slot, new, etag)
            if info is None:
                busy.add(slot)
                return False
            self.slot, self._held, self._slot_etag = slot, new, info.etag
            return True
        return False

    def _choose(self, taken: set[int], existing: Mapping[int, str], attempt: int) -> int:
        """A slot that nobody has, as far as we know. Several who join at once spread over as many as it takes."""
        free = [slot for slot in existing if slot not in taken]
        new = next(slot for slot in range(SLOTS_MAX) if slot not in existing and slot not in taken)
        spread = min(2**attempt, 256)
        options: list[int] = [*free, *range(new, new + max(1, spread - len(free)))]
        return options[int(self._rng.random() * len(options)) if attempt else 0]

    def _enter(self) -> bool:
        """One swap of the document: what the slot's former life owned is folded, what nobody owns is shared out. False: the
        slot was taken from us meanwhile."""
        member = Member(self.life, self._name or self.life, self._topics, self._session_timeout)
        lost = False

        def joined(old: Document) -> Document | None:
            nonlocal lost
            known = old.members.get(self.slot)
            if known is not None and known.life == self.life:
                return None
            lost = self._stored.slot_etag(self.slot) != self._slot_etag
            if lost:
                return None
            found = self._find_topics(self._topics)
            fresh = old.folded(self.slot, self._held).next(self.life).covering(found)
            return fresh.joined(self.slot, member).shared_out()

        self._swap(joined)
        return not lost

    def leave(self) -> None:
        """What it holds is final, because it saves nothing any more: others take it at once."""
        with self._lock:
            if self.fenced:
                return
            self._resolve()
            self.fenced = "it has left"

            def left(old: Document) -> Document | None:
                if not self._is_member(old):
                    return None
                return old.folded(self.slot, self._held).next(self.life).shared_out()

            self._swap(left)
            self._stored.put_slot(self.slot, self._held.taken(None), self._slot_etag)

    def _is_member(self, document: Document) -> bool:
        known = document.members.get(self.slot)
        return known is not None and known.life == self.life

    # Saving

    def save(self, positions: Mapping[Place, int]) -> list[Place]:
        """Save positions of partitions that it owns; with none it is a sign of life. Returns those that it does not own any
        more, which were not saved.

        Raises `Fenced` if another has taken its place (nothing was saved), `OutcomeUnknown` if the store does not say (save
        again), `StoreUnavailable`.
        """
        with self._lock:
            self._check_alive()
            self._resolve()
            owned = self.plan.owned
            kept = {
                place: saved
                for place, saved in self._held.saved.items()
                if place in owned and owned[place].since == saved.since
            }
            ours = {
                place: Saved(owned[place].since, offset)
                for place, offset in positions.items()
                if place in owned
            }
            self._put_slot({**kept, **ours})
            return [place for place in positions if place not in owned]

    def _put_slot(self, saved: Mapping[Place, Saved]) -> None:
        doubts = 0
        new = self._held.saving(self.life, saved)
        while True:
            try:
                info = self._stored.put_slot(self.slot, new, self._slot_etag)
            except Indeterminate as error:
                doubts += 1
                if doubts >= 5:
                    raise OutcomeUnknown(
                        f"{group_slot(self._group, self.slot)}: the positions may be saved or not ({error}): commit again"
                    ) from error
                if self._stored.slot_etag(self.slot) is None:
                    raise self._lost("the group's objects are gone") from error
                continue
            if info is not None:
                self._held, self._slot_etag = new, info.etag
                self._beat_at = self._clock.monotonic()
                return
            found = self._stored.read_slot(self.slot)
            if found is None:
                raise self._lost("the group's objects are gone")
            if found[0].life != self.life:
                refused = self._lost("another has taken its place")
                if found[0].mark == new.mark:
                    return  # it came before that
                raise refused
            self._held, self._slot_etag = found  # an earlier one of ours, that came late
            new = self._held.saving(self.life, saved)

    def _lost(self, why: str) -> Fenced:
        self.fenced = why
        return self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(
            f"group {self._group}: this member ({self._name or self.life}) was replaced, {self.fenced}: what it saves "
            "now is refused, and its partitions are read by others from the last position that was saved. poll() joins again"
        )

    def _check_alive(self) -> None:
        if self.fenced:
            raise self._fenced()

    # Giving up what should be another's

    def give(self, places: Iterable[Place]) -> None:
        """Those of them that another should own are its, with the position that was saved last."""
        with self._lock:
            self._check_alive()
            self._resolve()
            allowed = set(places)

            def given(old: Document) -> Document | None:
                moves = {place: slot for place, slot in old.to_give(self.slot).items() if place in allowed}
                if not self._is_member(old) or not moves:
                    return None
                return old.next(self.life).given(moves, self._held)

            self._swap(given, gives=True)

    def _resolve(self) -> None:
        """A swap of ours that gave partitions away may still come: it must be known before anything is saved. Either the
        document has changed since, or a swap of our own makes the late one void."""
        unsure_of = self._unsure_of
        if unsure_of is None:
            return

        def bumped(old: Document) -> Document | None:
            return old.next(self.life) if self._stored.etag == unsure_of else None

        try:
            self._swap(bumped)
        except BaseException:
            self._unsure_of = unsure_of
            raise
        self._unsure_of = None

    # Looking after the others

    def tick(self) -> bool:
        """Do what is due: look, show that we live. Returns whether the document is another than before."""
        with self._lock:
            if self.fenced:
                return False
            now, before = self._clock.monotonic(), self.document
            with suppress(Fenced):
                if now >= self._looked_at + self._look_interval:
                    self.look()
                if now >= self._beat_due:
                    self.save({})
            return bool(self.fenced) or self.document is not before

    def look(self) -> None:
        """One listing, and what follows from it."""
        with self._lock:
            self._check_alive()
            listed = self._stored.listed()
            self._looked_at = now = self._clock.monotonic()
            if listed.get(self._stored.key) != self._stored.etag:
                self._stored.read()
            slots = slots_in(listed)
            if not self._is_member(self.document) or slots.get(self.slot) != self._slot_etag:
                self._look_at_own_slot()
            self._note(slots, now)
            for slot, member in self._silent(now):
                self._replace(slot, member)
            self._free(slots, now)
            if self._is_member(self.document):  # as far as we know now: the next look asks
                self._look_at_topics(now)

    def _look_at_own_slot(self) -> None:
        found = self._stored.read_slot(self.slot)
        if found is None or found[0].life != self.life or not self._is_member(self.document):
            raise self._lost("another has taken its place")

    def _note(self, slots: Mapping[int, str], now: float) -> None:
        """Since when each slot has not changed. One that a member should have and that is not there counts as unchanged."""
        everybody = {**dict.fromkeys(self.document.members, ""), **slots}
        self._seen = {
            slot: seen
            if (seen := self._seen.get(slot)) is not None and seen.etag == etag
            else Seen(etag, now)
            for slot, etag in everybody.items()
        }

    def _silent(self, now: float) -> list[tuple[int, Member]]:
        """Members that have shown no life for their time-out. Not all of us replace them at once: who comes later in the
        list waits for one more look, and so on."""
        others = {slot: member for slot, member in self.document.members.items() if slot != self.slot}
        silent = [
            (slot, member)
            for slot, member in others.items()
            if now - self._seen[slot].since >= member.session_timeout
        ]
        mute = {slot for slot, _ in silent}
        rank = sum(slot < self.slot for slot in others if slot not in mute)
        patience = rank * self._session_timeout / LOOKS_A_SESSION
        return [
            (slot, member)
            for slot, member in silent
            if now - self._seen[slot].since >= member.session_timeout + patience
        ]

    def _replace(self, slot: int, member: Member) -> None:
        """Swap its slot, so that it can save nothing any more; then fold what it holds."""
        found = self._stored.read_slot(slot)
        if found is not None and found[0].life == member.life:
            held, etag = found
            if etag != self._seen[slot].etag:
                return  # it lives
            freed = held.taken(None)
            try:
                done = self._stored.put_slot(slot, freed, etag)
            except Indeterminate:
                return  # the next look shows it
            if done is None:
                return
            found = freed, done.etag
        final = None if found is None else found[0]
        by_us = False

        def replaced(old: Document) -> Document | None:
            nonlocal by_us
            known = old.members.get(slot)
            if known is None or known.life != member.life:
                return None
            by_us = True
            return old.folded(slot, final).next(self.life).shared_out()

        self._swap(replaced)
        if not by_us or self.document.by != self.life:
            return
        logger.warning(
            "group %s: member %s (slot %d) has shown no life for %g s and was replaced",
            self._group,
            member.name,
            slot,
            member.session_timeout,
        )

    def _free(self, slots: Mapping[int, str], now: float) -> None:
        """Slots that somebody took and died before it joined: free again. One look for each, then it is known."""
        for slot, etag in slots.items():
            if slot in self.document.members or self._known_free.get(slot) == etag:
                continue
            if now - self._seen[slot].since < self._session_timeout:
                continue
            found = self._stored.read_slot(slot)
            if found is not None and found[0].life is not None and found[1] == etag:
                with suppress(Indeterminate):
                    self._stored.put_slot(slot, found[0].taken(None), etag)
            self._known_free[slot] = etag

    def _look_at_topics(self, now: float) -> None:
        """Whether they have new partitions, or were recreated: for each topic one of those who read it looks."""
        if now < self._topics_at + TOPICS_S:
            return
        self._topics_at = now
        mine = [
            topic
            for topic in self._topics
            if self.slot == min(slot for slot, each in self.document.members.items() if topic in each.topics)
        ]
        try:
            found = self._find_topics(mine) if mine else {}
        except UnknownTopic as error:
            logger.warning("group %s: %s", self._group, error)
            return

        def covered(old: Document) -> Document | None:
            new = old.covering(found)
            return None if new == old else new.next(self.life).shared_out()

        if covered(self.document) is not None:
            self._swap(covered)

    # The document

    def _swap(self, change: Change, *, gives: bool = False) -> None:
        """Replace the document by what `change` makes of it. Asked again until ours is stored or there is nothing to do.

        `gives`: if it fails, nothing may be saved before it is known what came of it, because it may still come."""
        doubts = Doubts()
        for attempt in range(ATTEMPTS_MAX):
            old, etag = self._stored.read()
            new = change(old)
            if new is None:
                return
            self._unsure_of = etag if gives else None
            with doubts:
                done = self._stored.replace(new, etag)
                self._unsure_of = None
                if done:
                    return
            if attempt:
                self._pause(attempt)
        raise StoreUnavailable(
            f"{self._stored.key}: others changed the group {ATTEMPTS_MAX} times while we tried to: try again"
        )

    def _pause(self, attempt: int) -> None:
        """Several who want the same: not all at once again."""
        condition = threading.Condition()
        with condition:
            self._clock.wait(condition, _RACES.pause_s(attempt, self._rng.random))
