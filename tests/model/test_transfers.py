"""One entry claims many partitions, in every interleaving of single requests. `python -m tests.model` prints a table."""

from __future__ import annotations

import pytest

from tests.model import transfers_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lanes import Entry, Place
from tests.model.search import walk
from tests.model.transfers import TRANSFER, Transfers
from tests.model.transfers_runs import CONTRASTS, DEEP, RULES, WIDE

MODEL = Model(Transfers, transfers_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N03_transfers_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N03_a_broken_rule_of_transfers_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


def test_every_variant_of_transfers_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


def test_N03_one_entry_claims_all_partitions_of_a_new_topic() -> None:
    for objects, told in MODEL.ends("two who want all of it"):
        if {"a0p0", "a0q0"} <= told.acked:
            entry = objects[Place("G", 0)]
            assert isinstance(entry, Entry)
            assert entry.kind == TRANSFER
            assert not [place for place in objects if isinstance(place, Place) and place.chain in ("p", "q")]
            return
    pytest.fail("no run has acks of both partitions")


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N03_transfers_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N03_transfers_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=200_000)


def test_N03_transfers_hold_in_a_short_walk() -> None:
    found = walk(DEEP[-1].run.world(Transfers), steps=1_000, seed=1)
    assert found.kind is None, str(found)
