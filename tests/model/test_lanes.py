"""The rules of lanes, in every interleaving of single requests. `python -m tests.model` prints what is found as a table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.model import lanes_runs
from tests.model.lanes import DATA, SEAL, Checkpoint, Lanes, Place
from tests.model.lanes_judge import Told
from tests.model.lanes_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE, Contrast, Holds, Run
from tests.model.search import Outcome, World, search, walk
from tests.model.store import Objects


def _name(value: Holds | Contrast) -> str:
    name = value.name if isinstance(value, Holds) else value.variant.__name__
    return name.replace(" ", "_")


@pytest.mark.parametrize("holds", RULES, ids=_name)
def test_N02_to_N09_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    _, found = _searched(holds)
    assert found.kind is None, str(found)
    assert found.whole
    _shows_something(found, holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=_name)
def test_N05_a_broken_rule_is_caught(contrast: Contrast) -> None:
    found = search(contrast.run.world(contrast.variant))
    assert found.kind == contrast.kind, str(found)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=lambda run: f"{run.words}{run.rules}")
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    found = search(run.world(), limit=2_000)
    assert found.kind is None, str(found)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=_name)
def test_what_is_not_needed_for_safety(contrast: Contrast) -> None:
    """New ids for uploads made anew are told from older ones by their places; a lane's end is known by its checkpoint; and
    nobody asks whose a void entry was."""
    found = search(contrast.run.world(contrast.variant))
    assert found.kind is None, str(found)
    assert found.whole


def test_every_variant_is_searched() -> None:
    made = {one for one in vars(lanes_runs).values() if isinstance(one, type) and issubclass(one, Lanes)}
    assert made - {Lanes} == {contrast.variant for contrast in CONTRASTS + NOT_NEEDED}


# Interesting states are reached


def test_N02_a_void_entry_stays_and_its_records_are_committed_once_behind_it() -> None:
    for objects, told in _ends("split under two uploads"):
        checkpoint = objects.get(("checkpoint", "A"), Checkpoint())
        void = [n for n in checkpoint.kept if objects[Place("A", n)].kind not in (SEAL, DATA)]
        if void and {"a0q0", "a1q0", "a2q0"} <= told.acked and "b0p0" in told.acked:
            assert objects[Place("A", void[0])].batches == ()
            return
    pytest.fail("no run splits over a void entry while everything is acked")


def test_N04_the_second_next_life_goes_on_where_the_first_one_did() -> None:
    for _, told in _ends("split, adopted twice"):
        if {"a1p0", "c0p0", "d0p0"} <= told.acked:
            return
    pytest.fail("no run has acks of three lives of a lane")


def test_N06_a_partition_is_in_the_table_from_both_its_lanes() -> None:
    for objects, _ in _ends("both lanes are split"):
        table = objects.get(("table", "t"))
        if table and {batch.claim for batch in table.batches if batch.part == "p"} == {0, 1}:
            return
    pytest.fail("no run splits both lanes of p")


def test_N06_a_stale_seal_stands_where_data_was_deleted() -> None:
    for objects, told in _ends("split under a taker"):
        checkpoint = objects.get(("checkpoint", "A"), Checkpoint())
        past = [n for n in range(checkpoint.until) if n not in checkpoint.kept and Place("A", n) in objects]
        if any(objects[Place("A", n)].kind == SEAL for n in past) and "b0p0" in told.acked:
            return
    pytest.fail("no run has a seal in the past, and an ack of its creator")


def test_N09_an_atomic_append_fails_whole_and_what_follows_is_dense() -> None:
    for _, told in _ends("atomic appends"):
        if "a1q0&" in told.denied and (1, "a2q0") in told.logs[1]:
            return
    pytest.fail("no run loses an atomic append")


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=_name)
def test_N02_to_N09_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    found = search(holds.run.world(), limit=1_000_000)
    assert found.kind is None, str(found)
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_N02_to_N09_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    found = walk(holds.run.world(), steps=200_000, seed=seed)
    assert found.kind is None, str(found)
    _shows_something(found, holds)


@pytest.mark.parametrize("holds", DEEP, ids=_name)
def test_N02_to_N09_the_rules_hold_in_short_walks(holds: Holds) -> None:
    found = walk(holds.run.world(), steps=5_000, seed=1)
    assert found.kind is None, str(found)


def _shows_something(found: Outcome, holds: Holds) -> None:
    assert holds.seen <= found.seen, f"never seen: {sorted(holds.seen - found.seen)}"
    assert found.over, "nobody ever came to an end"


@cache
def _searched(holds: Holds) -> tuple[World, Outcome]:
    world = holds.run.world()
    return world, search(world, progress=holds.progress)


def _ends(name: str) -> Iterator[tuple[Objects, Told]]:
    """What stands, and what was told, wherever every actor of that run has come to its end."""
    world, found = _searched(next(holds for holds in RULES if holds.name == name))
    return ((world.objects(state), world.told(state)) for state in found.over)
