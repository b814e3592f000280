"""The seven scenarios that the log was asked for, by their names, on the real engine."""

from __future__ import annotations

import threading

import pytest

from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import OffsetOutOfRange
from logstore.format.batches.batch import split
from logstore.objects import ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    crash,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from tests.support.patience import PATIENCE_S


def test_L11_read_after_ack_before_flush(objects: ObjectStore, clock: ManualClock) -> None:
    """No flush can happen (the clock stands still), nothing is uploaded, and yet every acked record is there."""
    faulty = FaultyStore(objects)
    with running(faulty, clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        uploads = faulty.count("put", suffix=".seg")
        for value in numbered(1, 50):
            receipt = log.append(value)
            result = log.read(receipt.offset)
            assert [(r.offset, r.value) for r in result.records()] == [(receipt.offset, value)]
            assert (result.source, result.durable_high_watermark) == ("buffer", 0)
        assert pairs(log) == at(0, numbered(0, 51))
        assert faulty.count("put", suffix=".seg") == uploads


def test_L11_every_acked_offset_across_many_flush_rotations(any_home: ObjectStore) -> None:
    """The log rotates all the time; every offset is read from whichever place it is in by then."""
    total = 300
    with running(any_home, ack="buffered") as store:
        log = partition(store)
        for value in numbered(0, total):
            receipt = log.append(value)
            if receipt.offset % 20 == 10:
                background(log.flush)
            if receipt.offset % 20 == 19:
                log.flush()
            if receipt.offset % 7 == 0:
                for offset in {0, receipt.offset // 2, receipt.offset}:
                    first = next(log.read(offset, 0).records())
                    assert (first.offset, first.value) == (offset, b"v%d" % offset)
        log.flush()
        assert len(log.segments()) >= 15
        assert pairs(log) == at(0, numbered(0, total))
    with running(any_home, writer="read_only") as reader:
        fresh = reader.topic("t").partition(0)
        assert pairs(fresh, visibility="durable") == at(0, numbered(0, total))
        for offset in range(0, total, 13):
            first = next(fresh.read(offset, 0).records())
            assert (first.offset, first.value) == (offset, b"v%d" % offset)


def test_L21_many_rotations_pass_through_a_manifest_and_open_as_they_were(objects: ObjectStore) -> None:
    with running(objects) as store:
        log = partition(store)
        for value in numbered(0, 150):
            log.append(value)
    with running(objects) as again:
        log = partition(again)
        assert pairs(log) == at(0, numbered(0, 150))
        assert (log.append(b"v150").offset, log.lost_ranges()) == (150, [])


def test_L12_the_exact_flush_window(objects: ObjectStore) -> None:
    """0–3 have been taken by a flush that is under way; 4 arrives. `read(0)` is 0, never 4."""
    gated = GatedStore(objects)
    with running(gated, ack="buffered") as store:
        log = partition(store)
        for value in numbered(0, 4):
            log.append(value)
        with gated.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            assert pairs(log) == at(0, numbered(0, 4)), "in the window alone"
            log.append(b"v4")
            for offset in range(5):
                first = next(log.read(offset, 0).records())
                assert (first.offset, first.value) == (offset, b"v%d" % offset)
            assert log.read(0).source == "window+buffer"
            assert pairs(log) == at(0, numbered(0, 5))
            assert log.durable_high_watermark == 0
            log.append(numbered(5, 3))
            assert pairs(log) == at(0, numbered(0, 8))
            gate.release()
            flushed.result(PATIENCE_S)
        assert log.durable_high_watermark == 4, "what arrived during the window is not in its segment"
        assert log.read(0).source == "segment+buffer"
        assert pairs(log) == at(0, numbered(0, 8))


class _TwoStepBuffer:
    """The broken way, as a contrast: a flush drains the buffer and only then uploads, and a read looks into the buffer."""

    def __init__(self) -> None:
        self.buffer: list[tuple[int, bytes]] = []
        self.stored: list[tuple[int, bytes]] = []

    def flush(self, during_upload: threading.Event, go_on: threading.Event) -> None:
        drained, self.buffer = self.buffer, []
        during_upload.set()
        go_on.wait(PATIENCE_S)
        self.stored += drained

    def read(self, offset: int) -> list[tuple[int, bytes]]:
        return [record for record in (*self.stored, *self.buffer) if record[0] >= offset]


def test_L12_the_broken_way_skips_acked_records_in_the_window() -> None:
    """So that it is known that the scenario above bites."""
    log = _TwoStepBuffer()
    log.buffer += at(0, numbered(0, 4))
    uploading, go_on = threading.Event(), threading.Event()
    flushed = background(log.flush, uploading, go_on)
    assert uploading.wait(PATIENCE_S)
    log.buffer.append((4, b"v4"))
    assert log.read(0) == [(4, b"v4")], "four acked records are skipped, silently"
    go_on.set()
    flushed.result(PATIENCE_S)


def test_L16_max_bytes_guard(objects: ObjectStore) -> None:
    """A limit smaller than one batch gives exactly that batch, whole, in each of the three places."""
    gated = GatedStore(objects)
    with running(gated, ack="buffered", compression="none") as store:
        log = partition(store)
        log.append([b"a" * 5000])
        log.read(0)
        log.append([b"b" * 10])

        def guarded(log: PartitionLog) -> None:
            for limit in (-1, 0, 1, 4999):
                result = log.read(0, limit)
                assert [len(r.value or b"") for r in result.records()] == [5000]
                assert (len(split(result.raw)), result.next_offset) == (1, 1)

        guarded(log)
        with gated.hold("put", suffix=".seg") as gate:
            flushed = background(log.flush)
            gate.wait_held()
            guarded(log)
        flushed.result(PATIENCE_S)
        guarded(log)
        assert log.read(0).next_offset == 2


def test_L08_drain_empties_the_buffer(any_home: ObjectStore) -> None:
    with running(any_home, ack="buffered") as store:
        topic = store.create_topic("t", 3)
        for number in range(30):
            topic.append(b"v%d" % number, partition=number % 3)
        assert store.health()["buffered_bytes"] > 0
        store.flush()
        health = store.health()
        assert health["buffered_bytes"] == 0
        assert [each["unflushed_records"] for each in health["partitions"]] == [0, 0, 0]
        for place in range(3):
            log = topic.partition(place)
            assert log.durable_high_watermark == log.buffered_high_watermark == 10
            assert log.read(0).source == "segment"
            assert pairs(log, visibility="durable") == at(0, [b"v%d" % n for n in range(place, 30, 3)])


def test_L15_the_durable_mark_is_untouched_by_buffered_appends(
    objects: ObjectStore, clock: ManualClock
) -> None:
    with running(objects, clock) as store:
        log = partition(store)
        log.append(numbered(0, 3))
        for value in numbered(3, 20):
            log.append(value, ack="buffered")
            assert log.durable_high_watermark == 3
            assert log.read(0).durable_high_watermark == 3
        assert log.buffered_high_watermark == 23
        with pytest.raises(OffsetOutOfRange):
            log.read(4, visibility="durable")


@pytest.mark.parametrize("fault", [None, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.REFUSE])
def test_L15_restart_never_points_a_mark_at_data_that_is_not_there(
    any_home: ObjectStore, fault: Fault | None
) -> None:
    """The process dies with records in the buffer, and with one upload that ended in each of the ways it can."""
    lifeline = FaultyStore(any_home)
    store = open_store(lifeline, ack="buffered")
    log = partition(store)
    log.append(numbered(0, 3))
    log.flush()
    log.append(numbered(3, 3))
    if fault is not None:
        lifeline.fail("put", suffix=".seg", with_=fault)
        lifeline.fail("*", suffix=".seg", times=None)  # what is tried again before the crash fails, too
        background(log.flush)
        until(lambda: any(call.outcome == fault.name for call in lifeline.calls))
    crash(store, lifeline)
    stored = numbered(0, 6) if fault is Fault.LOSE_ANSWER else numbered(0, 3)
    for writer in ("read_only", "exclusive"):
        with running(any_home, writer=writer) as again:
            log = again.topic("t").partition(0)
            if writer == "exclusive":
                log.open_writer()
            assert pairs(log) == at(0, stored)
            covered = {offset for lost in log.lost_ranges() for offset in range(*lost)} | set(
                range(len(stored))
            )
            assert covered == set(range(log.durable_high_watermark)), (
                "every offset below the mark is there or said lost"
            )
            assert log.read(log.durable_high_watermark).next_offset == log.durable_high_watermark
