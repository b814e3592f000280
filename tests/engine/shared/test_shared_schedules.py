"""Shared writers under every order of their store calls, and under every way in which a PUT can end.

What must hold in each: every append is acked, stands exactly once at the offset that its ack says, and offsets are dense.
"""

from __future__ import annotations

import pytest

from logstore.objects import MemoryStore
from logstore.producer import Producer
from logstore.testing.scheduler import Choices, RandomChoices, Schedule, for_every_schedule
from tests.support.engine.actors import Process, contents

pytestmark = pytest.mark.usefixtures("quiet")


def run_writers(
    choices: Choices, *, writers: int, appends: int, faults_max: int, reads_fail: bool = False
) -> Schedule:
    objects = MemoryStore()

    def body(process: Process) -> None:
        for number in range(appends):
            process.append(b"%d-%d" % (process.name, number))

    processes = [Process(objects, name, body, writer="shared") for name in range(writers)]
    schedule = Schedule(objects, choices, faults_max=faults_max, reads_fail=reads_fail)
    try:
        for process in processes:
            process.log.open_writer()
        schedule.run([process.act for process in processes])
    finally:
        for process in processes:
            process.close()
    stored = contents(objects)
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    wanted = [b"%d-%d" % (name, number) for name in range(writers) for number in range(appends)]
    assert sorted(value or b"" for _, value in stored) == wanted
    for process in processes:
        assert len(process.acked) == appends
        assert set(process.acked) <= set(stored)
        assert process.acked == sorted(process.acked)  # a writer's own appends keep their order
    return schedule


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


def run_retries(choices: Choices) -> None:
    """Two processes send the same numbered appends: a retry that outlived its first try, which may still be under way."""
    objects = MemoryStore()

    def body(process: Process) -> None:
        producer = Producer(process.log, 7)
        for number in range(2):
            receipt = producer.append(b"%d" % number, sequence=number)
            process.acked.append((receipt.offset, b"%d" % number))

    processes = [Process(objects, name, body, writer="shared") for name in range(2)]
    try:
        for process in processes:
            process.log.open_writer()
        schedule = Schedule(objects, choices, faults_max=4, reads_fail=True)
        schedule.run([process.act for process in processes])
    finally:
        for process in processes:
            process.close()
    stored = contents(objects)
    assert stored == [(0, b"0"), (1, b"1")]
    assert all(process.acked == stored for process in processes)


@pytest.mark.parametrize("seed", range(120))
def test_W04_W11_the_same_numbered_append_from_two_processes_is_stored_once(seed: int) -> None:
    run_retries(RandomChoices(seed))
