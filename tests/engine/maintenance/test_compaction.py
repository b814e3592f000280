"""Compaction: fewer objects hold the same bytes."""

from __future__ import annotations

import pytest

from logstore.engine.chain.manifests.manifest_changes import change_manifest
from logstore.engine.maintenance import checkpoint
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import until
from tests.support.engine.upkeep import GRACE_S, fill, merge_all, open_store, refs, values_of

pytestmark = pytest.mark.usefixtures("how_far_the_store_is")


def test_L23_merged_segments_hold_the_same_bytes_and_old_references_still_read() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 20)
        before = log.read(0, 1 << 20).raw
        assert merge_all(log, clock) >= 15
        assert values_of(log) == expected  # this store still holds references to the old segments
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert len(refs(log)) < 20
        assert log.read(0, 1 << 20).raw == before
        assert values_of(log) == expected


@pytest.mark.usefixtures("own_chain")
def test_L23_a_reader_whose_segments_were_merged_and_deleted_finds_the_records_in_their_new_place() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        expected = fill(store.create_topic("t").partition(0), 20)
    with open_store(objects, clock, writer="read_only", cache_bytes=0) as old_reader:
        log = old_reader.topic("t").partition(0)
        assert log.durable_high_watermark == 20  # it holds references to all twenty segments
        with open_store(objects, clock) as store:
            other = store.topic("t").partition(0)
            merge_all(other, clock)
            clock.advance(GRACE_S + 1)
            assert other._internal.maintenance.collect(clock.now_ms())
        assert values_of(log) == expected


@pytest.mark.usefixtures("own_chain")
def test_L23_the_background_merges_by_itself_as_segments_come() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, checkpoint.EVERY_SEGMENTS)
        for first in range(
            checkpoint.EVERY_SEGMENTS, 4 * checkpoint.EVERY_SEGMENTS, checkpoint.EVERY_SEGMENTS
        ):
            until(lambda first=first: len(refs(log)) < first)  # type: ignore[misc]  # merged, by a thread of its own
            expected += fill(log, checkpoint.EVERY_SEGMENTS, first)
        assert values_of(log) == expected
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert len(refs(log)) < 100
        assert values_of(log) == expected


def test_L20_without_its_manifest_a_merged_partition_still_opens() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 20)
        merge_all(log, clock)
        clock.advance(GRACE_S + 1)
        log._internal.maintenance.collect(clock.now_ms())
        manifest = log._internal.paths.manifest
    objects.put(manifest, objects.get(manifest)[:-1] + b"?")
    with open_store(objects, clock) as store:
        log = store.topic("t").partition(0)
        assert values_of(log) == expected
        assert log.append(b"more").offset == 20


def test_L23_a_merge_that_loses_the_race_for_the_manifest_changes_nothing() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 12)
        faulty = FaultyStore(objects, seed=1)
        with open_store(faulty, clock, writer="read_only") as other:
            there = other.topic("t").partition(0)
            view = there._internal._chain.load()
            assert log._internal.maintenance.compact(clock.now_ms(), b"a" * 16) > 0
            chain = there._internal._chain
            assert change_manifest(chain, view, clock.now_ms(), lambda manifest: manifest) is None
        assert values_of(log) == expected


@pytest.mark.usefixtures("own_chain")
def test_L23_of_many_small_segments_few_are_left_and_each_record_is_rewritten_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large one that waits for as many more does not keep the small ones behind it from being merged."""
    monkeypatch.setattr(checkpoint, "EVERY_SEGMENTS", 1 << 30)  # nobody else merges meanwhile
    objects, clock = FaultyStore(MemoryStore()), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected: list[bytes] = []
        for round_ in range(32):
            expected += fill(log, 16, len(expected))
            log._internal.maintenance.compact(clock.now_ms(), b"%016d" % round_)
            assert len(log._internal._chain.load().segments) <= 1 + 6  # the newest is never merged
        written = [call.key for call in objects.calls if call.operation == "put" and "/merged/" in call.key]
        spans = [log._internal.paths.merged_name(key) or (0, 0, "") for key in written]
        assert values_of(log) == expected
    rewritten = sum(last - first + 1 for first, last, _ in spans)
    assert rewritten <= 6 * len(expected)  # the logarithm of 32 rounds, and one
