"""Who may save which position, in every interleaving of single requests: members come, stall, are replaced and go."""

from __future__ import annotations

import pytest

from tests.model import groups_runs
from tests.model.groups import Groups
from tests.model.groups_runs import CONTRASTS, DEEP, RULES, WIDE, Contrast, Holds, Run
from tests.model.search import search, walk


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_").replace(",", "")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_P02_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    found = search(holds.run.world(), progress=holds.progress)
    assert found.kind is None, str(found)
    assert found.whole
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_P02_a_broken_rule_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=lambda run: run.words)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    found = search(run.world(), limit=20_000)
    assert found.kind is None, str(found)


def test_every_variant_is_searched() -> None:
    made = {one for one in vars(groups_runs).values() if isinstance(one, type) and issubclass(one, Groups)}
    assert made - {Groups} == {contrast.variant for contrast in CONTRASTS}


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_P02_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    found = search(holds.run.world(), limit=1_000_000)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_P02_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    found = walk(holds.run.world(), steps=300_000, seed=seed)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"
