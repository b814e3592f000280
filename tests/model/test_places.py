"""Lanes as they are built, in every interleaving of single requests. `python -m tests.model` prints a table."""

from __future__ import annotations

import pytest

from tests.model import places_runs
from tests.model.harness import Contrast, Holds, Model, name_of
from tests.model.lanes import Place
from tests.model.places import Manifest, Places, Segment
from tests.model.places_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE
from tests.model.search import walk

MODEL = Model(Places, places_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N02_to_N06_what_is_built_holds_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N05_a_broken_rule_of_what_is_built_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)
    MODEL.check_cast(contrast.run)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=name_of)
def test_what_is_built_and_not_needed_for_safety(contrast: Contrast) -> None:
    """A claim without parts that a fence does not end is sealed by whoever wants the partition; and an adoption stands in
    the former life's next place, so nothing of that one can follow it."""
    MODEL.check_not_needed(contrast)


def test_every_variant_of_what_is_built_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


# Interesting states are reached


def test_N04_an_adopted_claim_goes_on_without_a_fence_in_the_partitions_chain() -> None:
    for objects, told in MODEL.ends("a next life of a next life"):
        if {"a1p0", "c0p0", "d0p0"} <= told.acked:
            assert [place.seq for place in objects if isinstance(place, Place) and place.chain == "p"] == [0]
            return
    pytest.fail("no run has acks of three lives of a lane")


def test_N04_a_claim_that_came_late_is_gone_on_with() -> None:
    for objects, told in MODEL.ends("a claim that came late"):
        claims = [one for one in objects.values() if isinstance(one, Segment) and one.lane == "B"]
        if (
            len(claims) == 1
            and claims[0].id[0] == "b"
            and any(record.startswith("c") for record in told.acked)
        ):
            return
    pytest.fail("no run has the second life write what the first one has claimed")


def test_N06_a_manifest_holds_what_a_partition_has_in_both_its_lanes() -> None:
    for objects, _ in MODEL.ends("both lanes are split"):
        manifest = objects.get(("manifest", "p"), Manifest())
        if {batch.claim for batch in manifest.batches} == {1, 2}:
            return
    pytest.fail("no run splits both lanes of p")


def test_W05_shared_writers_and_claims_follow_each_other_in_one_chain() -> None:
    for _, told in MODEL.ends("and a claim behind them"):
        if {"a0p0", "w0", "b0p0"} <= told.acked:
            return
    pytest.fail("no run has acks of a lane, of a shared writer behind it, and of a lane behind that")


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N02_to_N06_what_is_built_holds_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N02_to_N06_what_is_built_holds_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=200_000)


def test_N02_to_N06_what_is_built_holds_in_a_short_walk() -> None:
    found = walk(DEEP[-1].run.world(Places), steps=1_000, seed=1)
    assert found.kind is None, str(found)
