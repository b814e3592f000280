"""Lanes as they are built, in every interleaving of single requests. `python -m tests.model` prints a table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.model import places_runs
from tests.model.lanes import Place
from tests.model.lanes_judge import Told
from tests.model.lanes_runs import Contrast, Holds
from tests.model.places import Manifest, Places, Segment
from tests.model.places_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE
from tests.model.search import Outcome, World, search, walk
from tests.model.store import Objects


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_N02_to_N06_what_is_built_holds_in_every_interleaving(holds: Holds) -> None:
    _, found = _searched(holds)
    assert found.kind is None, str(found)
    assert found.whole
    _shows_something(found, holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_N05_a_broken_rule_of_what_is_built_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)
    cast = search(contrast.run.world(Places), limit=2_000)
    assert cast.kind is None, f"it is the cast that was caught, not the broken rule: {cast}"


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=_name)
def test_what_is_built_and_not_needed_for_safety(contrast: Contrast) -> None:
    """A claim without parts that a fence does not end is sealed by whoever wants the partition; and an adoption stands in
    the former life's next place, so nothing of that one can follow it."""
    found = search(contrast.run.world(contrast.variant))
    assert found.kind is None, str(found)
    assert found.whole


def test_every_variant_of_what_is_built_is_searched() -> None:
    made = {one for one in vars(places_runs).values() if isinstance(one, type) and issubclass(one, Places)}
    assert made - {Places} == {contrast.variant for contrast in CONTRASTS + NOT_NEEDED}


# Interesting states are reached


def test_N04_an_adopted_claim_goes_on_without_a_fence_in_the_partitions_chain() -> None:
    for objects, told in _ends("a next life of a next life"):
        if {"a1p0", "c0p0", "d0p0"} <= told.acked:
            assert [place.seq for place in objects if isinstance(place, Place) and place.chain == "p"] == [0]
            return
    pytest.fail("no run has acks of three lives of a lane")


def test_N04_a_claim_that_came_late_is_gone_on_with() -> None:
    for objects, told in _ends("a claim that came late"):
        claims = [one for one in objects.values() if isinstance(one, Segment) and one.lane == "B"]
        if (
            len(claims) == 1
            and claims[0].id[0] == "b"
            and any(record.startswith("c") for record in told.acked)
        ):
            return
    pytest.fail("no run has the second life write what the first one has claimed")


def test_N06_a_manifest_holds_what_a_partition_has_in_both_its_lanes() -> None:
    for objects, _ in _ends("both lanes are split"):
        manifest = objects.get(("manifest", "p"), Manifest())
        if {batch.claim for batch in manifest.batches} == {1, 2}:
            return
    pytest.fail("no run splits both lanes of p")


def test_W05_shared_writers_and_claims_follow_each_other_in_one_chain() -> None:
    for _, told in _ends("and a claim behind them"):
        if {"a0p0", "w0", "b0p0"} <= told.acked:
            return
    pytest.fail("no run has acks of a lane, of a shared writer behind it, and of a lane behind that")


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_N02_to_N06_what_is_built_holds_in_a_million_states(holds: Holds) -> None:
    found = search(holds.run.world(Places), limit=1_000_000)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_N02_to_N06_what_is_built_holds_in_random_walks(holds: Holds, seed: int) -> None:
    found = walk(holds.run.world(Places), steps=200_000, seed=seed)
    assert found.kind is None, str(found)
    _shows_something(found, holds)


def test_N02_to_N06_what_is_built_holds_in_a_short_walk() -> None:
    found = walk(DEEP[-1].run.world(Places), steps=1_000, seed=1)
    assert found.kind is None, str(found)


def _shows_something(found: Outcome, holds: Holds) -> None:
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@cache
def _searched(holds: Holds) -> tuple[World, Outcome]:
    world = holds.run.world(Places)
    return world, search(world, progress=holds.progress)


def _ends(name: str) -> Iterator[tuple[Objects, Told]]:
    """What stands, and what was told, wherever every actor of that run has come to its end."""
    world, found = _searched(next(holds for holds in RULES if holds.name == name))
    return ((world.objects(state), world.told(state)) for state in found.over)
