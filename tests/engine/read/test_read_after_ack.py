"""L11–L14, L16: an acked record is readable at once, from the buffer, the window and the segment, with the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.format.batches.batch import split
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from tests.support.patience import PATIENCE_S


@contextmanager
def spread(objects: ObjectStore) -> Iterator[tuple[PartitionLog, list[bytes]]]:
    """A log whose records lie in two segments, in a window whose upload is held, and in the buffer; and its values."""
    gated = GatedStore(objects)
    with running(gated, ack="buffered", compression="none") as store:
        log = partition(store)
        for first in (0, 3):
            for value in numbered(first, 3):
                log.append([value])
                log.read(log.buffered_high_watermark - 1)  # a look closes the open batch: one record a batch
            log.flush()
        with gated.hold("put", suffix=".seg") as gate:
            for value in numbered(6, 4):
                log.append([value])
                log.read(log.buffered_high_watermark - 1)
            flushed = background(log.flush)
            gate.wait_held()
            for value in numbered(10, 3):
                log.append([value])
                log.read(log.buffered_high_watermark - 1)
            yield log, numbered(0, 13)
        flushed.result(PATIENCE_S)


def test_L11_every_acked_offset_is_readable_at_every_step_of_its_flush(objects: ObjectStore) -> None:
    answers = GatedStore(objects)
    requests = GatedStore(answers)
    with running(requests, ack="buffered") as store:
        log = partition(store)
        for value in numbered(0, 5):
            receipt = log.append(value)
            assert pairs(log, start=receipt.offset) == [(receipt.offset, value)]
        assert log.read(0).source == "buffer"
        with answers.hold("put", after=True) as stored, requests.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            assert log.read(0).source == "window"
            assert pairs(log) == at(0, numbered(0, 5))
            gate.open()
            stored.wait_held()  # the object is there, and its writer does not know yet
            assert log.read(0).source == "window"
            assert pairs(log) == at(0, numbered(0, 5))
        flushed.result(PATIENCE_S)
        assert log.read(0).source == "segment"
        assert pairs(log) == at(0, numbered(0, 5))


@pytest.mark.parametrize("max_bytes", [150, 500, 1000, 5000, 20_000])
def test_L12_a_read_does_not_leap_from_small_segments_to_the_buffer(max_bytes: int) -> None:
    """Of an object of one record most is not records: segments that add up to `max_bytes` leave room for more, and those
    behind them come before the buffer."""
    with running(MemoryStore()) as store:
        log = partition(store)
        for value in numbered(0, 40):
            log.append(value)
        for value in numbered(40, 5):
            log.append(value, ack="buffered")
        for read in (log.read, log._internal.read_cached):
            found, position = [], 0
            while position < 45:
                result = read(position, max_bytes)
                assert result is not None
                found += [(record.offset, record.value) for record in result.records()]
                assert found[-1][0] == result.next_offset - 1
                position = result.next_offset
            assert found == at(0, numbered(0, 45))


def test_L11_concurrent_producers_each_read_their_own_record_at_once() -> None:
    """8 producers with every ack level, flushes in between: each reads its own record back right after its ack."""
    with running(MemoryStore(), flush_bytes=600) as store:
        log = partition(store)
        log.append(b"first", ack="buffered")

        def produce(number: int) -> None:
            for turn in range(60):
                value = b"p%d-%d" % (number, turn)
                ack = "durable" if turn % 4 == 3 else "buffered"
                receipt = log.append(value, ack=ack)  # type: ignore[arg-type]
                result = log.read(receipt.offset, 0)
                assert next(result.records()).value == value
                assert result.buffered_high_watermark > receipt.offset

        for producer in [background(produce, number) for number in range(8)]:
            producer.result(PATIENCE_S)
        assert len({value for _, value in pairs(log)}) == 481
        assert log.segments()[-1].seq > 10, "no rotation happened: the test shows nothing"


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 100, 1 << 20])
def test_L12_the_first_record_returned_is_the_one_asked_for(objects: ObjectStore, max_bytes: int) -> None:
    """0–5 in segments, 6–9 in the window, 10–12 in the buffer: never a later place's record instead of an earlier's."""
    with spread(objects) as (log, values):
        for offset, value in enumerate(values):
            first = next(log.read(offset, max_bytes).records())
            assert (first.offset, first.value) == (offset, value)
        assert [log.read(offset, 0).source for offset in (5, 6, 9, 10)] == [
            "segment",
            "window",
            "window",
            "buffer",
        ]


def test_L12_an_offset_inside_a_batch_gives_that_record_first_in_all_three_places(
    objects: ObjectStore,
) -> None:
    gated = GatedStore(objects)
    with running(gated, ack="buffered") as store:
        log = partition(store)
        log.append(numbered(0, 10))

        def check(source: str) -> None:
            for offset in range(10):
                result = log.read(offset)
                assert result.source == source
                assert [(r.offset, r.value) for r in result.records()] == at(
                    offset, numbered(offset, 10 - offset)
                )

        check("buffer")
        with gated.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            check("window")
        flushed.result(PATIENCE_S)
        check("segment")


def test_L13_the_bytes_of_a_batch_are_the_same_in_all_three_places(objects: ObjectStore) -> None:
    gated = GatedStore(objects)
    with running(gated, ack="buffered") as store:
        log = partition(store)
        log.append([b"before"] * 1000)  # as many as reserve what is appended next
        log.flush()
        records = [logstore.Record(b"v", b"k", (("h", b"1"), ("n", None)), 5), logstore.Record(None, b"k")]
        log.append(records)
        log.append([b"x" * 100] * 2000)
        in_buffer = log.read(1000)
        with gated.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            in_window = log.read(1000)
        flushed.result(PATIENCE_S)
        in_segment = log.read(1000)
    with running(objects, writer="read_only") as reader:
        afresh = reader.topic("t").partition(0).read(1000)
    assert [r.source for r in (in_buffer, in_window, in_segment)] == ["buffer", "window", "segment"]
    assert in_buffer.raw == in_window.raw == in_segment.raw == afresh.raw
    assert len(split(in_buffer.raw)) == 2


def test_L13_a_reader_meets_each_offset_once_and_in_order_while_flushes_run(objects: ObjectStore) -> None:
    """Two readers, one of small and one of large reads, follow a producer whose log is flushed all the time."""
    total = 400
    with running(objects, ack="buffered", flush_bytes=300) as store:
        log = partition(store)
        log.append(b"v0")

        def follow(max_bytes: int) -> list[tuple[int, bytes]]:
            seen: list[tuple[int, bytes]] = []
            position = 0
            while position < total:
                result = log.read(position, max_bytes, wait=PATIENCE_S)
                seen += [(record.offset or 0, record.value or b"") for record in result.records()]
                assert result.next_offset > position
                position = result.next_offset
            return seen

        readers = [background(follow, size) for size in (0, 1 << 16)]
        for value in numbered(1, total - 1):
            log.append(value)
        for reader in readers:
            assert reader.result(PATIENCE_S) == at(0, numbered(0, total))


@pytest.mark.parametrize("visibility", ["buffered", "durable"])
def test_L14_a_blocked_reader_is_woken_by_the_append_and_asks_the_store_nothing(visibility: str) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        log.flush()
        faulty.forget_calls()
        waiting = [background(log.read, 1, visibility=visibility, wait=1e6) for _ in range(3)]
        until(lambda: log._internal.state._readers_waiting == 3)
        assert faulty.calls == []
        log.append(b"v1")
        if visibility == "durable":
            assert not any(reader.done() for reader in waiting)
            log.flush()
        for reader in waiting:
            assert [(r.offset, r.value) for r in reader.result(PATIENCE_S).records()] == [(1, b"v1")]
        assert [call.operation for call in faulty.calls] in (
            ([],) if visibility == "buffered" else (["put"], ["put", "get"])
        )


def test_L14_a_tail_yields_each_record_as_it_comes_and_ends_with_the_store() -> None:
    store = open_store(MemoryStore(), ack="buffered")
    log = partition(store)
    log.append(b"v0")
    seen: list[bytes | None] = []
    came = threading.Condition()

    def follow() -> None:
        for record in log.tail():
            with came:
                seen.append(record.value)
                came.notify_all()

    tail = background(follow)
    for value in numbered(1, 20):
        with came:
            assert came.wait_for(lambda: len(seen) == int(value[1:]), PATIENCE_S)  # noqa: B023
        log.append(value)
    with came:
        assert came.wait_for(lambda: len(seen) == 21, PATIENCE_S)
    store.close()
    tail.result(PATIENCE_S)
    assert seen == numbered(0, 21)


def test_L14_a_wait_at_the_end_is_empty_when_its_time_is_over(clock: ManualClock) -> None:
    with running(MemoryStore(), clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        waiting = background(log.read, 1, wait=2.0)
        until(lambda: log._internal.state._readers_waiting == 1)
        clock.advance(1.9)
        assert not waiting.done()
        clock.advance(0.2)
        result = waiting.result(PATIENCE_S)
        assert (list(result.records()), result.next_offset) == ([], 1)


def _expected(sizes: list[int], first: int, max_bytes: int) -> int:
    """How many one-record batches from `first` on a read of `max_bytes` gives."""
    taken, used = 1, sizes[first]
    while first + taken < len(sizes) and used + sizes[first + taken] <= max_bytes:
        used += sizes[first + taken]
        taken += 1
    return taken


def test_L16_max_bytes_means_the_same_wherever_the_batches_lie(objects: ObjectStore) -> None:
    """Every first offset with every limit around a batch border: whole batches, at least one, no more than fit."""
    with spread(objects) as (log, values):
        sizes = [len(log.read(offset, 0)) for offset in range(len(values))]
        limits = {-5, 0, 1} | {sum(sizes[:n]) + d for n in range(1, 14) for d in (-1, 0, 1)}
        for offset, limit in product(range(len(values)), limits):
            for read in (log.read, log._internal.read_cached):
                result = read(offset, limit)
                assert result is not None
                count = 1 if limit <= 0 else _expected(sizes, offset, limit)
                assert [(r.offset, r.value) for r in result.records()] == at(
                    offset, values[offset : offset + count]
                )
                assert result.next_offset == offset + count
                assert len(result.raw) == sum(sizes[offset : offset + count])
        assert log.read(0, 1 << 20).source == "segment+window+buffer"


def test_L16_a_batch_larger_than_the_limit_comes_alone_and_a_read_crosses_segments(
    objects: ObjectStore,
) -> None:
    with running(objects, compression="none") as store:
        log = partition(store)
        log.append([b"x" * 5000])
        for value in numbered(1, 30):
            log.append([value])
        assert len(log.segments()) == 31
        assert [r.offset for r in log.read(0, 100).records()] == [0]
        crossing = log.read(1, 1000)
        assert len(crossing) <= 1000
        assert [(r.offset, r.value) for r in crossing.records()] == at(
            1, numbered(1, crossing.next_offset - 1)
        )
        assert crossing.next_offset > 3
        assert log.read(0, 1 << 20).next_offset == 31


def test_L13_a_scan_goes_on_when_the_store_is_closed_under_it(objects: ObjectStore) -> None:
    writer = open_store(objects)
    log = partition(writer)
    for value in numbered(0, 6):
        log.append(value)
    writer.close()
    reader = open_store(objects, writer="read_only")
    scan = reader.topic("t").partition(0)
    first = next(scan.read(0, 0).records())
    reader.close()
    assert [(first.offset, first.value), *pairs(scan, start=1)] == at(0, numbered(0, 6))
