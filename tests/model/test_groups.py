"""Who may save which position, in every interleaving of single requests: members come, stall, are replaced and go."""

from __future__ import annotations

import pytest

from tests.model import groups_runs
from tests.model.groups import Groups
from tests.model.groups_runs import CONTRASTS, DEEP, RULES, WIDE, Run
from tests.model.harness import Contrast, Holds, Model, name_of, words_of

MODEL = Model(Groups, groups_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_P02_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_P02_a_broken_rule_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=words_of)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    MODEL.check_cast(run, limit=20_000)


def test_every_variant_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_P02_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_P02_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed)
