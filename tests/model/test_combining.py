"""Shared writers that commit for each other, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import combining_runs
from tests.model.combining import Combining, Pending
from tests.model.combining_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE, Contrast, Holds, Run
from tests.model.search import search, walk


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_W15_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    found = search(holds.run.world(), progress=holds.progress)
    assert found.kind is None, str(found)
    assert found.whole
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_W15_a_broken_rule_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=lambda run: run.words)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    found = search(run.world(), limit=2_000)
    assert found.kind is None, str(found)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=_name)
def test_W15_what_is_not_needed_for_safety(contrast: Contrast) -> None:
    """The order of listing and reading; and to wait until its window is over before it is put aside again."""
    found = search(contrast.run.world(contrast.variant))
    assert found.kind is None, str(found)
    assert found.whole


def test_every_variant_is_searched() -> None:
    made = {
        one for one in vars(combining_runs).values() if isinstance(one, type) and issubclass(one, Combining)
    }
    assert made - {Combining} == {contrast.variant for contrast in CONTRASTS + NOT_NEEDED}


def test_W15_a_pending_that_comes_back_is_dead() -> None:
    """It was committed and deleted, a late copy of it is there again, and all appends are acked once."""
    world = next(holds for holds in RULES if holds.name == "swept").run.world()
    found = search(world)
    for state in found.over:
        left = [key for key in world.objects(state) if isinstance(key, Pending)]
        if left and len(world.told(state).acked) == 4:
            return
    pytest.fail("no run leaves a pending behind whose append was acked")


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_W15_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    found = search(holds.run.world(), limit=1_000_000)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_W15_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    found = walk(holds.run.world(), steps=300_000, seed=seed)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"
