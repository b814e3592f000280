"""Shared writers, and the winner commits for all: whoever creates the next segment takes along what others have
pending.

An append has one id for its whole life. Its owner may create the next place with it, alone. Or it puts it aside as an
object of its own, `pending/‹born›-‹id›`: born is the place at which its owner stood, which had read every place below
and found it in none. Then anybody may commit it. A segment's header says the ids of its appends and their offsets,
and keeps them when it is collected; places of shared writers are never emptied. To find one's own id in a segment is
the only ack, whoever created it.

A pending may go into place e only by one who knows the ids of every place in [born, e), only if e < born + window,
and only if no fence stands between. So older ones are dead: anybody may sweep them, without a clock, and their owners
may deny them.

Each rule is a method of `Combining`, so that `combining_runs` can break one and leave the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.search import Violation
from tests.model.store import OK, Create, Delete, Get, ListKeys, Objects, OneOf, Put, Snapshot

Step = Generator[Any, Any, Any]


class Segment(NamedTuple):
    """A place of the chain. Collected, its records are gone; the ids of its appends are not."""

    id: tuple[Any, ...]
    appends: tuple[str, ...]
    base: int
    end: int
    fence: bool = False
    collected: bool = False


class Pending(NamedTuple):
    """The name of an append that was put aside."""

    born: int
    append: str


class At(NamedTuple):
    """Where a writer stands: `known` are the ids in all places of [since, next). `fenced`: since it opened."""

    next: int = 0
    since: int = 0
    end: int = 0
    known: frozenset[str] = frozenset()
    fenced: bool = False


class Combining:
    """The rules that hold."""

    def __init__(self, window: int = 2) -> None:
        self.window = window

    # The chain

    def behind(self, at: At, found: Segment) -> At:
        """Behind a fence nothing counts that was born before it."""
        since = self.since_fence(at) if found.fence else at.since
        return At(at.next + 1, since, found.end, at.known | self.ids(found), at.fenced or found.fence)

    def ids(self, found: Segment) -> frozenset[str]:
        return frozenset(found.appends)

    def since_fence(self, at: At) -> int:
        return at.next + 1

    def open(self) -> Step:
        """Read the last places, as many as the window: what was born before them is dead."""
        keys = yield ListKeys()
        end = 1 + max((key for key in keys if isinstance(key, int)), default=-1)
        at = At(max(0, end - self.window), max(0, end - self.window))
        del keys, end
        at = yield from self.follow(at, None)
        return at._replace(fenced=False)

    def follow(self, at: At, mine: str | None) -> Step:
        """To the first empty place. Who meets its own append is acked."""
        while True:
            found = yield Get(at.next)
            if found is None:
                return at
            if mine is not None and mine in found.appends:
                yield from self.acked(mine, found)
                mine = None
            at = self.behind(at, found)
            del found

    def acked(self, mine: str, found: Segment) -> Step:
        if found.id[0] != mine[0]:
            yield Said("seen", ("acked by another's segment",))
        if found.collected:
            yield Said("seen", ("acked by a collected header",))
        yield Said("acked", (mine, found.base + found.appends.index(mine)))

    def create(self, at: At, segment: Segment) -> Step:
        """One PUT. In doubt: look. Returns what is there, ours or another's; absent means the same bytes again."""
        while True:
            answer = yield Create(at.next, segment)
            if answer == OK:
                return segment
            found = yield Get(at.next)
            if found is not None:
                return found

    # Writers

    def writer(self, who: str, count: int, posts: bool = False) -> Actor:
        """Alone first, or (`posts`) as one that knows that it is not alone. A lone one looks beside every few commits
        whether others have something pending: here with its last append."""
        at = yield from self.open()
        while count and not at.fenced:
            mine, born = f"{who}{count}", at.next
            if not posts:
                appends: tuple[str, ...] = (mine,)
                if count == 1:
                    listed = yield ListKeys()
                    listed = frozenset(key for key in listed if isinstance(key, Pending))
                    appends = (mine, *self.others(at, listed, mine))
                    del listed
                if len(appends) > 1:
                    yield Said("seen", ("committed for others",))
                at = yield from self.commit(who, at, appends, mine)
                del appends
            if mine not in at.known and not at.fenced:
                at, born = yield from self.combine(who, at, mine)
            if mine not in at.known and at.fenced:
                yield from self.denied(mine, born)
            count -= 1
            del mine, born

    def combine(self, who: str, at: At, mine: str) -> Step:
        """Put aside, list, read to the end, create with all that may go in. Its window is over: put aside again, same
        id."""
        born = -1
        while mine not in at.known and not at.fenced:
            if born < 0 or self.should_post_again(at, born):
                if born >= 0:
                    yield Said("seen", ("its window was over",))
                born = at.next
                yield from self.post(Pending(born, mine))
            listed = yield ListKeys()
            listed = frozenset(key for key in listed if isinstance(key, Pending))
            at = yield from self.follow(at, mine)
            if mine in at.known or at.fenced:
                break
            appends = (mine, *self.others(at, listed, mine))
            del listed
            if len(appends) > 1:
                yield Said("seen", ("committed for others",))
            at = yield from self.commit(who, at, appends, mine)
            del appends
        if mine in at.known:
            yield Delete(Pending(born, mine))
        return at, born

    def should_post_again(self, at: At, born: int) -> bool:
        return at.next >= born + self.window

    def post(self, pending: Pending) -> Step:
        answer = None
        while answer != OK:
            answer = yield Put(pending, pending)

    def others(self, at: At, listed: frozenset[Pending], mine: str) -> tuple[str, ...]:
        found = {p.append for p in listed if p.append != mine and self.may_go_in(at, p)}
        return tuple(sorted(found))

    def may_go_in(self, at: At, pending: Pending) -> bool:
        return (
            pending.append not in at.known
            and at.since <= pending.born
            and at.next < pending.born + self.window
        )

    def commit(self, who: str, at: At, appends: tuple[str, ...], mine: str) -> Step:
        segment = Segment((who, at.next, appends), appends, at.end, at.end + len(appends))
        found = yield from self.create(at, segment)
        if mine in found.appends:
            yield from self.acked(mine, found)
        return self.behind(at, found)

    def denied(self, mine: str, born: int) -> Step:
        """Fenced: all places up to the fence were read, and nothing born before it goes in behind it."""
        yield Said("denied", (mine,))

    def quitter(self, who: str, count: int) -> Actor:
        """Puts its append aside, waits until its window is over, and tells its caller that it is not stored."""
        at = yield from self.open()
        mine, born = f"{who}1", at.next
        yield from self.post(Pending(born, mine))
        while not self.may_deny(at, born):
            at = yield from self.follow(at, mine)
            if mine in at.known:
                return
        if mine not in at.known:
            yield Said("seen", ("a pending was denied",))
            yield Said("denied", (mine,))

    def may_deny(self, at: At, born: int) -> bool:
        return at.fenced or at.next >= born + self.window

    def fencer(self, who: str) -> Actor:
        """An exclusive writer opens."""
        at = At()
        found = None
        while found is None or found.id != (who, at.next - 1):
            at = yield from self.follow(at, None)
            found = yield from self.create(at, Segment((who, at.next), (), at.end, at.end, fence=True))
            at = self.behind(at, found)

    # Maintenance

    def collector(self, who: str, rounds: int) -> Actor:
        """Of every place but the newest the header is left, with the ids."""
        while rounds:
            objects = yield Snapshot()
            places = sorted((key, held) for key, held in objects if isinstance(key, int))[:-1]
            todo = tuple(Put(key, self.header(held)) for key, held in places if not held.collected)
            del objects, places
            while todo:
                which, answer = yield OneOf(todo)
                todo = todo[:which] + todo[which + 1 :] if answer == OK else todo
                del which, answer
            rounds -= 1

    def header(self, held: Segment) -> Segment:
        return held._replace(collected=True)

    def sweeper(self, who: str) -> Actor:
        """Deletes what is dead: its window is over. No clock."""
        keys = yield ListKeys()
        end = 1 + max((key for key in keys if isinstance(key, int)), default=-1)
        dead = tuple(
            sorted(key for key in keys if isinstance(key, Pending) and key.born + self.window <= end)
        )
        del keys, end
        while dead:
            yield Said("seen", ("swept",))
            yield Delete(dead[0])
            dead = dead[1:]


class Told(NamedTuple):
    log: tuple[str, ...] = ()
    acked: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()


class CombiningJudge:
    """lost, twice, denied: as in `judge`."""

    def first(self) -> Told:
        return Told()

    def acked_end(self, told: Told) -> int:
        return 0

    def stored(self, told: Told, objects: Objects) -> tuple[Told, Violation | None]:
        log, place, end = told.log, 0, 0
        while (held := objects.get(place)) is not None:
            if held.base != end:
                return told, ("lost", f"place {place} says offset {held.base}, the log goes on at {end}")
            for offset, append in enumerate(held.appends, end):
                if offset < len(log):
                    if log[offset] != append:
                        return told, ("lost", f"{log[offset]} was at {offset}; {append} is there now")
                    continue
                if append[:2] in {one[:2] for one in log}:  # a second id is still the caller's one append
                    return told, ("twice", f"{append} is stored twice: {(*log, append)}")
                if append in told.denied:
                    return told, ("denied", f"{append} was never stored, its caller was told; now it is")
                log = (*log, append)
            place, end = place + 1, held.end
        if end < len(log):
            return told, ("lost", f"the log ends at {end}; it was {log}")
        return told._replace(log=log), None

    def heard(self, told: Told, said: Said) -> tuple[Told, Violation | None]:
        match said.what, said.args:
            case "acked", (append, offset):
                if told.log[offset : offset + 1] != (append,):
                    return told, ("lost", f"{append} was acked at {offset}; the log is {told.log}")
                return told._replace(acked=told.acked | {append}), None
            case "denied", (append,):
                if append in told.log:
                    return told, ("denied", f"{append} was never stored, its caller is told: {told.log}")
                return told._replace(denied=told.denied | {append}), None
        return told, None
