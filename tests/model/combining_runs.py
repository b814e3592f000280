"""Shared writers that commit for each other: the rules that hold, and every variant with what the search must find in
it.

`a:2` is a writer a with two appends that tries alone first; `b+1` knows that it is not alone and puts its append
aside; `c-1` puts it aside and waits until it may be denied. The window is two places.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.model.actors import Actor, Said
from tests.model.combining import At, Combining, CombiningJudge, Pending, Segment, Step
from tests.model.harness import Contrast, Holds
from tests.model.search import World
from tests.model.store import Create, Delete, Get, ListKeys, Objects, Put, Request

_WRITER = re.compile(r"(\w)([:+-])(\d)")


class Run(NamedTuple):
    words: str
    faults: int = 0
    window: int = 2

    def world(self, variant: type[Combining] = Combining) -> World:
        rules = variant(self.window)
        made: list[tuple[str, Callable[[], Actor]]] = []
        for word in self.words.split():
            name, _, count = word.partition("*")
            if found := _WRITER.fullmatch(word):
                who, how, number = found.group(1), found.group(2), int(found.group(3))
                role = partial(rules.writer, posts=how == "+") if how != "-" else rules.quitter
                made.append((who, partial(role, who, number)))
            else:
                made.append((name, partial(getattr(rules, name), name, *map(int, count.split()))))
        return World(CombiningJudge(), made, self.faults, watch=late_arrival)


def late_arrival(request: Request, before: Objects, after: Objects) -> str | None:
    match request:
        case Create():
            return "a late segment"
        case Put(Pending(), _):
            return "a pending comes late, or back"
        case Delete():
            return "a late delete"
    return None


# Each rule, broken: a variant overrides one method


class AnyPending(Combining):
    """Whatever is listed goes in that is not in the part of the chain that was read."""

    def may_go_in(self, at: At, pending: Pending) -> bool:
        return pending.append not in at.known


class HeaderWithoutIds(Combining):
    """What is left of a collected segment does not say which appends it held."""

    def header(self, held: Segment) -> Segment:
        return held._replace(collected=True, appends=())


class JumpsAhead(Combining):
    """Who finds that many places were filled goes to the end, and believes that it knows them."""

    def follow(self, at: At, mine: str | None) -> Step:
        keys = yield ListKeys()
        end = 1 + max((key for key in keys if isinstance(key, int)), default=-1)
        if end > at.next + 1:
            last = yield Get(end - 1)
            at = at._replace(next=end, end=last.end)
            del last
        del keys, end
        at = yield from super().follow(at, mine)
        return at


class Renamed(Combining):
    """An append whose window was over is put aside again under a new id."""

    def combine(self, who: str, at: At, mine: str) -> Step:
        at, born = yield from self.once(who, at, mine)
        if mine not in at.known and not at.fenced:
            at, born = yield from super().combine(who, at, f"{mine}'")
            at = at._replace(known=at.known | {mine})
        return at, born

    def once(self, who: str, at: At, mine: str) -> Step:
        born = at.next
        yield from self.post(Pending(born, mine))
        at = yield from self.follow(at, mine)
        return at, born


class Withdrawn(Combining):
    """A pending is deleted by its owner, which tells its caller that it is not stored."""

    def quitter(self, who: str, count: int) -> Actor:
        at = yield from self.open()
        mine, born = f"{who}1", at.next
        yield from self.post(Pending(born, mine))
        yield Delete(Pending(born, mine))
        at = yield from self.follow(at, mine)
        if mine not in at.known:
            yield Said("denied", (mine,))


class DeniedEarly(Combining):
    """A pending is denied by its owner while it may still go in."""

    def may_deny(self, at: At, born: int) -> bool:
        return at.fenced or at.next > born


class NoWindow(Combining):
    """A pending goes in however old it is, if all places since are known."""

    def may_go_in(self, at: At, pending: Pending) -> bool:
        return pending.append not in at.known and at.since <= pending.born


class AcrossAFence(Combining):
    """A pending from before a fence goes in behind it."""

    def since_fence(self, at: At) -> int:
        return at.since


class LooksForItsSegment(Combining):
    """Who finds another's segment in its place takes its own append for not stored, and does not look for its id."""

    def ids(self, found: Segment) -> frozenset[str]:
        return frozenset(one for one in found.appends if one[0] == found.id[0])


# What is not needed: nothing is found without it


class ChainFirst(Combining):
    """The chain is read before the pendings are listed: the create fails if anything was committed since."""

    def combine(self, who: str, at: At, mine: str) -> Step:
        born = at.next
        yield from self.post(Pending(born, mine))
        while mine not in at.known and not at.fenced:
            at = yield from self.follow(at, mine)
            if mine in at.known or at.fenced:
                break
            listed = yield ListKeys()
            listed = frozenset(key for key in listed if isinstance(key, Pending))
            appends = (mine, *self.others(at, listed, mine))
            del listed
            at = yield from self.commit(who, at, appends, mine)
            del appends
        return at, born


class PostsAgainEarly(Combining):
    """An append is put aside again, under the same id, while the first object of it may still be taken along."""

    def should_post_again(self, at: At, born: int) -> bool:
        return at.next > born


CONTRASTS = [
    Contrast(AnyPending, "twice", Run("a+1 b:1 c+1", window=1)),
    Contrast(HeaderWithoutIds, "twice", Run("a+1 b+1 c:1 collector*1")),
    Contrast(JumpsAhead, "twice", Run("a+1 b+1 c:2")),
    Contrast(Renamed, "twice", Run("a+1 b+1")),
    Contrast(Withdrawn, "denied", Run("a+1 c-1")),
    Contrast(DeniedEarly, "denied", Run("a+1 b:1 c-1")),
    Contrast(NoWindow, "denied", Run("a+1 b:2 c-1")),
    Contrast(AcrossAFence, "denied", Run("a+1 b+1 fencer")),
    Contrast(LooksForItsSegment, "twice", Run("a+1 b+1")),
]
NOT_NEEDED = [
    Contrast(ChainFirst, "", Run("a+1 b+1 c:1")),
    Contrast(PostsAgainEarly, "", Run("a+1 b+1 c:1")),
    Contrast(PostsAgainEarly, "", Run("a:2 b+1", 1)),
]

FOR_OTHERS, WINDOW = ("committed for others", "acked by another's segment"), "its window was over"
LATE = ("a late segment", "a pending comes late, or back")


def _holds(name: str, words: str, faults: int, *seen: str, window: int = 2, progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, window), frozenset(seen), progress)


RULES = [
    _holds("two put aside", "a+1 b+1", 2, *FOR_OTHERS, *LATE, progress=True),
    _holds("one alone, one put aside", "a:2 b+1", 2, *FOR_OTHERS, *LATE, WINDOW),
    _holds("two that were alone", "a:2 b:1 sweeper", 1, *FOR_OTHERS, *LATE),
    _holds("three", "a:1 b+1 c:1", 1, *FOR_OTHERS, *LATE, WINDOW),
    _holds("collected underneath", "a+1 b+1 c:1 collector*1", 0, *FOR_OTHERS, "acked by a collected header"),
    _holds(
        "collected, in doubt", "a+1 b:2 collector*2", 1, *FOR_OTHERS, *LATE, "acked by a collected header"
    ),
    _holds("swept", "a:2 b+2 sweeper", 1, *FOR_OTHERS, *LATE, WINDOW, "swept", progress=True),
    _holds("denied when its window is over", "a+1 b:2 c-1", 1, *FOR_OTHERS, *LATE, "a pending was denied"),
    _holds("a fence", "a+1 b+1 fencer", 1, *FOR_OTHERS, *LATE, progress=True),
    _holds("a fence, and one that comes later", "a+1 b:1 c+1 fencer", 0, *FOR_OTHERS),
    _holds("a window of three", "a:2 b+1 c-1", 0, *FOR_OTHERS, "a pending was denied", window=3),
]
WIDE = [
    _holds("four, in doubt", "a:2 b+1 c:1 d+1", 1, *FOR_OTHERS, *LATE),
    _holds("a window of three", "a:2 b+2 c-1 sweeper", 1, *FOR_OTHERS, *LATE, window=3),
    _holds("collected underneath", "a:2 b+2 c+1 collector*2 sweeper", 1, *FOR_OTHERS, *LATE),
    _holds("a fence", "a+1 b:1 c-1 d+1 fencer", 1, *FOR_OTHERS, *LATE),
]
"""For long runs: the first million states of each."""

DEEP = [
    _holds("everything", "a:3 b+2 c:2 d+2 e-1 collector*3 sweeper", 3, *FOR_OTHERS, *LATE, WINDOW, window=3),
    _holds(
        "everything, and a fence", "a:2 b+2 c:2 d+1 e-1 collector*2 sweeper fencer", 3, *FOR_OTHERS, *LATE
    ),
]
"""For random walks: far beyond what can be searched."""
