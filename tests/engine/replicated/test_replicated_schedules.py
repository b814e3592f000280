"""Replicated writers under every order of their store calls: what is stored is what one writer alone would have stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from logstore.objects import MemoryStore
from tests.support.engine.actors import Process, contents
from tests.support.scheduler import Choices, RandomChoices, Schedule, for_every_schedule

pytestmark = pytest.mark.usefixtures("quiet", "begin_in_own_chains")

Cuts = Sequence[tuple[int, int]]


def run_writers(choices: Choices, cuts: Sequence[Cuts], *, faults_max: int) -> Schedule:
    """Each writer feeds the source in its own pieces, from 0 to the same end."""
    objects = MemoryStore()
    end = cuts[0][-1][1]

    def body(process: Process) -> None:
        writer = process.log.replicated(str(process.name))
        for lower, upper in cuts[process.name]:
            applied = writer.compare_and_append([b"%d" % at for at in range(lower, upper)], lower, upper)
            assert applied.upper >= upper
            assert writer.frontier >= upper
        assert writer.frontier == end

    processes = [Process(objects, name, body) for name in range(len(cuts))]
    schedule = Schedule(objects, choices, faults_max=faults_max, reads_fail=faults_max > 1)
    try:
        for process in processes:
            process.log.replicated(str(process.name))
        schedule.run([process.act for process in processes])
    finally:
        for process in processes:
            process.close()
    assert contents(objects) == [(at, b"%d" % at) for at in range(end)]
    return schedule


THREE_AND_THREE: Sequence[Cuts] = (((0, 1), (1, 2), (2, 3)), ((0, 1), (1, 2), (2, 3)))
CUT_DIFFERENTLY: Sequence[Cuts] = (((0, 2), (2, 3), (3, 6)), ((0, 1), (1, 4), (4, 6)))


@pytest.mark.parametrize("cuts", [THREE_AND_THREE, CUT_DIFFERENTLY], ids=["same-cuts", "other-cuts"])
def test_W07_W09_all_interleavings_of_two_writers_with_three_ranges_each(cuts: Sequence[Cuts]) -> None:
    assert for_every_schedule(lambda choices: run_writers(choices, cuts, faults_max=0)) > 20


def test_W04_W07_all_interleavings_with_every_way_that_one_put_can_end() -> None:
    cuts = (((0, 2), (2, 3)), ((0, 1), (1, 3)))
    assert for_every_schedule(lambda choices: run_writers(choices, cuts, faults_max=1)) > 200


@pytest.mark.parametrize("seed", range(60))
def test_W13_W14_random_schedules_of_three_writers_with_faults(seed: int) -> None:
    third = ((0, 3), (3, 5), (5, 6))
    run_writers(RandomChoices(seed), (*CUT_DIFFERENTLY, third), faults_max=12)
