"""The rules by which a partition is written, merged, collected and deleted, in every interleaving of single requests.

`python -m tests.model` prints what is found as a table, and `python -m tests.model NAME` the shortest way to a violation.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.model import runs, variants
from tests.model.harness import Contrast, Holds, Model, name_of, words_of
from tests.model.protocol import EXCLUSIVE, MANIFEST, NONE, Rules
from tests.model.runs import CONTRASTS, DEEP, RULES, WIDE, Run
from tests.model.search import search, walk

MODEL = Model(Rules, runs, variants)


@pytest.mark.parametrize("holds", RULES, ids=name_of)
def test_C01_to_C07_the_rules_hold_in_every_interleaving(holds: Holds) -> None:
    MODEL.check_holds(holds)


@pytest.mark.parametrize("contrast", CONTRASTS, ids=name_of)
def test_C01_to_C07_a_broken_rule_is_caught(contrast: Contrast) -> None:
    MODEL.check_caught(contrast)


@pytest.mark.parametrize("run", sorted({contrast.run for contrast in CONTRASTS}), ids=words_of)
def test_the_rules_hold_where_a_broken_one_was_caught(run: Run) -> None:
    """So it is the broken rule that was caught, not the cast."""
    MODEL.check_cast(run)


def test_every_variant_is_searched() -> None:
    MODEL.check_every_variant_is_searched()


def test_the_order_of_listing_and_manifest_does_not_make_the_sweep_safe() -> None:
    """The version in an object's name does. So the manifest may as well be read first."""

    class OtherOrder(Rules):
        list_and_manifest = variants.ManifestFirst.list_and_manifest

    found = search(MODEL.named("two merges, a sweep").run.world(OtherOrder))
    assert found.kind is None, str(found)
    assert "a stray" in found.seen


# Interesting states are reached


def test_two_collections_and_every_append_acked() -> None:
    for objects, told in MODEL.ends("two shared writers, two collections"):
        manifest = objects.get(MANIFEST, NONE)
        if manifest.until == 2 and len(told.acked) == 3 and not manifest.retired:
            assert objects[0].collected
            assert objects[1].collected
            return
    pytest.fail("no run empties two places in two rounds while everything is acked")


def test_a_sleeper_wakes_after_the_topic_was_deleted() -> None:
    for objects, told in MODEL.ends("deletion without a manifest"):
        stale = [
            key for key, held in objects.items() if isinstance(key, int) and held.id[:2] == ("y", "fence")
        ]
        if stale and len(told.acked) == 3 and "y1" in told.denied and objects[MANIFEST].gone:
            assert stale[0] < objects[MANIFEST].until
            return
    pytest.fail("no run has a fence of one who slept through the deletion")


def test_an_emptied_place_is_filled_again_by_a_late_copy() -> None:
    for objects, _ in MODEL.ends("an exclusive writer is taken over"):
        manifest = objects.get(MANIFEST, NONE)
        for place in range(manifest.until):
            held = objects.get(place)
            is_data = held is not None and held.mode == EXCLUSIVE and not held.fence and held.records
            if is_data and place not in manifest.retired:
                return
    pytest.fail("no run brings a collected segment back")


# Long runs


@pytest.mark.soak
@pytest.mark.parametrize("holds", WIDE, ids=name_of)
def test_C01_to_C07_the_rules_hold_in_a_million_states(holds: Holds) -> None:
    MODEL.check_many_states(holds)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("holds", DEEP, ids=name_of)
def test_C01_to_C07_the_rules_hold_in_random_walks(holds: Holds, seed: int) -> None:
    MODEL.check_walk(holds, seed)


def test_the_same_seed_walks_the_same_way() -> None:
    one, other = (walk(DEEP[0].run.world(), steps=2_000, seed=7) for _ in range(2))
    assert (one.states, one.over) == (other.states, other.over)


def test_a_walk_finds_a_broken_rule() -> None:
    found = walk(DEEP[0].run.world(variants.FenceUnchecked), steps=20_000, seed=1)
    assert found.kind == "lost"
    assert found.trace


# The search itself

_ACTORS = (
    "protocol.py",
    "variants.py",
    "lanes.py",
    "places.py",
    "lanes_runs.py",
    "places_runs.py",
    "book.py",
    "lives.py",
    "recoveries.py",
    "recoveries_runs.py",
    "guesses.py",
    "guesses_runs.py",
    "combining.py",
    "combining_runs.py",
    "groups.py",
    "groups_runs.py",
    "transactions.py",
    "transactions_runs.py",
    "together.py",
)


def test_nothing_hides_in_an_actor() -> None:
    """An actor's state is its variables. A `yield` in a `for` loop, or within an expression, would hide some."""
    for name in _ACTORS:
        tree = ast.parse(Path(__file__).with_name(name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.For):
                hidden = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Yield, ast.YieldFrom))]
                assert not hidden, f"{name}:{node.lineno}: a `yield` in a `for` loop"
        whole = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.Expr, ast.Return)) and node.value
        }
        for node in ast.walk(tree):
            if isinstance(node, (ast.Yield, ast.YieldFrom)):
                assert id(node) in whole, f"{name}:{node.lineno}: a `yield` within an expression"
