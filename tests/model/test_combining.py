"""Shared writers that commit for each other, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import combining_runs
from tests.model.combining import Combining, Pending
from tests.model.combining_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE, Run
from tests.model.harness import Contrast, Holds, Model, name_of, words_of

MODEL = Model(Combining, combining_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_W15_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_W15_a_broken_rule_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=words_of)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    MODEL.check_cast(run)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=name_of)
def test_W15_what_is_not_needed_for_safety(contrast: Contrast) -> None:
    """The order of listing and reading; and to wait until its window is over before it is put aside again."""
    MODEL.check_not_needed(contrast)


def test_every_variant_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


def test_W15_a_pending_that_comes_back_is_dead() -> None:
    """It was committed and deleted, a late copy of it is there again, and all appends are acked once."""
    for objects, told in MODEL.ends("swept"):
        if any(isinstance(key, Pending) for key in objects) and len(told.acked) == 4:
            return
    pytest.fail("no run leaves a pending behind whose append was acked")


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_W15_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_W15_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed)
