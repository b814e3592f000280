"""How a transaction is decided, in every interleaving of single requests: coordinators and producers sleep and go on."""

from __future__ import annotations

import pytest

from tests.model import transactions_runs
from tests.model.search import search, walk
from tests.model.together import Together
from tests.model.transactions import Transactions
from tests.model.transactions_runs import CONTRASTS, RULES, WIDE, Contrast, Holds, Run, judged


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_").replace(",", "")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_B14_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    world = holds.run.world()
    found = search(world)
    assert judged(world, found) is None
    assert found.whole
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_B14_a_broken_rule_is_caught(contrast: Contrast) -> None:
    world = contrast.run.world(contrast.variant)
    violation = judged(world, search(world))
    assert violation is not None
    assert violation[0] == contrast.kind, violation[1]


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=lambda run: run.words)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    world = run.world()
    assert judged(world, search(world)) is None


def test_every_variant_is_searched() -> None:
    made = {
        one
        for one in vars(transactions_runs).values()
        if isinstance(one, type) and issubclass(one, Transactions)
    }
    assert made - {Transactions, Together} == {contrast.variant for contrast in CONTRASTS}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_B14_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    world = holds.run.world()
    found = walk(world, steps=300_000, seed=seed)
    assert judged(world, found) is None
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
