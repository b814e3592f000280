"""L01–L03, L05–L07, L10: what an ack means, and that nobody is told anything else."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest

import logstore
from engine.harness import (
    PATIENCE_S,
    at,
    background,
    crash,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from logstore.engine import flush_window
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    Fenced,
    LogStoreError,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock

FAULTS = (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.CONFLICT, Fault.UNAVAILABLE)


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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [1, 4])
def test_L02_a_failed_upload_keeps_its_batches_readable_and_in_order(
    fault: Fault, times: int, clock: ManualClock
) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        rule = faulty.fail("put", suffix=".seg", times=times, with_=fault)
        flushed = background(log.flush)
        until(lambda: rule.hits > 0)
        for value in numbered(1, 5):
            log.append(value)  # behind the window that fails
            assert pairs(log) == at(0, numbered(0, int(value[1:]) + 1))
        drive(clock, flushed)
        assert drive(clock, background(log.flush)) == 6
        assert pairs(log, visibility="durable") == at(0, numbered(0, 6))
    with running(objects, writer="read_only") as reader:
        fresh = reader.topic("t").partition(0)
        assert (pairs(fresh), fresh.lost_ranges()) == (at(0, numbered(0, 6)), [])


def test_L02_an_outage_of_any_length_loses_nothing(any_home: ObjectStore, clock: ManualClock) -> None:
    faulty = FaultyStore(any_home)
    with running(faulty, clock, ack="buffered", flush_interval=1.0) as store:
        log = partition(store)
        log.append(b"v0")
        rule = faulty.fail("put", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
        for value in numbered(1, 20):
            log.append(value)
            tried = rule.hits
            # Again and again: the upload that failed may ask for its next try only after the first advance.
            until(lambda: clock.advance(30.0) or rule.hits > tried)  # noqa: B023
            assert log.durable_high_watermark == 0
            assert pairs(log)[-1][1] == value
        faulty.heal()
        assert drive(clock, background(log.flush)) == 21
    with running(any_home, writer="read_only") as reader:
        assert pairs(reader.topic("t").partition(0)) == at(0, numbered(0, 21))


def test_L03_when_a_flush_ends_for_good_each_waiter_hears_it_and_none_of_it_is_stored() -> None:
    """A's records are in the window, B's arrive meanwhile and wait in the buffer: the fence must reach both."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store, running(objects) as rival:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            in_window = [log.submit(b"a1"), log.submit(b"a2")]
            gate.wait_held()
            in_buffer = [log.submit(b"b1"), log.submit([b"b2", b"b3"])]
            waiting = background(log.flush)
            partition(rival).append(b"winner")
        for future in (*in_window, *in_buffer, waiting):
            with pytest.raises(Fenced):
                future.result(PATIENCE_S)
        assert pairs(partition(rival)) == [(0, b"v0"), (1, b"winner")]
        assert store.health()["buffered_bytes"] == 0
        with pytest.raises(Fenced):
            log.append(b"too late")


def test_L03_no_false_ack_while_uploads_fail_at_random() -> None:
    """24 producers; a third of all uploads fails, some after the fact. Every success is stored once, at its offset."""
    objects = MemoryStore()
    faulty = FaultyStore(objects, seed=11)
    store = open_store(faulty, probe_interval=0.001, ack="durable")
    log = partition(store)
    log.append(b"first")
    faulty.random(put=0.34, suffix=".seg")
    acked: dict[int, bytes] = {}
    unsure: set[bytes] = set()
    lock = threading.Lock()

    def produce(number: int) -> None:
        dice = Random(number)
        for turn in range(15):
            value = b"p%d-%d" % (number, turn)
            try:
                receipt = log.append(value, timeout=dice.choice((0.0, 0.002, PATIENCE_S)))
            except AppendTimeout:
                with lock:
                    unsure.add(value)
            else:
                with lock:
                    assert receipt.offset not in acked, "an offset was given twice"
                    acked[receipt.offset] = value

    producers = [background(produce, number) for number in range(24)]
    for producer in producers:
        producer.result(PATIENCE_S)
    faulty.heal()
    store.close()
    with running(objects, writer="read_only") as reader:
        stored = dict(pairs(reader.topic("t").partition(0)))
    assert acked.items() <= stored.items()
    assert len(set(stored.values())) == len(stored), "a retried upload was stored twice"
    assert set(stored.values()) == {b"first", *acked.values(), *unsure}
    assert faulty.count("put", suffix=".seg") > len(stored) / 15, "no fault was met: the test shows nothing"


def test_L05_a_quiet_partition_becomes_durable_when_its_interval_has_passed(clock: ManualClock) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, flush_interval=5.0) as store:
        log = partition(store)
        receipt = log.append(b"v0", ack="buffered")
        faulty.forget_calls()
        clock.advance(4.999)
        assert (log.durable_high_watermark, faulty.calls) == (0, [])
        clock.advance(0.001)
        receipt.wait_durable(PATIENCE_S)
        assert faulty.count("put") == 1
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


def test_L06_close_makes_the_tail_durable(any_home: ObjectStore) -> None:
    store = open_store(any_home, ack="buffered")
    log = partition(store)
    for value in numbered(0, 10):
        log.append(value)
    store.close()
    store.close()
    with pytest.raises(Closed):
        log.append(b"late")
    with pytest.raises(Closed):
        store.create_topic("other")
    with running(any_home) as again:
        log = partition(again)
        assert pairs(log) == at(0, numbered(0, 10))
        assert log.append(b"v10").offset == 10, "a clean close leaves no gap"
        assert log.lost_ranges() == []


def test_L06_close_names_the_offsets_that_it_could_not_store() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store = open_store(faulty, ack="buffered")
    log = partition(store)
    log.append(numbered(0, 3))
    log.flush()
    log.append(numbered(3, 4))
    pending = log.submit(b"v7", ack="durable")
    faulty.down()
    with pytest.raises(OutcomeUnknown, match="offsets 3 to 7"):
        store.close(timeout=0.1)
    with pytest.raises(OutcomeUnknown):
        pending.result(PATIENCE_S)
    store.close()
    with pytest.raises(LogStoreError):
        log.append(b"late")
    with running(objects, writer="read_only") as reader:
        assert pairs(reader.topic("t").partition(0)) == at(0, numbered(0, 3))


def test_L06_an_upload_that_ends_after_close_gave_up_does_no_harm() -> None:
    """The PUT is under way when close() stops waiting; its success arrives later and must change nothing twice."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, ack="buffered")
    log = partition(store)
    log.append(b"v0")
    with gated.hold("put", suffix=".seg", after=True) as gate:
        flushed = background(log.flush)
        gate.wait_held()
        with pytest.raises(OutcomeUnknown, match="offsets 0 to 0"):
            store.close(timeout=0.05)
        with pytest.raises(OutcomeUnknown):
            flushed.result(PATIENCE_S)
    until(lambda: not any(thread.name.startswith("logstore-flush") for thread in threading.enumerate()))
    assert store.health()["buffered_bytes"] == 0
    with running(objects) as again:
        assert pairs(partition(again)) == [(0, b"v0")]


def test_L06_close_does_not_wait_out_a_writer_that_cannot_be_opened(clock: ManualClock) -> None:
    """The first append is still trying to fence when close() comes: it is told, instead of holding close() up."""
    faulty = FaultyStore(MemoryStore())
    store = open_store(faulty, clock, append_timeout=1e9)
    log = partition(store)
    rule = faulty.fail("put", suffix=".seg", times=None)
    appending = background(log.append, b"v0")
    until(lambda: rule.hits > 0)
    background(store.close).result(PATIENCE_S)
    with pytest.raises((StoreUnavailable, Closed)):
        appending.result(PATIENCE_S)


def test_L06_close_ends_appends_that_wait_for_room_or_for_a_reservation(clock: ManualClock) -> None:
    gated = GatedStore(MemoryStore())
    store = open_store(gated, clock, max_buffered_bytes=2000, max_batch_bytes=2000)
    log = partition(store)
    log.append(b"v0")
    with gated.hold("put", suffix=".seg") as gate:
        first = log.submit(b"x" * 1200)
        gate.wait_held()
        for_reservation = background(log.append, b"shown", ack="buffered")
        for_room = background(log.append, b"y" * 1200)
        until(lambda: store._runtime.budget.used > 1236)
        closing = background(store.close, timeout=1e9)
        with pytest.raises(Closed):
            for_reservation.result(PATIENCE_S)
        gate.release()
        with pytest.raises(Closed):
            for_room.result(PATIENCE_S)
        gate.open()
        closing.result(PATIENCE_S)
    assert first.result(0).offset == 1
    assert store.health()["buffered_bytes"] == 0


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
            writer = log._writer
            assert writer is not None
            assert len(writer.durable_waiters) < 200
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


def test_L10_a_receipt_says_how_durable_the_record_was_when_it_was_acked(wal_dir) -> None:  # type: ignore[no-untyped-def]
    with running(MemoryStore(), wal_dir=wal_dir()) as store:
        log = partition(store)
        for ack in ("buffered", "local", "durable"):
            before = log.durable_high_watermark
            receipt = log.append(b"x", ack=ack)  # type: ignore[arg-type]
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


def test_L03_an_error_of_a_foreign_type_counts_as_unknown_and_is_looked_into() -> None:
    """The PUT was carried out and its answer is an exception that is not ours: the record must be found, and stored once."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, probe_interval=0.001) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            future = log.submit(b"v1")
            gate.wait_held()
            gate.release_lost(error=RuntimeError("connection reset"))
        assert future.result(PATIENCE_S).offset == 1
        assert pairs(log) == at(0, numbered(0, 2))


def test_L03_a_store_that_refuses_only_reads_back_still_gets_the_truth_in_the_end() -> None:
    """The answer is lost and the look after it fails too: it stays unknown until it can be known; no second copy."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, probe_interval=0.001) as store:
        log = partition(store)
        log.append(b"v0")
        faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER)
        rule = faulty.fail("get", suffix=".seg", times=8)
        assert log.append(b"v1", timeout=PATIENCE_S).offset == 1
        assert rule.hits == 8
        assert pairs(log) == at(0, numbered(0, 2))


def test_L03_running_out_of_memory_in_a_flush_is_one_failed_try(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment cannot be built this time. The window stays, readable, and its waiter hears of the next try."""
    real, failures = flush_window.build_segment, []

    def failing(*args: Any) -> Any:
        if len(failures) < 5:
            failures.append(1)
            raise MemoryError("injected")
        return real(*args)

    with running(MemoryStore(), clock) as store:
        log = partition(store)
        log.append(b"v0", ack="buffered")
        monkeypatch.setattr(flush_window, "build_segment", failing)
        future = log.submit(b"v1")
        until(lambda: len(failures) > 0)
        assert pairs(log) == [(0, b"v0")]
        assert drive(clock, future).offset == 1
        assert pairs(log, visibility="durable") == at(0, numbered(0, 2))


def test_L03_a_listener_that_fails_makes_no_append_fail() -> None:
    """An acked record must not look like a failed append because somebody who watches the mark is broken."""
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append(b"v0")
        told: list[int] = []

        def broken() -> None:
            raise RuntimeError("the event loop is closed")

        log.add_listener(broken)
        log.add_listener(lambda: told.append(log.buffered_high_watermark))
        assert log.append(b"v1", ack="buffered").offset == 1
        assert store.topic("t").append(b"v2", ack="buffered").offset == 2
        assert log.append(b"v3").offset == 3
        until(lambda: 4 in told)
        assert {2, 3} <= set(told)


def test_L03_append_many_raises_only_when_every_partition_has_ended() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated)
    topic = store.create_topic("wide", 2)
    with running(objects) as rival:
        for number in range(2):
            topic.append(b"first", partition=number)
        rival.topic("wide").append(b"winner", partition=1)
        with pytest.raises(Fenced):
            topic.append(b"x", partition=1)
        keys = {topic.pick(b"k%d" % n): b"k%d" % n for n in range(20)}
        records = [
            logstore.Record(b"to %d" % place, key) for place, key in sorted(keys.items(), reverse=True)
        ]
        with gated.hold("put", suffix=".seg") as gate:
            many = background(topic.append_many, records)
            gate.wait_held()
            assert not many.done(), "the partition that works has not answered yet"
        with pytest.raises(Fenced):
            many.result(PATIENCE_S)
        assert pairs(topic.partition(0)) == [(0, b"first"), (1, b"to 0")]
    store.close()


def test_L10_append_many_gives_each_record_its_own_timestamp(clock: ManualClock) -> None:
    with running(MemoryStore(), clock) as store:
        topic = store.create_topic("t")
        late = clock.now_ms() + 10_000
        receipts = topic.append_many([logstore.Record(b"a", timestamp_ms=late), b"b", b"c"])
        assert [receipt.timestamp_ms for receipt in receipts] == [late, clock.now_ms(), clock.now_ms()]
        stored = [record.timestamp_ms for record in topic.partition(0).records()]
        assert stored == [receipt.timestamp_ms for receipt in receipts]
