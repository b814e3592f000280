"""A taker that is outrun asks the owner, in every interleaving of single requests."""

from __future__ import annotations

import pytest

from tests.model import asks_runs
from tests.model.asks import Asks, is_ask
from tests.model.asks_runs import CONTRASTS, RULES, WIDE
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lanes import DATA, Entry

MODEL = Model(Asks, asks_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N03_asks_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N03_a_broken_rule_of_asks_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


def test_every_variant_of_asks_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


def test_N03_the_owner_answers_with_the_entry_that_it_sends_again() -> None:
    """And what the partition had in it is acked, too: nobody's append fails."""
    for objects, told in MODEL.ends("a busy owner"):
        answers = [
            entry
            for entry in objects.values()
            if isinstance(entry, Entry) and entry.kind == DATA and entry.seals and not is_ask(entry)
        ]
        if answers and {"a2p0", "a2q0", "d0p0"} <= told.acked:
            assert {batch.part for batch in answers[0].batches} == {"p", "q"}
            return
    pytest.fail("in no run the owner has answered and acked all")


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N03_asks_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)
