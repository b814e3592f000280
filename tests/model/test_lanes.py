"""The rules of lanes, in every interleaving of single requests. `python -m tests.model` prints what is found as a table."""

from __future__ import annotations

import pytest

from tests.model import lanes_runs
from tests.model.harness import Contrast, Holds, Model, name_of, words_of
from tests.model.lanes import DATA, SEAL, Checkpoint, Lanes, Place
from tests.model.lanes_runs import CONTRASTS, DEEP, NOT_NEEDED, RULES, WIDE, Run
from tests.model.search import walk

MODEL = Model(Lanes, lanes_runs)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_N02_to_N09_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_N05_a_broken_rule_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)


@pytest.mark.parametrize("run", sorted({c.run for c in CONTRASTS}), ids=words_of)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    MODEL.check_cast(run)


@pytest.mark.parametrize("contrast", NOT_NEEDED, ids=name_of)
def test_what_is_not_needed_for_safety(contrast: Contrast) -> None:
    """New ids for uploads made again are told from older ones by their places; a lane's end is known by its checkpoint; and
    nobody asks whose a void entry was."""
    MODEL.check_not_needed(contrast)


def test_every_variant_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


# Interesting states are reached


def test_N02_a_void_entry_stays_and_its_records_are_committed_once_behind_it() -> None:
    for objects, told in MODEL.ends("split under two uploads"):
        checkpoint = objects.get(("checkpoint", "A"), Checkpoint())
        void = [n for n in checkpoint.kept if objects[Place("A", n)].kind not in (SEAL, DATA)]
        if void and {"a0q0", "a1q0", "a2q0"} <= told.acked and "b0p0" in told.acked:
            assert objects[Place("A", void[0])].batches == ()
            return
    pytest.fail("no run splits over a void entry while everything is acked")


def test_N04_the_second_next_life_goes_on_where_the_first_one_did() -> None:
    for _, told in MODEL.ends("split, adopted twice"):
        if {"a1p0", "c0p0", "d0p0"} <= told.acked:
            return
    pytest.fail("no run has acks of three lives of a lane")


def test_N06_a_partition_is_in_the_table_from_both_its_lanes() -> None:
    for objects, _ in MODEL.ends("both lanes are split"):
        table = objects.get(("table", "t"))
        if table and {batch.claim for batch in table.batches if batch.part == "p"} == {0, 1}:
            return
    pytest.fail("no run splits both lanes of p")


def test_N06_a_stale_seal_stands_where_data_was_deleted() -> None:
    for objects, told in MODEL.ends("split under a taker"):
        checkpoint = objects.get(("checkpoint", "A"), Checkpoint())
        past = [n for n in range(checkpoint.until) if n not in checkpoint.kept and Place("A", n) in objects]
        if any(objects[Place("A", n)].kind == SEAL for n in past) and "b0p0" in told.acked:
            return
    pytest.fail("no run has a seal in the past, and an ack of its creator")


def test_N09_an_atomic_append_fails_whole_and_what_follows_is_dense() -> None:
    for _, told in MODEL.ends("atomic appends"):
        if "a1q0&" in told.denied and (1, "a2q0") in told.logs[1]:
            return
    pytest.fail("no run loses an atomic append")


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_N02_to_N09_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N02_to_N09_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed, steps=200_000)


@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_N02_to_N09_the_rules_hold_in_short_walks(holds: Holds) -> None:
    found = walk(holds.run.world(), steps=5_000, seed=1)
    assert found.kind is None, str(found)
