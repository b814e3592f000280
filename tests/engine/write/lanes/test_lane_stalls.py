"""What a lane does when its upload hangs."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

import logstore
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import open_store, running, until
from tests.support.patience import PATIENCE_S


def test_C11_partitions_that_wait_for_the_upload_that_hangs_are_stalled_too() -> None:
    """What they have is in no upload yet: theirs begins when the one that hangs has ended."""
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with open_store(gated, clock, stall_after=60.0, lanes=1) as store:
        topic = store.create_topic("t", partitions=4)
        logs = [topic.partition(number) for number in range(4)]
        for log in logs:
            log.append(b"x")
        with gated.hold("put", suffix=".seg") as gate:
            waiting = [logs[0].submit(b"y")]
            gate.wait_held()
            waiting += [log.submit(b"y") for log in logs[1:]]
            clock.advance(100.0)
            assert all(each["stalled"] for each in store.health()["partitions"])
        for future in waiting:
            assert future.result(PATIENCE_S).offset == 1


def test_C11_an_upload_that_begins_while_the_one_before_it_is_acked_is_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partition is told that the store has answered, which was for the one before."""
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    with running(gated, clock, stall_after=60.0, lanes=1) as store:
        log, budget = store.create_topic("t").partition(0), store._runtime.budget
        log.append(b"opened")
        with gated.hold("put", suffix=".seg") as gate:
            first = log.submit(b"first")
            gate.wait_held(PATIENCE_S)
            give_back = budget.give_back

            def another_begins(charged: int) -> None:
                monkeypatch.undo()
                give_back(charged)
                later.append(log.submit(b"second"))
                gate.wait_held(PATIENCE_S)

            later: list[Future[logstore.Receipt]] = []
            monkeypatch.setattr(budget, "give_back", another_begins)
            gate.release(1)
            assert first.result(PATIENCE_S).offset == 1
            clock.advance(100.0)
            health = store.health()
            assert (health["stalled"], health["unanswered_seconds"]) == (True, 100.0)
            until(lambda: "has not answered an upload for 100.0 s" in caplog.text)
        assert later[0].result(PATIENCE_S).offset == 2
