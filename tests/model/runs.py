"""Which actors meet in which run: the rules that hold, and every variant with what the search must find in it.

A cast is written as words: `x:2` is an exclusive writer x with two records, `a~2` a shared one, `p=2` a replicated one that
feeds the first two positions of its source, `p^2` its standby, which is promoted, `w!3` an exclusive one with a WAL that
dies and opens again, `c@2` one that writes a checkpoint. `merger*2` is a merger of two rounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.model import variants as v
from tests.model.actors import Actor
from tests.model.harness import Contrast, Holds
from tests.model.judge import LogJudge
from tests.model.protocol import MANIFEST, NONE, REPLICATED, SHARED, Rules
from tests.model.search import World
from tests.model.store import Create, Objects, Request, Swap

_WRITER = re.compile(r"(\w)([:~=^!@])(\d)")


def cast(rules: Rules, words: str) -> list[tuple[str, Callable[[], Actor]]]:
    made: list[tuple[str, Callable[[], Actor]]] = []
    for word in words.split():
        name, _, count = word.partition("*")
        if found := _WRITER.fullmatch(word):
            who, kind, number = found.group(1), found.group(2), int(found.group(3))
            own, source = tuple(f"{who}{n}" for n in range(1, number + 1)), tuple(range(number))
            made.append((who, _writer(rules, who, kind, own, source)))
        else:
            role = getattr(rules, name.rstrip("'"))
            made.append((name, partial(role, name, int(count)) if count else partial(role, name)))
    return made


def _writer(
    rules: Rules, who: str, kind: str, own: tuple[str, ...], source: tuple[int, ...]
) -> Callable[[], Actor]:
    match kind:
        case ":":
            return partial(rules.exclusive, who, own)
        case "!":
            return partial(rules.exclusive, who, own, restart=True)
        case "@":
            return partial(rules.exclusive, who, own, checkpoint=True)
        case "~":
            return partial(rules.shared, who, SHARED, own)
        case "=":
            return partial(rules.shared, who, REPLICATED, source)
    return partial(rules.shared, who, REPLICATED, source, standby=True)


class Run(NamedTuple):
    words: str
    faults: int = 0
    kinds: tuple[str, ...] = ("lost", "twice", "412")
    prelude: str = ""
    """What has happened before the search begins: deep runs would take too long from nothing."""

    def world(self, variant: type[Rules] = Rules) -> World:
        return World(LogJudge(), cast(variant(), self.words), self.faults, self.kinds, late_arrival)


def late_arrival(request: Request, before: Objects, after: Objects) -> str | None:
    """What a request did that arrived when nobody waited for it any more: so that we know that it was tried."""
    if before == after:
        return None
    match request:
        case Create(place, _):
            past = place < before.get(MANIFEST, NONE).until
            return "a late create in an emptied place" if past else "a late create at the end"
        case Swap():
            return "a late swap"
    return f"a late {type(request).__name__.lower()}"


MAINTAINED = "merger*1 collector*1"
ONE_EMPTIED = "merger*3 collector*8"

CONTRASTS = [
    Contrast(v.SharedPlacesGo, ("lost",), Run(f"a~2 b~1 {MAINTAINED}")),
    Contrast(v.FencesGo, ("lost",), Run(f"x:1 y:2 {MAINTAINED}")),
    Contrast(v.LastOfEpochGoes, ("denied",), Run(f"x:1 y:0 z:0 {MAINTAINED}", 1, ("lost",), "x*2")),
    Contrast(v.NewestGoes, ("denied",), Run("x:1 z:0 expirer collector*1", 1)),
    Contrast(v.OnlyTheLowestStays, ("lost",), Run(f"a~3 b~1 {MAINTAINED}")),
    Contrast(v.OnlyTheHighestStays, ("lost",), Run(f"a~3 b~1 {MAINTAINED}")),
    Contrast(v.HeaderWithoutId, ("twice",), Run(f"a~1 b~1 {MAINTAINED}", 1)),
    Contrast(v.HeaderWithoutOffsets, ("lost",), Run(f"a~1 b~2 {MAINTAINED}", 1)),
    Contrast(v.HeaderWithoutSource, ("gap",), Run(f"p=2 s^2 {MAINTAINED}", 1)),
    Contrast(v.PublishedLate, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.PublishedLate, ("short",), Run(f"x:2 reader*2 {MAINTAINED}")),
    Contrast(v.Unconfirmed, ("lost",), Run(f"x:3 y:1 {MAINTAINED}", 1, ("lost",), "x*2")),
    Contrast(
        v.HorizonFalls, ("lost",), Run("x:3 y:1 merger*1 expirer collector*2", prelude="x*2 y*2 x*3 merger*3")
    ),
    Contrast(v.BlindSwap, ("dangling", "lost"), Run(f"x:3 expirer {MAINTAINED}")),
    Contrast(v.FenceUnchecked, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.FenceUnchecked, ("lost", "gap"), Run(f"x:3 s^1 {MAINTAINED}")),
    Contrast(v.CheckedBefore, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.OpenerUnchecked, ("lost",), Run(f"x:3 a~1 {MAINTAINED}")),
    Contrast(v.NoOpener, ("lost",), Run(f"x:2 a~1 {MAINTAINED}")),
    Contrast(v.OpenerWithRecords, ("twice",), Run(f"x:2 a~1 {MAINTAINED}")),
    Contrast(v.OpenerWithRecordsOnce, ("misread",), Run(f"x:2 a~1 reader*1 {MAINTAINED}")),
    Contrast(v.WinnerBelieved, ("lost",), Run(f"x:3 a~1 b~1 {MAINTAINED}", prelude="x*2 a*3 b*3")),
    Contrast(v.DoubtEndsAtSharedPlaces, ("lost",), Run(f"x:3 a~1 b~1 {MAINTAINED}", prelude="x*2 b*3 x*3")),
    Contrast(
        v.ReloadedOnce, ("lost",), Run("x:5 y:1 merger*2 collector*2", prelude=f"x*2 y*2 x*2 {ONE_EMPTIED}")
    ),
    Contrast(
        v.ReplayedOverOthers,
        ("misread",),
        Run(f"w!1 y:2 reader*1 {MAINTAINED}", 1, prelude="w*2 w-lost y*4 w*3"),
    ),
    Contrast(v.FollowerUnchecked, ("lost",), Run(f"x:3 a~1 b~1 {MAINTAINED}", prelude="x*2 b*3 x*3")),
    Contrast(v.ReaderUnchecked, ("short",), Run(f"x:2 reader*2 {MAINTAINED}")),
    Contrast(v.HeaderIsTheEnd, ("short",), Run(f"a~2 reader*2 {MAINTAINED}")),
    Contrast(v.ReaderChecksTheEnd, ("misread",), Run(f"x:2 y:0 reader*1 {MAINTAINED}")),
    Contrast(
        v.ReaderReloadsOnce,
        ("short",),
        Run("x:5 reader*1 expirer merger*1 collector*2", prelude="x*4 expirer*2 collector*8"),
    ),
    Contrast(v.AnotherObjectIsDamage, ("damage",), Run(f"x:2 reader*1 {MAINTAINED}")),
    Contrast(v.RowsBelieved, ("misread",), Run(f"x:2 y:0 reader*1 {MAINTAINED}")),
    Contrast(v.Believes412, ("twice",), Run("a~1", 1)),
    Contrast(v.Believes412, ("denied",), Run("x:1", 1)),
    Contrast(v.SilenceIsRefusal, ("denied",), Run("x:1", 1)),
    Contrast(v.Merge412, ("dangling",), Run("x:2 merger*1", 1, ("412",))),
    Contrast(v.Merge412, ("dangling",), Run("x:2 merger*1", 1, ("lost",))),
    Contrast(v.MergeUnchanged, ("dangling",), Run("x:2 merger*1", 1)),
    Contrast(v.CheckpointsWhatItRemembers, ("dangling",), Run(f"c@3 {MAINTAINED}")),
    Contrast(v.CheckpointsOverMore, ("lost",), Run(f"c@1 y:2 {MAINTAINED}")),
    Contrast(v.PutsAtCollected, ("stuck",), Run("a~2 y:1 merger*1 collector*1")),
    Contrast(v.SweepsAllUnnamed, ("dangling",), Run("x:2 merger*1 sweeper")),
    Contrast(v.ManifestFirst, ("dangling",), Run("x:2 merger*1 sweeper")),
    Contrast(v.SweepsSameVersion, ("dangling",), Run("x:3 merger*1 sweeper")),
    Contrast(v.EndUnchecked, ("undead",), Run(f"x:3 {MAINTAINED} deleter")),
    Contrast(v.NoTombstone, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneLate, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneWithoutHorizon, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneBehindTheEnd, ("undead",), Run("x:1 y:1 deleter")),
    Contrast(v.TombstoneUnconfirmed, ("undead",), Run("x:3 y:1 deleter", 1, ("lost",), "x*2 y*2 x*3")),
    Contrast(v.MergeCoversTheEnd, ("undead",), Run(f"x:2 y:1 {MAINTAINED} deleter", prelude="x*4 deleter*6")),
    Contrast(v.DeletionLeavesNothing, ("undead",), Run("a~1 b~1 deleter")),
]


LATE = {"a late create at the end", "a late swap", "a late put"}
LATE_DELETE = LATE | {"a late create in an emptied place", "a late delete"}
STALE = "began again behind what it had put"
HEADER = {"a collected header in its place", "its own commit, collected"}


def _holds(
    name: str, words: str, faults: int, *seen: str, prelude: str = "", progress: bool = False
) -> Holds:
    return Holds(name, Run(words, faults, prelude=prelude), frozenset(seen), progress)


RULES = [
    _holds(
        "two shared writers, two collections",
        "a~2 b~1 merger*2 collector*2",
        1,
        *LATE,
        *HEADER,
        "a late delete",
    ),
    _holds("an exclusive writer is taken over", f"x:3 y:1 {MAINTAINED}", 1, *LATE_DELETE, STALE, "emptied"),
    _holds("and taken over again", f"x:2 y:1 z:0 {MAINTAINED}", 0, STALE, "emptied", prelude="x*2"),
    _holds(
        "superseded by a shared writer",
        f"x:2 a~1 {MAINTAINED}",
        1,
        *LATE_DELETE,
        STALE,
        "its own commit, collected",
    ),
    _holds(
        "superseded by two shared writers", f"x:2 a~1 b~1 {MAINTAINED}", 0, STALE, "emptied", prelude="x*2"
    ),
    _holds("superseded and taken over", f"x:1 a~1 y:1 {MAINTAINED}", 0, STALE, prelude="x*2", progress=True),
    _holds(
        "a reader",
        f"x:2 reader*2 {MAINTAINED}",
        1,
        *LATE_DELETE,
        "a reader reloads",
        "nothing under a row's name",
    ),
    _holds(
        "a reader beside a stale fence",
        f"x:2 y:0 reader*1 {MAINTAINED}",
        0,
        STALE,
        "another object under a row's name",
    ),
    _holds(
        "a reader of a shared writer",
        f"a~2 reader*2 {MAINTAINED}",
        1,
        *LATE,
        "another object under a row's name",
    ),
    _holds(
        "replicas, a standby is promoted",
        f"p=2 q=2 s^1 {MAINTAINED}",
        0,
        "a collected header in its place",
    ),
    _holds("a replica and its standby", f"p=2 s^2 {MAINTAINED}", 1, *LATE, *HEADER),
    _holds(
        "a standby behind an exclusive writer", f"x:2 s^1 {MAINTAINED}", 1, *LATE_DELETE, STALE, "emptied"
    ),
    _holds("a standby between two exclusive writers", f"x:1 s^1 y:1 {MAINTAINED}", 0, STALE, progress=True),
    _holds("a replica behind an exclusive writer", f"x:2 p=1 {MAINTAINED}", 1, *LATE_DELETE, STALE),
    _holds("a WAL is replayed in the fence", f"w!3 y:1 {MAINTAINED}", 0, STALE, "emptied", progress=True),
    _holds("a WAL, and an answer is lost", f"w!3 {MAINTAINED}", 1, *LATE, "emptied"),
    _holds("retention", f"x:2 y:1 expirer {MAINTAINED}", 0, STALE, "emptied", progress=True),
    _holds("retention and a reader", "x:2 reader*1 expirer collector*1", 1, "emptied", "a reader reloads"),
    _holds(
        "two merges, a sweep",
        "x:2 merger*1 merger'*1 expirer collector*1 sweeper",
        0,
        "a stray",
        progress=True,
    ),
    _holds("merges in doubt, a sweep", f"x:2 {MAINTAINED} sweeper", 1, *LATE_DELETE, "a stray"),
    _holds("a checkpoint", f"c@3 y:1 {MAINTAINED}", 0, STALE, "emptied", progress=True),
    _holds("deletion without a manifest", "x:3 y:1 deleter", 0, STALE, "emptied", progress=True),
    _holds(
        "deletion beside a writer",
        f"c@2 {MAINTAINED} deleter",
        1,
        *LATE_DELETE,
        STALE,
        "emptied",
        prelude="c*2",
    ),
    _holds("deletion beside one that opens", "x:2 y:1 merger*1 deleter", 0, STALE, "emptied"),
    _holds("deletion of shared writers' records", f"a~1 b~1 {MAINTAINED} deleter", 1, *LATE, *HEADER),
    _holds(
        "two deletions", "x:2 merger*1 deleter deleter'", 0, "a merge that can never be named", progress=True
    ),
]

WIDE = [
    _holds("two shared writers, two collections", "a~2 b~2 merger*2 collector*2", 2, *LATE, *HEADER),
    _holds("three exclusive writers", f"x:2 y:1 z:1 {MAINTAINED}", 1, *LATE),
    _holds("an exclusive and two shared writers", f"x:3 a~1 b~1 {MAINTAINED}", 1, *LATE),
    _holds("a reader, fences, two collections", "x:3 y:1 reader*2 merger*2 collector*2", 1, *LATE),
    _holds("replicas and a standby", f"x:2 p=2 s^2 {MAINTAINED}", 1, *LATE),
    _holds("deletion", f"x:2 y:1 {MAINTAINED} deleter deleter'", 1, *LATE),
]
"""For long runs: the first million states of each."""

DEEP = [
    _holds(
        "everything exclusive",
        "x:4 y:2 z:1 reader*3 merger*2 merger'*1 expirer collector*3 sweeper",
        3,
        *LATE_DELETE,
        STALE,
    ),
    _holds("everything mixed", "x:3 a~2 b~2 y:1 reader*2 merger*2 collector*2 collector'*1", 3, *LATE, STALE),
    _holds("everything replicated", "x:2 p=3 q=3 s^3 reader*2 merger*2 collector*2", 3, *LATE, STALE),
    _holds(
        "everything deleted",
        "c@3 y:1 a~2 w!2 reader*2 merger*2 expirer collector*2 deleter deleter' sweeper",
        3,
        *LATE_DELETE,
        STALE,
    ),
]
"""For random walks: far beyond what can be searched."""
