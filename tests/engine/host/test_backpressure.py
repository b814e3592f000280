"""L08: unflushed bytes never pass the limit; who does not fit waits or is refused, and everything drains in order."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.engine.write.exclusive_appends import CREDIT_BYTES
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Fenced,
    InvalidRecord,
    OutcomeUnknown,
    RecordTooLarge,
    StoreUnavailable,
)
from logstore.format.batches.batch import encode_batch
from logstore.objects import MemoryStore
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


def held_bytes(store: logstore.Store) -> int:
    return int(store.health()["buffered_bytes"])


def test_L08_an_outage_of_any_length_holds_no_more_than_the_limit_and_then_drains_in_order(
    clock: ManualClock,
) -> None:
    limit = 50_000
    faulty = FaultyStore(MemoryStore())
    with running(
        faulty, clock, ack="buffered", max_buffered_bytes=limit, max_batch_bytes=10_000, flush_interval=1.0
    ) as store:
        log = partition(store)
        acked = [b"first"]
        log.append(b"first")
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
        refused = 0
        for number in range(600):
            value = b"%d:" % number + b"x" * 200
            try:
                log.append(value, timeout=0.0)
            except BufferFull:
                refused += 1
            else:
                acked.append(value)
            clock.advance(60.0)
            assert held_bytes(store) <= limit
        assert BufferFull.retriable
        assert refused > 300
        assert pairs(log) == at(0, acked)
        faulty.heal()
        drive(clock, background(log.flush))
        assert held_bytes(store) == 0
        assert store._runtime.budget.used_max <= limit
        assert pairs(log, visibility="durable") == at(0, acked)
        assert log.append(b"and on").offset == len(acked)


def test_L08_many_producers_never_pass_the_limit_and_all_get_through() -> None:
    limit = 8000
    faulty = FaultyStore(MemoryStore(), seed=5)
    with running(faulty, max_buffered_bytes=limit, max_batch_bytes=2000, probe_interval=0.001) as store:
        log = partition(store)
        log.append(b"first", ack="buffered")
        faulty.random(put=0.1, suffix=".seg")

        def produce(number: int) -> list[int]:
            return [
                log.append(
                    b"%d-%d" % (number, turn) + b"x" * 700, ack="buffered" if turn % 3 else "durable"
                ).offset
                for turn in range(25)
            ]

        offsets = sorted(
            offset
            for producer in [background(produce, n) for n in range(8)]
            for offset in producer.result(PATIENCE_S)
        )
        assert offsets == list(range(1, 201))
        assert store._runtime.budget.used_max <= limit
        faulty.heal()
        assert log.flush() == 201
        assert held_bytes(store) == 0


def test_L08_an_append_waits_for_room_and_goes_on_when_there_is_some() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, max_buffered_bytes=2000, max_batch_bytes=2000) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            first = log.submit(b"x" * 1500)
            gate.wait_held()
            waiting = background(log.append, b"y" * 1500)
            until(lambda: store._runtime.budget.pressed)
            assert not waiting.done()
            gate.release()
            assert first.result(PATIENCE_S).offset == 1
        assert waiting.result(PATIENCE_S).offset == 2


def test_L08_pressure_flushes_what_arrived_during_an_upload_too(clock: ManualClock) -> None:
    """A small window is under way, the buffer is nearly full, and its interval is an hour: an append that needs room must
    not wait for that hour."""
    gated = GatedStore(MemoryStore())
    with running(
        gated, clock, ack="buffered", max_buffered_bytes=4000, max_batch_bytes=4000, append_timeout=1e6
    ) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            background(log.flush)
            gate.wait_held()
            log.append(b"x" * 3000)
            blocked = background(log.append, b"y" * 2000)
            until(lambda: store._runtime.budget.pressed)
        assert blocked.result(PATIENCE_S).offset == 2


def test_L08_one_partitions_idle_buffer_makes_room_for_another(clock: ManualClock) -> None:
    with running(
        MemoryStore(),
        clock,
        ack="buffered",
        max_buffered_bytes=4000,
        max_batch_bytes=4000,
        append_timeout=1e6,
    ) as store:
        idle, busy = partition(store, "idle"), partition(store, "busy")
        kept = idle.append(b"x" * 3000)
        assert background(busy.append, b"y" * 3000).result(PATIENCE_S).offset == 0
        kept.wait_durable(PATIENCE_S)


def test_L08_room_taken_ahead_for_single_records_is_given_back(clock: ManualClock) -> None:
    limit = CREDIT_BYTES + 4000
    with running(
        MemoryStore(),
        clock,
        ack="buffered",
        max_buffered_bytes=limit,
        max_batch_bytes=limit,
        append_timeout=1e6,
    ) as store:
        partition(store, "a")
        small, large = store.topic("a"), partition(store, "b")
        for value in numbered(0, 10):
            small.append(value)
        assert held_bytes(store) > CREDIT_BYTES, "no room was taken ahead: the test shows nothing"
        assert background(large.append, b"y" * (limit - 1000)).result(PATIENCE_S).offset == 0
        assert pairs(small.partition(0)) == at(0, numbered(0, 10))
        store.flush()
        assert held_bytes(store) == 0


def test_L08_an_append_that_can_never_fit_is_refused_at_once() -> None:
    with running(MemoryStore(), max_buffered_bytes=5000, max_batch_bytes=2000, compression="none") as store:
        log = partition(store)
        with pytest.raises(RecordTooLarge):
            log.append(b"x" * 3000)
        with pytest.raises(RecordTooLarge, match="max_buffered_bytes"):
            log.append([bytes([n]) * 1500 for n in range(5)], timeout=1e6)
        assert log.append(b"fits").offset == 0


def test_L08_every_way_to_fail_gives_its_room_back() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, max_buffered_bytes=20_000, max_batch_bytes=4000)
    log = partition(store)
    topic = store.topic("t")
    log.append(b"v0")
    for append in (
        lambda: log.append("text"),  # type: ignore[arg-type]
        lambda: log.append([b"good", 5]),  # type: ignore[list-item]
        lambda: log.append_batches(b"junk"),
        lambda: topic.append(b"x", headers=[("h", 5)]),  # type: ignore[list-item]
        lambda: topic.append(b"x" * 5000),
    ):
        with pytest.raises(InvalidRecord):
            append()  # type: ignore[no-untyped-call]
        assert held_bytes(store) == 0
    with gated.hold("put", suffix=".seg") as gate:
        with pytest.raises(BufferFull, match="reservation"):
            log.append(b"x" * 1000, ack="buffered", timeout=0.05)
        with pytest.raises(BufferFull, match="reservation"):
            topic.append(b"x" * 1000, ack="buffered", timeout=0.05)
        assert held_bytes(store) == 0
        with pytest.raises(AppendTimeout):
            log.append(b"x" * 1000, timeout=0.05)
        assert held_bytes(store) >= 1000, "it is still queued"
        gate.open()
    log.flush()
    assert held_bytes(store) == 0
    with running(objects) as rival:
        partition(rival).append(b"winner")
        for ack in ("durable", "buffered"):
            with pytest.raises(Fenced):
                log.append([b"x" * 1000] * 3, ack=ack)
                log.flush()
            with pytest.raises(Fenced):
                topic.append(b"x" * 1000, ack=ack)
            assert held_bytes(store) == 0
    try:
        store.close()
    except OutcomeUnknown:
        assert held_bytes(store) == 0


@pytest.mark.parametrize("submit", ["submit", "submit_batches"])
def test_L07_a_submit_waits_for_room_no_longer_than_its_own_timeout(submit: str, clock: ManualClock) -> None:
    """`append_timeout` is an hour here: only the call's own deadline can have ended it."""
    faulty = FaultyStore(MemoryStore())
    limits = {"append_timeout": 3600.0, "max_buffered_bytes": 3000, "max_batch_bytes": 3000}
    with running(faulty, clock, ack="buffered", compression="none", **limits) as store:
        log = partition(store)
        log.append(b"x" * 2000)
        rule = faulty.fail("put", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
        given: Any = [logstore.Record(b"y" * 2000)]
        if submit == "submit_batches":
            given = encode_batch(given, now_ms=0, codec_id=0)[0]
        began = clock.monotonic()
        face = log if submit == "submit" else log._internal
        waiting = background(getattr(face, submit), given, timeout=2.0)
        with pytest.raises(BufferFull):
            drive(clock, waiting)
        assert 2.0 <= clock.monotonic() - began < 600.0
        assert log.buffered_high_watermark == 1, "nothing was taken"
        faulty.remove(rule)
        assert (
            drive(clock, background(getattr(face, submit), given, timeout=600.0)).result(PATIENCE_S).offset
            == 1
        )


def test_L07_a_submit_waits_for_a_reservation_no_longer_than_its_own_timeout(clock: ManualClock) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, append_timeout=3600.0) as store:
        log = partition(store)
        log.append(b"durable, so nothing is reserved")
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
        began = clock.monotonic()
        with pytest.raises(BufferFull, match="no reservation past offset 1"):
            drive(clock, background(log.submit, b"x", ack="buffered", timeout=2.0))
        assert 2.0 <= clock.monotonic() - began < 600.0
        faulty.heal()
        receipt = drive(clock, background(log.submit, b"x", ack="buffered", timeout=600.0)).result(PATIENCE_S)
        assert (receipt.offset, receipt.durability) == (1, "buffered")


def test_L07_a_submit_waits_for_the_writer_to_be_opened_no_longer_than_its_own_timeout(
    clock: ManualClock,
) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, append_timeout=3600.0) as store:
        log = partition(store)
        log.refresh()
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.UNAVAILABLE)
        began = clock.monotonic()
        with pytest.raises(StoreUnavailable, match="nothing was appended"):
            drive(clock, background(log.submit, b"x", timeout=2.0))
        assert 2.0 <= clock.monotonic() - began < 600.0
        faulty.heal()
        assert drive(clock, background(log.submit, b"x")).result(PATIENCE_S).offset == 0
