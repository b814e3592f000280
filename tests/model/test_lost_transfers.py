"""A transfer that cannot be read any more, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import lost_transfers_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lost_transfers import LostTransfers
from tests.model.lost_transfers_runs import CONTRASTS, RULES

MODEL = Model(LostTransfers, lost_transfers_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N03_a_lost_transfer_holds_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N03_a_broken_rule_of_lost_transfers_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


def test_every_variant_of_lost_transfers_is_searched() -> None:
    MODEL.check_every_variant_is_searched()
