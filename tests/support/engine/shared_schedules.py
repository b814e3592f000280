"""Shared writers that take the steps of one schedule, and what must hold at its end."""

from __future__ import annotations

from logstore.objects import MemoryStore
from logstore.producer import Producer
from tests.support.engine.actors import Process, contents
from tests.support.scheduler import Choices, Schedule


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
