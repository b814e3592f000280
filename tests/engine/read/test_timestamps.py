"""L26: looking up by offset and by time: exact, and without reading what cannot hold the answer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from logstore.engine.chain.segment_table import Segments
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import CorruptData
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.format.stored.manifest import SegmentTable
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import open_store, partition, running
from tests.support.patience import PATIENCE_S

T0 = 1_700_000_000_000


def stamps(*times: int) -> list[Record]:
    return [Record(b"at %d" % time, timestamp_ms=time) for time in times]


def expected(times: list[int], wanted: int) -> int | None:
    """What the promise says, in one line."""
    return next((offset for offset, time in enumerate(times) if time >= wanted), None)


def check(log: PartitionLog, times: list[int]) -> None:
    """Each time there is, and those right beside it."""
    for wanted in sorted({time + near for time in times for near in (-1, 0, 1)}):
        assert log.offset_for_timestamp(wanted) == expected(times, wanted), wanted


def test_L26_the_first_record_with_that_time_or_a_later_one(any_home: ObjectStore) -> None:
    times = [T0, T0, T0 + 5, T0 + 5, T0 + 9, T0 + 20]
    with running(any_home) as store:
        log = partition(store)
        assert log.offset_for_timestamp(T0) is None
        for at in range(0, len(times), 2):
            log.append(stamps(*times[at : at + 2]))
        check(log, times)
    with open_store(any_home, writer="read_only") as store:
        check(store.topic("t").partition(0), times)


@pytest.mark.parametrize("seed", range(6))
def test_L26_times_in_any_order_wherever_the_records_are(seed: int) -> None:
    """Segments, window and buffer; batches whose times overlap; equal times; a clock that went back for a day."""
    rng = Random(seed)
    times: list[int] = []
    gated = GatedStore(MemoryStore())
    with running(gated, compression=rng.choice(["none", "zstd"])) as store:
        log = partition(store)
        for _ in range(12):
            more = [T0 + rng.randrange(-50, 50) for _ in range(rng.randrange(1, 5))]
            log.append(stamps(*more), ack=rng.choice(["durable", "buffered"]))
            times += more
            if rng.random() < 0.3:
                log.flush()
        log.append(stamps(T0), ack="buffered")
        times.append(T0)
        with gated.hold("put", suffix=".seg") as gate:
            log._internal.begin_flush()
            gate.wait_held()
            more = [T0 + 60, T0 - 60, T0 + 70]
            log.append(stamps(*more), ack="buffered")
            times += more
            check(log, times)
        log.flush()
        check(log, times)


def test_L26_inside_a_batch_that_somebody_else_encoded() -> None:
    """A producer's batch: times not in order, and a record below its base timestamp."""
    times = [T0 + 10, T0 - 500, T0 + 40, T0 + 20]
    raw, _ = encode_batch(stamps(*times), now_ms=0)
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append_batches(raw * 2)
        check(log, times * 2)


@pytest.mark.parametrize("times", [[0, 1, 2], [0, 9_223_372_036_854_774], [2**40, 2**41], [T0] * 50])
def test_L26_unusual_times(times: list[int]) -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append(stamps(*times))
        check(log, times)
        assert log.offset_for_timestamp(2**62) is None
        assert log.offset_for_timestamp(-(2**62)) == 0


def test_L26_the_answer_lies_above_the_low_watermark() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        for time in range(10):
            log.append(stamps(T0 + time))
        log._internal.maintenance.delete_before(4, clock.now_ms())
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert log.low_watermark == 4
        assert log.offset_for_timestamp(T0) == 4
        assert log.offset_for_timestamp(T0 + 7) == 7


def test_L26_the_answer_is_not_below_a_low_watermark_inside_a_batch() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock) as store:
        log = partition(store)
        log.append(stamps(*(T0 + time for time in range(10))))
        log.append(stamps(T0 + 99))
        log._internal.maintenance.delete_before(4, clock.now_ms())
    with open_store(objects, clock, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert (log.low_watermark, log.offset_for_timestamp(T0), log.offset_for_timestamp(T0 + 8)) == (
            4,
            4,
            8,
        )


def test_L26_a_look_up_by_time_reads_one_segment_of_many() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        for time in range(60):
            log.append(stamps(T0 + time * 10))
    faulty = FaultyStore(objects)
    with open_store(faulty, writer="read_only") as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        # Whether there is news, and whether what is not there was emptied.
        entries = [ref.key.split("@")[0] for ref in log.segments()]
        lane = LanePaths(entries[0].split("/")[1])
        behind = {lane.entry(len(entries) + 1), lane.checkpoint}  # behind the fence that ended it
        for wanted in (0, 31, 59):
            faulty.forget_calls()
            store._runtime.cache.clear()
            assert log.offset_for_timestamp(T0 + wanted * 10) == wanted
            keys = {call.key for call in faulty.calls} - behind
            assert keys == {entries[wanted]}
        faulty.forget_calls()
        assert log.offset_for_timestamp(T0 + 10_000) is None
        assert {call.key for call in faulty.calls} == behind, "later than everything: no segment is read"


def test_L26_a_follower_sees_what_was_just_committed() -> None:
    objects = MemoryStore()
    with running(objects) as store, open_store(objects, writer="read_only") as reader:
        log = partition(store)
        log.append(stamps(T0))
        follower = reader.topic("t").partition(0)
        assert follower.offset_for_timestamp(T0 + 1) is None
        log.append(stamps(T0 + 1))
        assert follower.offset_for_timestamp(T0 + 1) == 1


@pytest.mark.usefixtures("own_chain")
def test_L26_a_look_up_survives_maintenance_and_reports_a_missing_segment() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, delete_grace=10.0) as store:
        log = partition(store)
        for time in range(20):
            log.append(stamps(T0 + time))
        with open_store(objects, clock, writer="read_only", cache_bytes=0) as reader:
            old = reader.topic("t").partition(0)
            assert old.durable_high_watermark == 20
            assert log._internal.maintenance.compact(clock.now_ms(), bytes(16))
            clock.advance(11.0)
            assert log._internal.maintenance.collect(clock.now_ms())
            assert old.offset_for_timestamp(T0 + 3) == 3
            (merged,) = [info.key for info in objects.list(log._internal.paths.merged_prefix)]
            objects.delete(merged)
            with pytest.raises(CorruptData, match="missing") as caught:
                old.offset_for_timestamp(T0 + 3)
            assert caught.value.key == merged


@pytest.mark.parametrize("wanted", ["now", None, 1.5, True, b"0"])
def test_L26_a_time_is_an_int(wanted: object) -> None:
    with running(MemoryStore()) as store:
        with pytest.raises(TypeError, match="milliseconds"):
            partition(store).offset_for_timestamp(wanted)  # type: ignore[arg-type]


def test_L26_a_record_without_a_time_gets_the_clocks() -> None:
    clock = ManualClock()
    with running(MemoryStore(), clock) as store:
        log = partition(store)
        receipt = log.append(b"now")
        clock.advance(5.0)
        later = log.append([Record(b"later"), Record(b"its own", timestamp_ms=77)])
        assert receipt.timestamp_ms == clock.now_ms() - 5000
        assert later.timestamp_ms == clock.now_ms()
        assert [record.timestamp_ms for record in log.records()] == [
            receipt.timestamp_ms,
            later.timestamp_ms,
            77,
        ]


class Counting(list[int]):
    """A column that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("rows", [1_000, 1_000_000])
def test_L26_a_look_up_by_offset_is_logarithmic(rows: int) -> None:
    with running(MemoryStore()) as store:
        paths = partition(store)._internal.paths
    table = SegmentTable()
    table.end_offset = Counting(range(10, rows * 10 + 1, 10))  # type: ignore[assignment]
    table.base_offset.extend(range(0, rows * 10, 10))
    segments = Segments(paths, table)
    for offset in (0, 9, 10, rows * 5, rows * 10 - 1):
        Counting.looks = 0
        assert segments.row_at(offset) == offset // 10
        assert Counting.looks <= rows.bit_length() + 1
    assert segments.row_at(rows * 10) == rows


def test_L26_a_record_that_is_not_acked_yet_is_not_found() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(stamps(T0))
        with gated.hold("put", suffix=".seg") as gate:
            future = log.submit(stamps(T0 + 5))
            gate.wait_held()
            assert log.offset_for_timestamp(T0 + 1) is None
        future.result(PATIENCE_S)
        assert log.offset_for_timestamp(T0 + 1) == 1


def test_L26_topics_of_several_partitions_are_asked_one_by_one() -> None:
    with running(MemoryStore()) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"x", partition=1, timestamp_ms=T0 + 3)
        assert topic.partition(0).offset_for_timestamp(T0) is None
        assert topic.partition(1).offset_for_timestamp(T0) == 0
