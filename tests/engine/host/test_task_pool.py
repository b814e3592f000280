"""The task pool's own promise: a task with a bug is said, and takes nobody's thread along."""

from __future__ import annotations

import logging
import threading

import pytest

from logstore.engine.host.task_pool import TaskPool
from logstore.testing import ManualClock
from tests.support.patience import PATIENCE_S


class Broken:
    def run(self) -> None:
        raise LookupError("a bug")


class Sound:
    def __init__(self) -> None:
        self.ran = threading.Event()

    def run(self) -> None:
        self.ran.set()


def test_tasks_run_on_the_threads_there_are_when_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock, tasks = ManualClock(), [Sound() for _ in range(4)]
    pool = TaskPool(clock, workers_max=3)
    try:
        pool.at(tasks[0], clock.monotonic())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for task in tasks[1:]:
            pool.at(task, clock.monotonic())
        assert all(task.ran.wait(PATIENCE_S) for task in tasks)
    finally:
        assert pool.close(PATIENCE_S)


def test_without_any_thread_it_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = ManualClock()
    pool = TaskPool(clock, workers_max=3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.at(Sound(), clock.monotonic())
    assert pool.close(PATIENCE_S)


def test_L29_a_task_that_raises_is_said_and_its_thread_runs_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, sound = ManualClock(), Sound()
    pool = TaskPool(clock, workers_max=1)
    try:
        with caplog.at_level(logging.ERROR):
            pool.at(Broken(), clock.monotonic())
            pool.at(sound, clock.monotonic())
            assert sound.ran.wait(PATIENCE_S)
    finally:
        pool.close(PATIENCE_S)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [LookupError]
