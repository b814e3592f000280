"""Claims that are made without a look, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import guesses_runs
from tests.model.guesses import Guesses
from tests.model.guesses_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE
from tests.model.harness import Contrast, Holds, Model, name_of

MODEL = Model(Guesses, guesses_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N04_guesses_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N04_a_broken_rule_of_guesses_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=name_of)
def test_a_rule_of_guesses_is_not_needed_here(contrast: Contrast) -> None:
    MODEL.check_not_needed(contrast)


def test_every_variant_of_guesses_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N04_guesses_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N04_guesses_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=100_000)
