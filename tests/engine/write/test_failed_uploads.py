"""L02, L03: uploads that fail, in every way: their records stay readable and in order, and nobody gets a false ack."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest

import logstore
from logstore.engine.memory import flush_window
from logstore.errors import (
    AppendTimeout,
    Fenced,
)
from logstore.format.stored.segment import segment_pieces
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from tests.support.patience import PATIENCE_S

FAULTS = (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.CONFLICT, Fault.UNAVAILABLE)


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


def test_L03_when_a_flush_ends_for_good_each_waiter_is_told_and_none_of_it_is_stored() -> None:
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
        for future in list[Future[Any]]([*in_window, *in_buffer, waiting]):
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
        rng = Random(number)
        for turn in range(15):
            value = b"p%d-%d" % (number, turn)
            try:
                receipt = log.append(value, timeout=rng.choice((0.0, 0.002, PATIENCE_S)))
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


@pytest.mark.parametrize("lanes", [0, 1])
def test_L03_running_out_of_memory_in_a_flush_is_one_failed_try(
    lanes: int, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment cannot be built this time. The window stays, readable, and its waiter learns of the next try."""
    real, failures = segment_pieces, list[Any]()

    def failing(*args: Any) -> Any:
        if len(failures) < 5:
            failures.append(1)
            raise MemoryError("injected")
        return real(*args)

    with running(MemoryStore(), clock, lanes=lanes) as store:
        log = partition(store)
        log.append(b"v0", ack="buffered")
        monkeypatch.setattr(flush_window, "segment_pieces", failing)
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

        log._internal.add_listener(broken)
        log._internal.add_listener(lambda: told.append(log.buffered_high_watermark))
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
        keys = {topic._internal.pick(b"k%d" % n): b"k%d" % n for n in range(20)}
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
