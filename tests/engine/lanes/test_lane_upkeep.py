"""Manifests and checkpoints are written beside the uploads of a lane, not instead of them."""

from __future__ import annotations

import pytest

from logstore.engine.maintenance import checkpoint
from logstore.engine.write.lanes import lane_checkpoints
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, partition, running, until
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S

PARTITIONS = 12


def test_N01_no_ack_waits_for_the_manifests_of_a_lanes_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All partitions of a lane come to so many parts at about the same time. Here none of their manifests is ever done."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store:
        topic = store.create_topic("t", PARTITIONS)
        logs = [topic.partition(number) for number in range(PARTITIONS)]
        for log in logs:
            log.append(b"first")
        monkeypatch.setattr(checkpoint, "EVERY_PARTS", 1)  # every commit from now on asks for one
        with gated.hold("get", suffix="manifest") as manifests:
            for ack in [log.submit(b"second") for log in logs]:
                assert ack.result(PATIENCE_S).offset == 1
            manifests.wait_held(PATIENCE_S)
            for ack in [log.submit(b"third") for log in logs]:
                assert ack.result(PATIENCE_S).offset == 2
            manifests.open()
    for number in range(PARTITIONS):
        assert seen(objects, number) == [(0, b"first"), (1, b"second"), (2, b"third")]


def test_N01_a_checkpoint_waits_until_those_who_were_acked_are_back() -> None:
    """It takes the interpreter for a while, if there are many partitions; the next entry is on its way by then."""
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    counted = FaultyStore(gated)

    def entries() -> list[str]:
        return [call.key for call in counted.calls if call.operation == "put" and call.key.endswith(".seg")]

    def place() -> int:
        return int(entries()[-1].rpartition("/")[2].removesuffix(".seg"))

    def checkpoints() -> int:
        """Of this lane; the one where the topic began has its own."""
        return counted.count("put", prefix=entries()[-1].rpartition("/")[0] + "/checkpoint")

    with running(counted, clock, lanes=1) as store:
        log, upkeep = partition(store), store._runtime.upkeep
        log.append(b"x")
        while place() % lane_checkpoints.CHECKPOINT_EVERY != lane_checkpoints.CHECKPOINT_EVERY - 2:
            log.append(b"x")
        until(lambda: not (upkeep._due or upkeep._running))
        before = checkpoints()
        with gated.hold("put", suffix=".seg") as gate:
            ack = background(log.append, b"the last one before it")
            gate.wait_held(PATIENCE_S)
            clock.advance(1.0)
            gate.open()
        ack.result(PATIENCE_S)
        assert clock.monotonic() + 0.25 in upkeep._due.values(), "a quarter of the upload's time later"
        log.append(b"the next entry")
        assert checkpoints() == before
        clock.advance(0.25)
        until(lambda: checkpoints() == before + 1)
