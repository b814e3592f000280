"""C12: what was reserved and is not durable is shown, and after a crash the loss that is told is close to the real one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from logstore import aio
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.reservation import RESERVATION, RESERVATION_MIN, Reservation
from logstore.errors import BufferFull
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    background,
    crash,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
)
from tests.support.patience import PATIENCE_S


def interval(clock: ManualClock, log: PartitionLog, records: int) -> None:
    """One flush interval with so many buffered appends, stored at its end."""
    log._internal.open_writer(timeout=PATIENCE_S, ack="buffered")  # whatever that takes on a busy machine
    receipt = None
    for number in range(records):
        receipt = log.append(b"%d" % number, timeout=0.0)
    clock.advance(1.0)
    assert receipt is not None
    drive(clock, background(receipt.wait_durable, PATIENCE_S), step_s=0.0)


def test_C12_a_reader_elsewhere_shows_what_may_be_acked_and_not_stored() -> None:
    objects, clock = MemoryStore(), ManualClock()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, clock, ack="buffered", flush_interval=1.0)
    log = partition(store)
    assert log.unconfirmed() is None  # nothing was shown
    interval(clock, log, 10)
    assert log.unconfirmed() is None
    for value in numbered(0, 5):
        log.append(value)
    assert log.unconfirmed() == (10, 15)  # here it is known exactly
    assert log._internal.health()["unconfirmed"] == (10, 15)
    reserved = 10 + RESERVATION_MIN
    with running(objects, clock, writer="read_only") as other:
        reader = other.topic("t").partition(0)
        assert reader.unconfirmed() == (10, reserved)
        assert reader._internal.health()["unconfirmed"] == (10, reserved)
        crash(store, lifeline)
        reader.refresh()
        assert (reader.unconfirmed(), reader.lost_ranges()) == ((10, reserved), [])
        with running(objects, clock) as successor:
            assert partition(successor).append(b"after").offset == reserved
            reader.refresh()
            assert (reader.unconfirmed(), reader.lost_ranges()) == (None, [(10, reserved)])


def test_C12_asyncio_shows_it_too() -> None:
    async def main() -> None:
        async with aio.open(MemoryStore(), ack="buffered", flush_interval=3600.0) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append(b"x")
            assert await log.unconfirmed() == (0, 1)
            await log.flush()
            assert await log.unconfirmed() is None

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["shared", "replicated"])
def test_C12_what_only_durable_writers_append_is_never_unconfirmed(mode: str) -> None:
    objects = MemoryStore()
    with running(objects, writer="shared" if mode == "shared" else "exclusive") as store:
        log = partition(store)
        if mode == "shared":
            log.append(b"x")
        else:
            log.replicated("mine").compare_and_append([b"x"], 0, 1)
        with running(objects, writer="read_only") as other:
            assert other.topic("t").partition(0).unconfirmed() is None


@pytest.mark.parametrize("successor", ["exclusive", "shared", "replicated"])
def test_C12_whoever_takes_over_makes_it_a_loss_that_is_close(
    successor: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Five records are lost. It was 16,384 that were told."""
    objects, clock = MemoryStore(), ManualClock()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, clock, ack="buffered", flush_interval=1.0)
    log = partition(store)
    interval(clock, log, 3)
    for value in numbered(0, 5):
        log.append(value)
    crash(store, lifeline)
    with running(objects, writer="shared" if successor == "shared" else "exclusive") as again:
        taken = partition(again)
        if successor == "replicated":
            taken.replicated("mine").compare_and_append([b"after"], 0, 1)
        else:
            taken.append(b"after")
        with running(objects, writer="read_only") as other:
            (lost,) = other.topic("t").partition(0).lost_ranges()
        assert lost == (3, 3 + RESERVATION_MIN)
        assert taken.lost_ranges() == [lost]
    if successor == "exclusive":
        assert [
            record.levelno for record in caplog.records if "at most 64 records are lost" in record.message
        ] == [logging.WARNING]


def test_C12_a_take_over_that_loses_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    objects = MemoryStore()
    for number in range(2):
        with running(objects, ack="buffered") as store:
            assert partition(store).append(b"x").offset == number
    assert not [record for record in caplog.records if "lost" in record.message]


def test_C12_a_reservation_is_four_times_what_the_last_interval_appended() -> None:
    clock = ManualClock()
    with running(MemoryStore(), clock, ack="buffered", flush_interval=1.0) as store:
        log = partition(store)
        state = log._internal.state
        for records in (100, 100, 200, 50, 1, 1, 1, 1):
            interval(clock, log, records)
            ahead = state.tail.reserved_until - log.durable_high_watermark
            assert ahead >= max(RESERVATION_MIN, 4 * records)
        assert ahead == RESERVATION_MIN


def test_C12_L22_a_steady_load_makes_one_put_an_interval_and_a_burst_a_few_more() -> None:
    clock = ManualClock()
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, ack="buffered", flush_interval=1.0) as store:
        log = partition(store)
        interval(clock, log, 100)
        faulty.forget_calls()
        for number in range(20):
            interval(clock, log, 60 + number % 3 * 100)
        assert faulty.count("put", suffix=".seg") == 20
        clock.advance(1000.0)
        interval(clock, log, 1)
        faulty.forget_calls()
        receipts = [log.append(b"x", timeout=PATIENCE_S) for _ in range(20_000)]
        clock.advance(1.0)
        drive(clock, background(receipts[-1].wait_durable, PATIENCE_S), step_s=0.0)
        assert faulty.count("put", suffix=".seg") <= 5


def test_C12_flushes_that_others_ask_for_do_not_make_it_smaller() -> None:
    """With durable acks in between a flush holds few records; the interval has as many as before."""
    reservation = Reservation(1.0, begun=True, next_offset=0, now=0.0)
    ahead = [reservation.until(10 * turn, turn / 4) - 10 * turn for turn in range(1, 31)]
    assert ahead[:3] == [64, 80, 120]
    assert set(ahead[3:]) == {160}


def test_C12_before_the_first_is_needed_a_flush_is_as_if_it_were_the_only_one() -> None:
    """A writer of durable records reserves nothing. Its first reservation goes by what has come since its last flush."""
    reservation = Reservation(1.0, begun=False, next_offset=0, now=0.0)
    assert [reservation.until(1000 * turn, turn / 4) for turn in range(1, 5)] == [1000, 2000, 3000, 4000]
    reservation.ask(1)
    assert reservation.until(4010, 1.1) == 4010 + RESERVATION
    assert reservation.until(6010, 1.2) == 6010 + 4 * 2010  # from then on as many as the interval had


@pytest.mark.parametrize("ack", ["buffered", "local"])
def test_C12_L08_in_an_outage_appends_wait_when_the_reservation_is_used_up(
    ack: str, tmp_path: object
) -> None:
    clock, gated = ManualClock(), GatedStore(MemoryStore())
    settings = {"wal_dir": str(tmp_path)} if ack == "local" else {}
    with running(gated, clock, ack=ack, **settings) as store:
        log = partition(store)
        log.append(b"opens the writer")
        with gated.hold("put", suffix=".seg") as gate:
            log.append([b"x"] * (RESERVATION - 1))
            used = store.health()["buffered_bytes"]
            late = background(log.append, b"late", timeout=5.0)
            patient = background(log.append, b"patient", timeout=1e9)
            gate.wait_held()
            with pytest.raises(
                BufferFull, match=r"no reservation past offset 1024 .* used up.*nothing was appended"
            ):
                drive(clock, late)
            assert store.health()["buffered_bytes"] <= used + 100
            assert not patient.done()
        assert drive(clock, patient).offset == RESERVATION
        log.flush()
        assert [value for _, value in pairs(log)][-1] == b"patient"
