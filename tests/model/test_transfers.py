"""One entry claims many partitions, in every interleaving of single requests. `python -m tests.model` prints a table."""

from __future__ import annotations

import pytest

from tests.model import transfers_runs
from tests.model.lanes import Entry, Place
from tests.model.lanes_runs import Contrast, Holds
from tests.model.search import search, walk
from tests.model.transfers import TRANSFER, Transfers
from tests.model.transfers_runs import CONTRASTS, DEEP, RULES, WIDE


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_N03_transfers_hold_in_every_interleaving(holds: Holds) -> None:
    found = search(holds.run.world(Transfers), progress=holds.progress)
    assert found.kind is None, str(found)
    assert found.whole
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_N03_a_broken_rule_of_transfers_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)
    cast = search(contrast.run.world(Transfers), limit=2_000)
    assert cast.kind is None, f"it is the cast that was caught, not the broken rule: {cast}"


def test_every_variant_of_transfers_is_searched() -> None:
    made = {
        one for one in vars(transfers_runs).values() if isinstance(one, type) and issubclass(one, Transfers)
    }
    assert made - {Transfers} == {contrast.variant for contrast in CONTRASTS}


def test_N03_one_entry_claims_all_partitions_of_a_new_topic() -> None:
    holds = next(one for one in RULES if one.name == "two who want all of it")
    world = holds.run.world(Transfers)
    for state in search(world).over:
        objects, told = world.objects(state), world.told(state)
        if {"a0p0", "a0q0"} <= told.acked:
            entry = objects[Place("G", 0)]
            assert isinstance(entry, Entry)
            assert entry.kind == TRANSFER
            assert not [place for place in objects if isinstance(place, Place) and place.chain in ("p", "q")]
            return
    pytest.fail("no run has acks of both partitions")


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_N03_transfers_hold_in_a_million_states(holds: Holds) -> None:
    found = search(holds.run.world(Transfers), limit=1_000_000)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_N03_transfers_hold_in_random_walks(holds: Holds, seed: int) -> None:
    found = walk(holds.run.world(Transfers), steps=200_000, seed=seed)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


def test_N03_transfers_hold_in_a_short_walk() -> None:
    found = walk(DEEP[-1].run.world(Transfers), steps=1_000, seed=1)
    assert found.kind is None, str(found)
