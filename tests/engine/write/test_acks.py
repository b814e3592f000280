"""L01, L05, L07, L10: what an ack means, and that nobody is told anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import logstore
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Fenced,
    OutcomeUnknown,
)
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
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
from tests.support.lanes.entries import store_lane
from tests.support.patience import PATIENCE_S


def test_L01_a_durable_record_is_there_for_a_fresh_reader_after_a_crash(any_home: ObjectStore) -> None:
    lifeline = FaultyStore(any_home)
    store = open_store(lifeline)
    log = partition(store)
    acked = [log.append(value) for value in numbered(0, 3)]
    batch = log.append(numbered(3, 4))
    crash(store, lifeline)
    assert [receipt.offset for receipt in acked] == [0, 1, 2]
    assert (batch.offset, batch.last_offset, batch.durability) == (3, 6, "durable")
    with running(any_home, writer="read_only") as reader:
        fresh = reader.topic("t").partition(0)
        assert fresh.durable_high_watermark == 7
        assert pairs(fresh, visibility="durable") == at(0, numbered(0, 7))


def test_L01_another_process_reads_the_record_at_the_very_moment_of_the_ack() -> None:
    objects = MemoryStore()
    seen: list[list[tuple[int, bytes]]] = []
    with running(objects) as store, running(objects, writer="read_only") as other:
        log, follower = partition(store), other.topic("t").partition(0)
        told = threading.Event()

        def on_ack(future: Future[logstore.Receipt]) -> None:
            seen.append(pairs(follower))
            told.set()

        log.submit(b"v0").add_done_callback(on_ack)
        assert told.wait(PATIENCE_S)
    assert seen == [[(0, b"v0")]]


def test_L05_a_quiet_partition_becomes_durable_when_its_interval_has_passed(clock: ManualClock) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, flush_interval=5.0) as store:
        log = partition(store)
        receipt = log.append(b"v0", ack="buffered")
        lane = f"lanes/{store_lane(store)}/"
        faulty.forget_calls()
        clock.advance(4.999)
        assert (log.durable_high_watermark, faulty.count("*", prefix=lane)) == (0, 0)
        clock.advance(0.001)
        receipt.wait_durable(PATIENCE_S)
        assert faulty.count("put", prefix=lane) == 1
        assert pairs(log, visibility="durable") == [(0, b"v0")]


def test_L05_the_interval_counts_from_the_oldest_record_not_from_the_newest(clock: ManualClock) -> None:
    with running(MemoryStore(), clock, flush_interval=5.0, ack="buffered") as store:
        log = partition(store)
        receipts = []
        for value in numbered(0, 5):
            receipts.append(log.append(value))
            clock.advance(1.0)
        receipts[-1].wait_durable(PATIENCE_S)
        assert pairs(log, visibility="durable") == at(0, numbered(0, 5))


def test_L07_a_waiter_returns_at_its_deadline_and_the_flush_goes_on() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            with pytest.raises(AppendTimeout, match="offsets 1 to 1"):
                log.append(b"v1", timeout=0.02)
            with pytest.raises(AppendTimeout):
                log.append(b"v2", timeout=0.0)
            assert len(gate.held) == 1, "the upload must still be under way"
            patient = log.submit(b"v3")
        assert patient.result(PATIENCE_S).offset == 3
        assert pairs(log) == at(0, numbered(0, 4))


def test_L07_giving_up_by_the_thousand_keeps_no_memory() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"first")
        with gated.hold("put", suffix=".seg"):
            receipt = log.submit(b"x")
            for _ in range(1000):
                with pytest.raises(AppendTimeout):
                    log.append(b"y", timeout=0.0)
            writer = log._internal._writer
            assert writer is not None
            assert len(writer.durable_waiters) < 200  # type: ignore[attr-defined]
        assert receipt.result(PATIENCE_S).offset == 1
        assert log.flush() == 1002


@pytest.mark.parametrize("one_by_one", [True, False])
def test_L07_one_deadline_covers_every_wait_of_an_append(clock: ManualClock, one_by_one: bool) -> None:
    """6 s go by while it waits for room, 5 s while it waits for a reservation: a deadline of 10 s is over."""
    gated = GatedStore(MemoryStore())
    with running(gated, clock, max_buffered_bytes=2000, max_batch_bytes=2000) as store:
        log = partition(store)
        log.append(b"v0")
        append = store.topic("t").append if one_by_one else log.append
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"x" * 1200)
            gate.wait_held()
            blocked = background(append, b"y" * 1200, ack="buffered", timeout=10.0)
            until(lambda: store._runtime.budget.pressed)
            clock.advance(6.0)
            gate.release()
            gate.wait_held()  # the reservation that it needs, and that does not come
            clock.advance(5.0)
            with pytest.raises(BufferFull):
                blocked.result(PATIENCE_S)
        until(lambda: store.health()["buffered_bytes"] == 0)


def test_L10_a_receipt_says_how_durable_the_record_was_when_it_was_acked(wal_dir: Callable[[], str]) -> None:
    with running(MemoryStore(), wal_dir=wal_dir()) as store:
        log = partition(store)
        for ack in ("buffered", "local", "durable"):
            before = log.durable_high_watermark
            receipt = log.append(b"x", ack=ack)
            assert receipt.durability == ack
            assert (log.durable_high_watermark > before) == (ack == "durable")
            assert log.buffered_high_watermark == receipt.last_offset + 1


def test_L10_wait_durable_forces_no_flush_and_waits_for_its_own_record_alone(clock: ManualClock) -> None:
    faulty = FaultyStore(MemoryStore())
    gated = GatedStore(faulty)
    with running(gated, clock, flush_interval=5.0, ack="buffered") as store:
        log = partition(store)
        early = log.append(b"early")
        faulty.forget_calls()
        with pytest.raises(AppendTimeout):
            early.wait_durable(timeout=0.02)
        assert (faulty.calls, early.durability) == ([], "buffered")
        with gated.hold("put", suffix=".seg") as gate:
            clock.advance(5.0)
            gate.wait_held()
            late = log.append(b"late")
            gate.release()
            early.wait_durable(PATIENCE_S)
            assert early.durability == "durable"
            with pytest.raises(AppendTimeout):
                late.wait_durable(timeout=0.0)
            assert late.durability == "buffered"


def test_L10_wait_durable_never_takes_a_successors_offset_for_its_own() -> None:
    """The record was acked below durable and lost to a fence; the new owner's log goes on past its offset."""
    objects = MemoryStore()
    with running(objects, ack="buffered") as old, running(objects) as new:
        log = partition(old)
        receipt = log.append(b"doomed")
        partition(new).append(b"new")
        with pytest.raises(Fenced):
            log.append(b"x", ack="durable")
        log.refresh()
        assert log.durable_high_watermark > receipt.offset, "the log has gone on past the lost record"
        with pytest.raises(Fenced):
            receipt.wait_durable(PATIENCE_S)
        with pytest.raises(Fenced):
            log.flush()
        with pytest.raises(OutcomeUnknown, match="offsets 0 to 0"):
            old.close()


def test_L10_a_receipt_carries_the_timestamp_that_the_record_has(clock: ManualClock) -> None:
    with running(MemoryStore(), clock) as store:
        log = partition(store)
        given = logstore.Record(b"x", timestamp_ms=1234)
        assert log.append(given).timestamp_ms == 1234
        assert log.append(b"y").timestamp_ms == clock.now_ms()
        assert log.append([given] * 3000).timestamp_ms == 1234
        assert store.topic("t").append(b"z", timestamp_ms=77).timestamp_ms == 77


def test_L10_append_many_gives_each_record_its_own_timestamp(clock: ManualClock) -> None:
    with running(MemoryStore(), clock) as store:
        topic = store.create_topic("t")
        late = clock.now_ms() + 10_000
        receipts = topic.append_many([logstore.Record(b"a", timestamp_ms=late), b"b", b"c"])
        assert [receipt.timestamp_ms for receipt in receipts] == [late, clock.now_ms(), clock.now_ms()]
        stored = [record.timestamp_ms for record in topic.partition(0).records()]
        assert stored == [receipt.timestamp_ms for receipt in receipts]
