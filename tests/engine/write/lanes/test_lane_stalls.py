"""What a lane does when an entry cannot be made, or when its upload hangs."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.engine.memory import flush_window
from logstore.format.stored.segment import build_segment
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import at, drive, numbered, open_store, pairs, partition, running, until
from tests.support.patience import PATIENCE_S


def test_L03_running_out_of_memory_in_a_flush_of_a_lane_is_one_failed_try(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = build_segment, list[Any]()

    def failing(*args: Any) -> Any:
        if len(failures) < 5:
            failures.append(1)
            raise MemoryError("injected")
        return real(*args)

    with running(MemoryStore(), clock, lanes=1) as store:
        log = partition(store)
        log.append(b"v0", ack="buffered")
        monkeypatch.setattr(flush_window, "build_segment", failing)
        future = log.submit(b"v1")
        until(lambda: len(failures) > 0)
        assert pairs(log) == [(0, b"v0")]
        assert drive(clock, future).offset == 1
        assert pairs(log, visibility="durable") == at(0, numbered(0, 2))


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
