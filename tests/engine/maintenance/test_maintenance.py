"""Compaction, retention and garbage collection: the log stays readable, and only what nobody needs goes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import logstore
from logstore.engine.chain.garbage import Garbage
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.host import fan_out
from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.batch import encode_batch
from logstore.format.manifest import Manifest
from logstore.format.segment import SegmentFlags, SegmentHeader
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background
from tests.support.format.material import sealed
from tests.support.patience import PATIENCE_S

GRACE_S = 3600.0


@pytest.fixture(autouse=True, params=["near", "far"])
def _how_far_the_store_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From afar objects are read and deleted several at a time."""
    if request.param == "far":
        monkeypatch.setattr(fan_out, "QUICK_S", -1.0)


def open_store(objects: object, clock: ManualClock, **settings: Any) -> logstore.Store:
    return logstore.open(objects, clock=clock, delete_grace=GRACE_S, **settings)  # type: ignore[arg-type]


def fill(log: PartitionLog, count: int, first: int = 0) -> list[bytes]:
    """`count` segments of one record each."""
    values = [b"value-%d" % n for n in range(first, first + count)]
    for value in values:
        log.append(value)
    return values


def values_of(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def merge_all(log: PartitionLog, clock: ManualClock) -> int:
    merged = 0
    while (count := log._internal.maintenance.compact(clock.now_ms(), b"%016d" % merged)) > 0:
        merged += count
    return merged


def refs(log: PartitionLog) -> list[SegmentRef]:
    log.refresh()
    return log._internal.state.segments.all()


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


def test_L23_the_background_merges_by_itself_as_segments_come() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 200)
        assert values_of(log) == expected
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert len(refs(log)) < 100
        assert values_of(log) == expected


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


def test_L23_what_a_merge_that_died_has_left_is_collected_once_nothing_can_name_it() -> None:
    """The merged object stands; the manifest that should have named it was never written. As long as that one could still
    come, the object is left for the grace period; once another manifest stands, it goes at once."""
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with open_store(faulty, clock) as store:
        log = store.create_topic("t").partition(0)
        expected = fill(log, 8)
        assert merge_all(log, clock)
        expected += fill(log, 40, first=8)
        before = {info.key for info in objects.list(log._internal.paths.merged_prefix)}
        faulty.fail("put", suffix="manifest", times=None, with_=Fault.LOSE_REQUEST)
        with pytest.raises(logstore.errors.StoreError):
            log._internal.maintenance.compact(clock.now_ms(), b"d" * 16)
        (left,) = {info.key for info in objects.list(log._internal.paths.merged_prefix)} - before
        faulty.heal()
        assert store.collect_garbage(dry_run=True) == []
        assert log._internal.maintenance.compact(clock.now_ms(), b"l" * 16) > 1
        live = {info.key for info in objects.list(log._internal.paths.merged_prefix)} - before - {left}
        assert left in [item.key for item in store.collect_garbage(dry_run=True)]
        assert left in [item.key for item in store.collect_garbage()]
        assert live <= {info.key for info in objects.list(log._internal.paths.merged_prefix)} <= live | before
        assert values_of(log) == expected
    with open_store(objects, clock) as store:
        assert values_of(store.topic("t").partition(0)) == expected


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


def test_W06_a_fence_is_never_deleted_so_a_writer_that_slept_still_meets_it() -> None:
    objects, clock = MemoryStore(), ManualClock()
    sleeper = open_store(objects, clock)
    asleep = sleeper.create_topic("t").partition(0)
    asleep.append(b"before")
    with open_store(objects, clock) as store:
        log = store.topic("t").partition(0)
        fill(log, 20)
        merge_all(log, clock)
        clock.advance(100 * GRACE_S)
        log._internal.maintenance.collect(clock.now_ms())
    headers = [
        SegmentHeader.parse(objects.get(info.key))
        for info in objects.list("topics/")
        if "merged" not in info.key and info.key.endswith(".seg")
    ]
    assert sum(SegmentFlags.FENCE in header.flags for header in headers) == 2
    with pytest.raises(logstore.Fenced, match="epoch 2"):
        asleep.append(b"into the past")
    sleeper.close()


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
            assert (
                there._internal.maintenance._change(view, clock.now_ms(), lambda manifest: manifest) is None
            )
        assert values_of(log) == expected


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


class Merged(NamedTuple):
    """A partition most of whose twenty segments have just become one. `way`: the store's way to its objects."""

    log: PartitionLog
    way: FaultyStore
    clock: ManualClock

    def collect(self) -> list[Garbage]:
        return self.log._internal.maintenance.collect(self.clock.now_ms())

    @property
    def retired(self) -> list[str]:
        """The keys."""
        paths, retired = (
            self.log._internal.paths,
            Manifest.parse(self.way.get(self.log._internal.paths.manifest)).retired,
        )
        ever = self.clock.now_ms() + 1
        return [paths.segment(one) if isinstance(one, int) else one for one, _ in retired.until(ever)]


@pytest.fixture
def merged() -> Iterator[Merged]:
    way, clock = FaultyStore(MemoryStore()), ManualClock()
    with open_store(way, clock) as store:
        log = store.create_topic("t").partition(0)
        fill(log, 20)
        assert merge_all(log, clock) >= 15
        way.forget_calls()
        yield Merged(log, way, clock)


def test_L23_collecting_asks_about_no_object_that_is_still_in_its_grace_period(merged: Merged) -> None:
    """On a busy partition a day's worth of objects waits to be deleted: not a request for each of them, each time."""
    assert merged.collect() == []
    asked = {call.key for call in merged.way.calls if call.operation == "head"}
    assert not [key for key in asked if key.endswith(".seg")]
    merged.clock.advance(GRACE_S)
    assert len(merged.collect()) >= 15


def test_L24_a_round_beside_the_writer_deletes_so_many_and_the_next_ones_the_rest(merged: Merged) -> None:
    """After a day without one there may be a million: the partitions of a store take turns at it."""
    merged.clock.advance(GRACE_S)
    everything = merged.retired
    first = merged.log._internal.maintenance.collect(merged.clock.now_ms(), at_most=5)
    assert [item.key for item in first] == everything[:5]
    assert merged.retired == everything[5:]
    assert [item.key for item in merged.collect()] == everything[5:]
    assert merged.retired == []


def test_L23_what_was_deleted_and_could_not_be_noted_is_noted_by_the_next_one(merged: Merged) -> None:
    """Else the manifest would name it, and each run would ask for it, for ever."""
    merged.clock.advance(GRACE_S)
    merged.way.fail("put", suffix="manifest", times=1, with_=Fault.REFUSE)
    with pytest.raises(logstore.Determinate):
        merged.collect()
    left = merged.retired
    assert len(left) >= 15
    assert not [key for key in left if merged.way.head(key)]
    assert merged.collect() == []
    assert merged.retired == []


def test_L23_collecting_where_there_is_nothing_to_collect_costs_one_request(merged: Merged) -> None:
    assert merged.collect() == []
    assert [(call.operation, call.key) for call in merged.way.calls] == [
        ("get", merged.log._internal.paths.manifest)
    ]


def test_L24_of_two_who_collect_at_once_neither_fails() -> None:
    """One has looked at an object and the other deletes it, before the first reads what it is."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with open_store(objects, clock) as store, open_store(gated, clock, writer="read_only") as other:
        log = store.create_topic("t").partition(0)
        fill(log, 20)
        assert merge_all(log, clock)
        clock.advance(GRACE_S)
        with gated.hold("get", suffix=".seg") as gate:
            collecting = background(
                other.topic("t").partition(0)._internal.maintenance.collect, clock.now_ms()
            )
            gate.wait_held()
            assert len(log._internal.maintenance.collect(clock.now_ms())) >= 15
        collecting.result(PATIENCE_S)
        assert log._internal.maintenance.garbage(clock.now_ms()) == []
