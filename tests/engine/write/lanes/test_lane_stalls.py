"""What a lane does when its upload hangs."""

from __future__ import annotations

from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import open_store
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
