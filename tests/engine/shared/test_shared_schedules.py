"""Shared writers under every order of their store calls, and under every way in which a PUT can end.

What must hold in each: every append is acked, stands exactly once at the offset that its ack says, and offsets are dense.
"""

from __future__ import annotations

import pytest

from tests.support.engine.shared_schedules import run_retries, run_writers
from tests.support.scheduler import Choices, RandomChoices, for_every_schedule

pytestmark = pytest.mark.usefixtures("quiet")


def test_W11_all_interleavings_of_two_writers_with_three_appends_each() -> None:
    rebased = 0

    def run(choices: Choices) -> None:
        nonlocal rebased
        steps = run_writers(choices, writers=2, appends=3, faults_max=0).steps
        rebased += sum(step.operation == "put" for step in steps) > 6

    schedules = for_every_schedule(run)
    assert schedules > 300
    assert rebased > 300  # nearly all of them made somebody lose a race


def test_W04_W11_all_interleavings_with_every_way_that_one_put_can_end() -> None:
    schedules = for_every_schedule(lambda choices: run_writers(choices, writers=2, appends=2, faults_max=1))
    assert schedules > 500


def test_W04_W11_two_calls_that_end_badly_in_every_way_and_order() -> None:
    """Among them: the PUT is done, its answer lost, and the look at what is there fails too."""
    schedules = for_every_schedule(
        lambda choices: run_writers(choices, writers=2, appends=1, faults_max=2, reads_fail=True)
    )
    assert schedules > 400


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_W04_W11_all_interleavings_of_three_appends_each_with_every_way_that_one_put_can_end() -> None:
    for_every_schedule(lambda choices: run_writers(choices, writers=2, appends=3, faults_max=1))


@pytest.mark.parametrize("seed", range(40))
def test_W11_W13_random_schedules_of_four_writers_with_faults(seed: int) -> None:
    run_writers(RandomChoices(seed), writers=4, appends=4, faults_max=16, reads_fail=True)


@pytest.mark.parametrize("seed", range(120))
def test_W04_W11_the_same_numbered_append_from_two_processes_is_stored_once(seed: int) -> None:
    run_retries(RandomChoices(seed))
