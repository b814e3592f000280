"""Which actors meet in which run: the rules that hold, and every variant with what the search must find in it.

A cast is written as words: `x:2` is an exclusive writer x with two records, `a~2` a shared one, `p=2` a replicated one that feeds the
first two positions of its source, `p^2` its standby, which is promoted, `w!3` an exclusive one with a WAL that dies and opens again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from . import variants as v
from .actors import Actor
from .judge import LogJudge
from .protocol import MANIFEST, NONE, REPLICATED, SHARED, Rules
from .search import World
from .store import Create, Objects, Request, Swap

_WRITER = re.compile(r"(\w)([:~=^!])(\d)")


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

    def world(self, rules: Rules | None = None) -> World:
        return World(LogJudge(), cast(rules or Rules(), self.words), self.faults, self.kinds, late_arrival)


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


class Contrast(NamedTuple):
    """A broken rule, the violations that the search may find first, and where."""

    variant: type[Rules]
    kinds: tuple[str, ...]
    run: Run


MAINTAINED = "merger*1 collector*1"
ONE_EMPTIED = "merger*3 collector*7"

CONTRASTS = [
    Contrast(v.SharedPlacesGo, ("lost",), Run(f"a~2 b~1 {MAINTAINED}")),
    Contrast(v.FencesGo, ("lost",), Run(f"x:1 y:2 {MAINTAINED}")),
    Contrast(v.LastOfEpochGoes, ("denied",), Run(f"x:1 y:0 z:0 {MAINTAINED}", 1, ("lost",))),
    Contrast(v.NewestGoes, ("denied",), Run("x:1 z:0 expirer collector*1", 1)),
    Contrast(v.OnlyTheLowestStays, ("lost",), Run(f"a~3 b~1 {MAINTAINED}")),
    Contrast(v.OnlyTheHighestStays, ("lost",), Run(f"a~3 b~1 {MAINTAINED}")),
    Contrast(v.HeaderWithoutId, ("twice",), Run(f"a~1 b~1 {MAINTAINED}", 1)),
    Contrast(v.HeaderWithoutOffsets, ("lost",), Run(f"a~1 b~2 {MAINTAINED}", 1)),
    Contrast(v.HeaderWithoutSource, ("gap",), Run(f"p=2 s^2 {MAINTAINED}", 1)),
    Contrast(v.PublishedLate, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.PublishedLate, ("short",), Run(f"x:2 reader*2 {MAINTAINED}")),
    Contrast(v.Unconfirmed, ("lost",), Run(f"x:3 y:1 {MAINTAINED}", 1)),
    Contrast(v.MarkFalls, ("lost",), Run("x:3 y:1 merger*1 expirer collector*2")),
    Contrast(v.BlindSwap, ("dangling", "lost"), Run(f"x:3 y:1 expirer {MAINTAINED}")),
    Contrast(v.FenceUnchecked, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.FenceUnchecked, ("lost", "gap"), Run(f"x:3 s^1 {MAINTAINED}")),
    Contrast(v.CheckedBefore, ("lost",), Run(f"x:3 y:1 {MAINTAINED}")),
    Contrast(v.OpenerUnchecked, ("lost",), Run(f"x:3 a~1 {MAINTAINED}")),
    Contrast(v.NoOpener, ("lost",), Run(f"x:2 a~1 {MAINTAINED}")),
    Contrast(v.OpenerWithRecords, ("twice",), Run(f"x:2 a~1 {MAINTAINED}")),
    Contrast(v.OpenerWithRecordsOnce, ("misread",), Run(f"x:2 a~1 reader*1 {MAINTAINED}")),
    Contrast(v.WinnerBelieved, ("lost",), Run(f"x:3 a~1 b~1 {MAINTAINED}")),
    Contrast(v.ReloadedOnce, ("lost",), Run("x:5 y:1 merger*2 collector*2", prelude=f"x*3 y*2 x*2 {ONE_EMPTIED}")),
    Contrast(v.ReplayedOverOthers, ("misread",), Run(f"w!1 y:2 reader*1 {MAINTAINED}", 1, prelude="w*3 w-lost y*4 w*3")),
    Contrast(v.FollowerUnchecked, ("lost",), Run(f"x:3 a~1 b~1 {MAINTAINED}")),
    Contrast(v.ReaderUnchecked, ("short",), Run(f"x:2 reader*2 {MAINTAINED}")),
    Contrast(v.ReaderUnchecked, ("short",), Run(f"a~2 reader*2 {MAINTAINED}")),
    Contrast(v.ReaderChecksTheEnd, ("misread",), Run(f"x:2 y:0 reader*1 {MAINTAINED}")),
    Contrast(v.ReaderReloadsOnce, ("short",), Run("x:5 reader*1 expirer merger*1 collector*2", prelude="x*5 expirer*2 collector*7")),
    Contrast(v.AnotherObjectIsDamage, ("damage",), Run(f"x:2 reader*1 {MAINTAINED}")),
    Contrast(v.RowsBelieved, ("misread",), Run(f"x:2 y:0 reader*1 {MAINTAINED}")),
    Contrast(v.Believes412, ("twice",), Run("a~1", 1)),
    Contrast(v.Believes412, ("denied",), Run("x:1", 1)),
    Contrast(v.SilenceIsRefusal, ("denied",), Run("x:1", 1)),
    Contrast(v.Merge412, ("dangling",), Run("x:2 merger*1", 1, ("412",))),
    Contrast(v.Merge412, ("dangling",), Run("x:2 merger*1", 1, ("lost",))),
    Contrast(v.MergeUnchanged, ("dangling",), Run("x:2 merger*1", 1)),
    Contrast(v.SweepsAllUnnamed, ("dangling",), Run("x:2 merger*1 sweeper")),
    Contrast(v.ManifestFirst, ("dangling",), Run("x:2 merger*1 sweeper")),
    Contrast(v.SweepsSameVersion, ("dangling",), Run("x:3 merger*1 sweeper")),
    Contrast(v.EndUnchecked, ("undead",), Run(f"x:3 {MAINTAINED} deleter")),
    Contrast(v.NoTombstone, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneLate, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneWithoutMark, ("undead",), Run("x:3 y:1 deleter")),
    Contrast(v.TombstoneBehindTheEnd, ("undead",), Run("x:1 deleter")),
    Contrast(v.TombstoneUnconfirmed, ("undead",), Run("x:3 y:1 deleter", 1, ("lost",))),
    Contrast(v.MergeCoversTheEnd, ("undead",), Run(f"x:2 y:1 {MAINTAINED} deleter", prelude="x*5 deleter*6")),
    Contrast(v.DeletionLeavesNothing, ("undead",), Run("a~1 b~1 deleter")),
]
