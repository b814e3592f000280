"""Threads of one process, and lives of one lane, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import lives_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lives import Lives
from tests.model.lives_runs import CONTRASTS, DEEP, RULES, WIDE

MODEL = Model(Lives, lives_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N04_lives_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N04_a_broken_rule_of_lives_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


def test_every_variant_of_lives_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N04_lives_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N04_lives_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=100_000)
