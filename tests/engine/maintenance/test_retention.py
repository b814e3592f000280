"""Retention: the log begins where the topic says."""

from __future__ import annotations

import struct

import pytest

import logstore
from logstore.format.batches.batch import encode_batch
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.upkeep import GRACE_S, fill, open_store, refs, values_of
from tests.support.format.material import sealed

pytestmark = pytest.mark.usefixtures("how_far_the_store_is")


@pytest.mark.usefixtures("own_chain")
def test_L24_retention_by_age_moves_the_low_watermark_then_deletes_after_the_grace_period() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t", retention_seconds=60).partition(0)
        fill(log, 5)
        clock.advance(100)
        young = fill(log, 3, first=5)
        assert log._internal.maintenance.expire(clock.now_ms()) == 5
    with open_store(objects, clock) as store:
        log = store.topic("t").partition(0)
        assert log.low_watermark == 5
        assert values_of(log) == young
        assert log._internal.maintenance.garbage(clock.now_ms()) == []
        clock.advance(GRACE_S + 1)
        listed = [garbage.key for garbage in log._internal.maintenance.garbage(clock.now_ms())]
        assert listed == [log._internal.paths.segment(seq) for seq in range(1, 6)]  # 0 is the fence
        assert [garbage.key for garbage in log._internal.maintenance.collect(clock.now_ms())] == listed
        assert [objects.head(key) for key in listed] == [None] * 5
        assert values_of(log) == young


def test_L24_records_without_a_timestamp_are_as_old_as_their_segment() -> None:
    objects, clock = MemoryStore(), ManualClock()
    bare = bytearray(encode_batch([logstore.Record(b"bare")], now_ms=0, codec_id=0)[0])
    struct.pack_into(">qq", bare, 27, -1, -1)
    with open_store(objects, clock) as store:
        log = store.create_topic("t", retention_seconds=60).partition(0)
        log.append_batches(sealed(bare))
        assert next(log.records()).timestamp_ms == -1
        clock.advance(30)
        fill(log, 1)
        assert log._internal.maintenance.expire(clock.now_ms()) == 0
        clock.advance(31)
        assert log._internal.maintenance.expire(clock.now_ms()) == 1


def test_L24_retention_by_size_keeps_the_newest_bytes() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        fill(log, 10)
        size = refs(log)[-1].size
    with open_store(objects, clock) as store:
        store.delete_topic("t")
        log = store.create_topic("t", retention_bytes=3 * size + 1).partition(0)
        fill(log, 10)
        log._internal.maintenance.expire(clock.now_ms())
    with open_store(objects, clock, writer="read_only") as store:
        assert store.topic("t").partition(0).low_watermark == 7
