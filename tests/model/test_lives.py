"""Threads of one process, and lives of one lane, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import lives_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lives import Lives
from tests.model.lives_runs import CONTRASTS, RULES

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
