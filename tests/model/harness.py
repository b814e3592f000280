"""The frame of every model: its rules hold in each interleaving, each broken rule is caught, and by nothing but that.

A model is a class of rules, and a module of runs: `RULES` (casts in which nothing is found), `CONTRASTS` (variants of the
rules, each with one rule broken, and what the search must find), `NOT_NEEDED` (variants in which nothing is found), `WIDE`
and `DEEP` (for long runs). A run has `words` and `faults`, and `world(variant)` makes what is searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from tests.model.search import Outcome, Violation, World, search, walk
from tests.model.store import Objects


class Holds(NamedTuple):
    """A run in which nothing is found, and what must have happened in it for that to mean something."""

    name: str
    run: Any
    seen: frozenset[str] = frozenset()
    progress: bool = False


class Contrast(NamedTuple):
    """A broken rule, the violation that the search must find first (or one of several), and where."""

    variant: type[Any]
    kind: str | tuple[str, ...]
    run: Any

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,) if isinstance(self.kind, str) else self.kind


def name_of(value: Holds | Contrast) -> str:
    """As pytest shows it."""
    name = value.name if isinstance(value, Holds) else f"{value.variant.__name__}-{value.kinds[0]}"
    return name.replace(" ", "_").replace(",", "").rstrip("-")


def words_of(run: Any) -> str:
    return f"{run.words}{getattr(run, 'rules', None) or ''}"


def check_seen(found: Outcome, holds: Holds) -> None:
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


class Model:
    """`variants`: the module in which the broken rules are, if not with the runs. `base`: what all of those, and the rules,
    are variants of, if not the rules themselves."""

    def __init__(
        self,
        rules: type[Any],
        runs: ModuleType,
        variants: ModuleType | None = None,
        base: type[Any] | None = None,
    ) -> None:
        self._rules = rules
        self._base = base or rules
        self._runs = runs
        self._variants = variants or runs
        self._kept = cache(self._searched)

    def _searched(self, holds: Holds) -> tuple[World, Outcome]:
        world = holds.run.world(self._rules)
        return world, search(world, _prelude(holds.run), progress=holds.progress)

    def violation(self, world: World, found: Outcome) -> Violation | None:
        """What went wrong. Some models also judge how it ends: `judged` of the runs."""
        if hasattr(self._runs, "judged"):
            judged: Violation | None = self._runs.judged(world, found)
            return judged
        return None if found.kind is None else (found.kind, str(found))

    def check_holds(self, holds: Holds) -> None:
        """In every interleaving, and something came of it."""
        world, found = self._kept(holds)
        assert self.violation(world, found) is None
        assert found.whole
        check_seen(found, holds)
        assert found.over, "nobody ever came to an end"

    def ends(self, name: str) -> Iterator[tuple[Objects, Any]]:
        """What stands, and what was told, wherever every actor of that run has come to its end."""
        world, found = self._kept(self.named(name))
        return ((world.objects(state), world.told(state)) for state in found.over)

    def named(self, name: str) -> Holds:
        rules: list[Holds] = self._runs.RULES
        return next(holds for holds in rules if holds.name == name)

    def check_caught(self, contrast: Contrast) -> None:
        violation = self.violation(*self._broken(contrast))
        assert violation is not None
        assert violation[0] in contrast.kinds, violation[1]

    def check_not_needed(self, contrast: Contrast) -> None:
        world, found = self._broken(contrast)
        assert self.violation(world, found) is None
        assert found.whole

    @staticmethod
    def _broken(contrast: Contrast) -> tuple[World, Outcome]:
        world = contrast.run.world(contrast.variant)
        return world, search(world, _prelude(contrast.run), progress="stuck" in contrast.kinds)

    def check_cast(self, run: Any, limit: int = 2_000) -> None:
        """Where a broken rule was caught, the rules hold: so it is the rule that was caught, not the cast."""
        world = run.world(self._rules)
        assert self.violation(world, search(world, _prelude(run), limit=limit)) is None

    def check_every_variant_is_searched(self) -> None:
        made = {
            one
            for one in vars(self._variants).values()
            if isinstance(one, type) and issubclass(one, self._base)
        }
        searched = [*self._runs.CONTRASTS, *getattr(self._runs, "NOT_NEEDED", ())]
        assert made - {self._rules, self._base} == {contrast.variant for contrast in searched}

    def check_many_states(self, holds: Holds, limit: int = 1_000_000) -> None:
        """The first so many of them."""
        world = holds.run.world(self._rules)
        found = search(world, limit=limit)
        assert self.violation(world, found) is None
        check_seen(found, holds)

    def check_walk(self, holds: Holds, seed: int, steps: int = 300_000) -> None:
        """Far beyond what can be searched."""
        world = holds.run.world(self._rules)
        found = walk(world, steps=steps, seed=seed)
        assert self.violation(world, found) is None
        check_seen(found, holds)
        assert found.over, "nobody ever came to an end"


def _prelude(run: Any) -> str:
    return getattr(run, "prelude", "")
