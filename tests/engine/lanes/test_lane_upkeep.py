"""Manifests and checkpoints are written beside the uploads of a lane, not instead of them."""

from __future__ import annotations

import pytest

from logstore.engine.maintenance import checkpoint
from logstore.objects import MemoryStore
from logstore.testing import GatedStore
from tests.support.engine.harness import running
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
