"""The model test bites: each wrong tracker that real teams shipped dies in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from logstore.errors import StraddlingTransaction
from logstore.ingest import Challenge, FlushTracker
from logstore.testing import ManualClock
from tests.support.ingest.mutants import MUTANTS, mutant
from tests.support.ingest.tracker_machine import TrackerMachine

BY_CLOCK = "progress refreshed by commits"
BITE = settings(
    max_examples=400,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("name", sorted(set(MUTANTS) - {BY_CLOCK}))
def test_F03_the_model_kills_the_mutant(name: str) -> None:
    class MutantMachine(TrackerMachine):
        tracker_class = mutant(name)

    with pytest.raises((AssertionError, IndexError, KeyError, StraddlingTransaction)):
        run_state_machine_as_test(MutantMachine, settings=BITE)


def test_F11_new_commits_must_not_count_as_progress() -> None:
    """A busy source and a sink that stores nothing: the tracker challenges it, the mutant never."""
    challenged = {}
    for name in (None, BY_CLOCK):
        clock = ManualClock()
        tracker = (mutant(name) if name else FlushTracker)(0, lambda _: None, grace=60.0, clock=clock)
        tracker.register("stuck")
        found: list[Any] = []
        for boundary in range(1, 100):
            tracker.commit(boundary, ["stuck"])
            clock.advance(1.0)
            found += tracker.check()
        challenged[name] = any(isinstance(finding, Challenge) for finding in found)
    assert challenged == {None: True, BY_CLOCK: False}
