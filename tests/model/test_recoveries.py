"""A process that comes back with a WAL, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import recoveries_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.recoveries import Recoveries
from tests.model.recoveries_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE

MODEL = Model(Recoveries, recoveries_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_L09_N03_recoveries_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_L09_N03_a_broken_rule_of_recoveries_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=name_of)
def test_a_rule_of_recoveries_is_not_needed_here(contrast: Contrast) -> None:
    MODEL.check_not_needed(contrast)


def test_every_variant_of_recoveries_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_L09_N03_recoveries_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_L09_N03_recoveries_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=100_000)
