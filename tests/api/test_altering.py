"""Altering a topic that is in use: open partitions go by the new settings, and more partitions come beside the old ones."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.engine.maintenance.checkpoint import EVERY_PARTS
from logstore.errors import Closed, ReadOnly, UnknownTopic
from logstore.layout.catalog import Catalog
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import open_store, pairs, running, until
from tests.support.patience import PATIENCE_S

BIG = b"x" * 40_000
BUFFERED: dict[str, Any] = {"ack": "buffered", "compression": "none", "max_batch_bytes": 50_000}
"""So that each large record is a batch of its own: a batch is never cut."""


def flushed_segments(log: logstore.PartitionLog) -> int:
    """How many segments one flush of eight large records makes."""
    before = len(log.segments())
    for _ in range(8):
        log.append(BIG)
    log.flush()
    return len(log.segments()) - before


def test_L24_an_open_writer_keeps_to_a_new_segment_size_at_once() -> None:
    with running(MemoryStore(), ManualClock(), **BUFFERED) as store:
        log = store.create_topic("t").partition(0)
        assert flushed_segments(log) == 1
        altered = store.alter_topic("t", segment_bytes=100_000)
        assert altered.config.segment_bytes == 100_000
        assert altered.partition(0) is log
        assert flushed_segments(log) == 4
        store.alter_topic("t", segment_bytes=1 << 24)
        assert flushed_segments(log) == 1


def test_L24_an_open_shared_writer_keeps_to_a_new_segment_size_at_once() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, ManualClock(), writer="shared", compression="none", max_batch_bytes=50_000) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"it is open")
        store.alter_topic("t", segment_bytes=100_000)
        with gated.hold("put", suffix=".seg") as gate:
            futures = [log.submit(b"first")]
            gate.wait_held()
            futures += [log.submit(BIG) for _ in range(8)]  # all of them wait for the next flush
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(1, 10))
        assert max(ref.size for ref in log.segments()) < 100_000


def test_L24_retention_that_is_set_later_applies_to_partitions_that_are_open() -> None:
    clock = ManualClock()
    with running(MemoryStore(), clock) as store:
        log = store.create_topic("t").partition(0)
        for number in range(5):
            log.append(b"old %d" % number)
        clock.advance(100)
        log.append(b"young")
        assert log._internal.maintenance.expire(clock.now_ms()) == 0
        store.alter_topic("t", retention_seconds=60)
        assert log._internal.maintenance.expire(clock.now_ms()) == 5
        assert store.alter_topic("t", retention_seconds=None).config == logstore.TopicConfig()


def test_L24_a_writer_elsewhere_goes_by_new_settings_from_its_next_checkpoint_on() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as writing, open_store(objects, clock) as altering:
        log = writing.create_topic("t").partition(0)
        for number in range(5):
            log.append(b"old %d" % number)
        clock.advance(100)
        altering.alter_topic("t", retention_seconds=60)
        for number in range(EVERY_PARTS):
            log.append(b"young %d" % number)
        until(lambda: log.low_watermark == 5)
        assert writing.topic("t").config.retention_seconds == 60


def test_L24_a_process_that_asks_for_the_topic_again_goes_by_its_new_settings() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, **BUFFERED) as writing, open_store(objects, clock) as altering:
        log = writing.create_topic("t").partition(0)
        assert flushed_segments(log) == 1
        altering.alter_topic("t", segment_bytes=100_000)
        assert writing.topic("t").config.segment_bytes == 100_000
        assert flushed_segments(log) == 4


def test_settings_that_were_read_before_a_change_are_not_believed_after_it() -> None:
    """Somebody reads the descriptor, then another thread alters the topic, then the first goes on with what it has read."""
    with running(MemoryStore()) as store:
        topic = store.create_topic("t")
        stale = store._catalog.find("t")
        store.alter_topic("t", segment_bytes=1000)
        newest = store.add_partitions("t", 2)
        assert store._topic(stale) is newest
        assert newest.partition(0)._internal._settings.config.segment_bytes == 1000
        assert topic.partition(0) is newest.partition(0)


def test_a_topic_whose_descriptor_was_lost_and_recreated_is_another_one() -> None:
    """Its revisions begin again: they say nothing about which of the two is newer."""
    objects = MemoryStore()
    with running(objects) as store:
        old = store.create_topic("t")
        store.alter_topic("t", segment_bytes=1000)
        store.alter_topic("t", segment_bytes=2000)
        objects.delete("catalog/t")
        new = store.create_topic("t")
        assert new._internal.descriptor.incarnation != old._internal.descriptor.incarnation
        assert store.topic("t") is new
        assert new.config == logstore.TopicConfig()


def test_changes_of_two_processes_both_stand() -> None:
    objects = MemoryStore()
    with running(objects) as first, running(objects) as second:
        first.create_topic("t")
        first.alter_topic("t", retention_seconds=60)
        second.alter_topic("t", retention_bytes=1000)
        second.add_partitions("t", 3)
        first.alter_topic("t", segment_bytes=2000)
        topic = second.topic("t")
        assert topic.partitions == 3
        assert topic.config == logstore.TopicConfig(60, 1000, 2000)


def test_more_partitions_come_beside_the_old_ones(objects: ObjectStore) -> None:
    with running(objects) as store:
        topic = store.create_topic("t", 2)
        for partition in range(2):
            topic.append(b"before", partition=partition)
        grown = store.add_partitions("t", 4)
        assert (grown.partitions, store.topic("t").partitions, topic.partitions) == (4, 4, 2)
        assert grown.partition(1) is topic.partition(1)
        assert [grown.append(b"after", partition=number).offset for number in range(4)] == [1, 1, 0, 0]
        assert topic.append(b"as ever", partition=0).offset == 2
        assert store.add_partitions("t", 4).partitions == 4
        for bad in (3, 0, -1, True, 2.5, 10**9):
            with pytest.raises(ValueError, match="partitions="):
                store.add_partitions("t", bad)  # type: ignore[arg-type]
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(3)) == [(0, b"after")]


def test_deleting_reaches_partitions_that_were_added() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("t")
        store.add_partitions("t", 3).append(b"secret", partition=2)
        store.delete_topic("t")
    with open_store(objects, writer="read_only", delete_grace=0.0) as store:
        store.collect_garbage()  # of the lane, too
    assert all(b"secret" not in objects.get(info.key) for info in objects.list(""))


def test_bad_alterations_change_nothing() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("t", retention_seconds=60)
        before = objects.get("catalog/t")
        with pytest.raises(TypeError, match="retention_seconds, retention_bytes, segment_bytes"):
            store.alter_topic("t", retention="1h")  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="at least"):
            store.alter_topic("t", segment_bytes=0)
        for call in (lambda: store.alter_topic("u", segment_bytes=1), lambda: store.add_partitions("u", 2)):
            with pytest.raises(UnknownTopic):
                call()  # type: ignore[no-untyped-call]
        assert store.alter_topic("t").config.retention_seconds == 60
        assert objects.get("catalog/t") == before, "what changes nothing writes nothing"
    with open_store(objects, writer="read_only") as reader:
        with pytest.raises(ReadOnly):
            reader.alter_topic("t", segment_bytes=1)
        with pytest.raises(ReadOnly):
            reader.add_partitions("t", 2)
    with pytest.raises(Closed):
        store.alter_topic("t", segment_bytes=1)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_W04_a_lost_answer_does_not_fail_an_alteration(fault: Fault) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        store.create_topic("t")
        faulty.fail("put", prefix="catalog/", with_=fault)
        assert store.alter_topic("t", segment_bytes=1000).config.segment_bytes == 1000
        faulty.fail("put", prefix="catalog/", with_=fault)
        assert store.add_partitions("t", 2).partitions == 2
        assert Catalog(faulty).find("t").revision == 2, "each was made once"


def test_an_alteration_whose_answer_was_lost_does_not_alter_the_next_topic_of_that_name() -> None:
    objects = MemoryStore()

    class Replaces(FaultyStore):
        """While the answer of the first change is lost, somebody else deletes the topic and creates another."""

        armed = False

        def put(
            self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            try:
                return super().put(key, data, if_absent=if_absent, if_match=if_match)
            finally:
                if self.armed and key == "catalog/t":
                    self.armed = False
                    with running(objects) as other:
                        other.delete_topic("t")
                        other.create_topic("t", segment_bytes=7)

    faulty = Replaces(objects)
    with running(faulty) as store:
        store.create_topic("t")
        faulty.armed = True
        faulty.fail("put", prefix="catalog/", with_=Fault.LOSE_ANSWER)
        with pytest.raises(UnknownTopic):
            store.alter_topic("t", segment_bytes=1000)
        assert store.topic("t").config.segment_bytes == 7
