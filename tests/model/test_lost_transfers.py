"""A transfer that cannot be read any more, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import lost_transfers_runs
from tests.model.lanes_runs import Contrast, Holds
from tests.model.lost_transfers import LostTransfers
from tests.model.lost_transfers_runs import CONTRASTS, RULES
from tests.model.search import search


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_N03_a_lost_transfer_holds_in_every_interleaving(holds: Holds) -> None:
    found = search(holds.run.world(LostTransfers))
    assert found.kind is None, str(found)
    assert found.whole
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_N03_a_broken_rule_of_lost_transfers_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)
    cast = search(contrast.run.world(LostTransfers), limit=2_000)
    assert cast.kind is None, f"it is the cast that was caught, not the broken rule: {cast}"


def test_every_variant_of_lost_transfers_is_searched() -> None:
    made = {
        one
        for one in vars(lost_transfers_runs).values()
        if isinstance(one, type) and issubclass(one, LostTransfers)
    }
    assert made - {LostTransfers} == {contrast.variant for contrast in CONTRASTS}
