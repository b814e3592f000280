"""A checkpoint that somebody else was faster with is nothing to warn of."""

from __future__ import annotations

import logging

import pytest

from logstore.engine.maintenance import checkpoint
from logstore.objects import MemoryStore
from logstore.testing import GatedStore
from tests.support.engine.harness import open_store, partition, running, until


def test_W17_two_shared_writers_that_race_for_a_checkpoint_do_so_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One has asked for the manifest's etag and is slow to put its own; the other's stands by then."""
    caplog.set_level(logging.DEBUG, "logstore")
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, writer="shared") as slow, running(objects, writer="shared") as quick:
        with gated.hold("put", suffix="/manifest") as gate:
            for number in range(checkpoint.EVERY_SEGMENTS):
                partition(slow).append(b"%d" % number)
            gate.wait_held()
            partition(quick).append(b"quick")
            manifest = partition(quick)._internal.paths.manifest
            until(lambda: objects.head(manifest) is not None)
        until(lambda: any("faster with the checkpoint" in record.message for record in caplog.records))
        assert partition(slow).append(b"goes on").offset == checkpoint.EVERY_SEGMENTS + 1
    assert [record.message for record in caplog.records if record.levelno >= logging.INFO] == []
    with open_store(objects, writer="read_only") as reader:
        end = reader.topic("t").partition(0).durable_high_watermark
    assert end == checkpoint.EVERY_SEGMENTS + 2
