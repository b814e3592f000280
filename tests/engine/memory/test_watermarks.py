"""L15, L17–L19: the watermarks, what lies between them, and what a crash or a successor may do to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise

import pytest

from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.reservation import RESERVATION
from logstore.errors import BufferFull, Fenced, OffsetOutOfRange, OutcomeUnknown
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
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
from tests.support.patience import PATIENCE_S


def marks(log: PartitionLog) -> tuple[int, int, int]:
    return log.low_watermark, log.durable_high_watermark, log.buffered_high_watermark


def test_L15_the_marks_at_each_step_of_each_kind_of_append(wal_dir: Callable[[], str]) -> None:
    answers = GatedStore(MemoryStore())
    requests = GatedStore(answers)
    with running(requests, ack="buffered", wal_dir=wal_dir()) as store:
        log = partition(store)
        assert marks(log) == (0, 0, 0)
        log.append(b"v0")
        assert marks(log) == (0, 0, 1)
        log.append(b"v1", ack="local")
        assert marks(log) == (0, 0, 2)
        with answers.hold("put", after=True) as stored, requests.hold("put", suffix=".seg") as gate:
            durable = log.submit(b"v2", ack="durable")
            gate.wait_held()
            assert marks(log) == (0, 0, 2), "a durable append shows nothing before its ack"
            gate.open()
            stored.wait_held()
            assert marks(log) == (0, 0, 2), "stored, but nobody knows yet"
        durable.result(PATIENCE_S)
        assert marks(log) == (0, 3, 3)


def test_L15_with_durable_acks_alone_nobody_sees_an_unacked_record() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            waiting = [log.submit(b"v1"), log.submit(b"v2")]
            gate.wait_held()
            assert marks(log) == (0, 1, 1)
            assert pairs(log) == [(0, b"v0")]
            assert not log.read(1)
            with pytest.raises(OffsetOutOfRange):
                log.read(2)
        assert [future.result(PATIENCE_S).offset for future in waiting] == [1, 2]


def test_L15_a_later_ack_makes_the_earlier_unacked_record_visible_in_order() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"v0", ack="buffered")
        log.flush()
        with gated.hold("put", suffix=".seg") as gate:
            unacked = log.submit(b"v1", ack="durable")
            gate.wait_held()
            log.append(b"v2", ack="buffered")
            assert marks(log) == (0, 1, 3)
            assert pairs(log) == at(0, numbered(0, 3))
            log.submit(b"v3", ack="durable")
            assert marks(log) == (0, 1, 3)
            assert pairs(log) == at(0, numbered(0, 3))
        unacked.result(PATIENCE_S)


def test_L15_no_mark_moves_back_and_the_durable_one_covers_only_what_is_stored() -> None:
    """Every move of a mark is checked the moment it is announced, against a reader that knows only the objects."""
    objects = MemoryStore()
    faulty = FaultyStore(objects, seed=3)
    seen: list[tuple[int, int, int]] = []
    wrong: list[str] = []
    lock = threading.Lock()
    with running(faulty, probe_interval=0.001, flush_bytes=500) as store:
        log = partition(store)
        log.append(b"first", ack="buffered")
        other = open_store(objects, writer="read_only")
        witness = other.topic("t").partition(0)

        def look() -> None:
            with lock:
                durable = log.durable_high_watermark
                seen.append((log.low_watermark, durable, log.buffered_high_watermark))
                witness.refresh()
                if witness.durable_high_watermark < durable:
                    wrong.append(f"durable high watermark {durable}, stored {witness.durable_high_watermark}")

        log._internal.add_listener(look)
        faulty.random(put=0.3, suffix=".seg", faults=(Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST))

        def produce(number: int) -> None:
            for turn in range(40):
                log.append(b"p%d-%d" % (number, turn), ack="durable" if turn % 8 == 0 else "buffered")

        for producer in [background(produce, number) for number in range(4)]:
            producer.result(PATIENCE_S)
        faulty.heal()
        log._internal.remove_listener(look)
        other.close()
    assert wrong == []
    assert all(low <= durable <= buffered for low, durable, buffered in seen)
    for before, after in pairwise(seen):
        assert all(earlier <= later for earlier, later in zip(before, after, strict=True))
    assert len(seen) > 100


def test_L17_an_offset_that_was_shown_is_never_given_to_another_record(any_home: ObjectStore) -> None:
    """A consumer read two buffered records, then the process died before any flush."""
    lifeline = FaultyStore(any_home)
    dead = open_store(lifeline, ack="buffered")
    log = partition(dead)
    log.append(b"kept")
    log.flush()
    shown = [log.append(value).offset for value in (b"lost-1", b"lost-2")]
    assert pairs(log)[-1] == (2, b"lost-2")
    crash(dead, lifeline)
    with running(any_home) as store:
        log = partition(store)
        assert pairs(log) == [(0, b"kept")]
        receipt = log.append(b"after")
        assert receipt.offset > max(shown)
        assert pairs(log) == [(0, b"kept"), (receipt.offset, b"after")]
        assert [tuple(lost) for lost in log.lost_ranges()] == [(1, receipt.offset)]
        stepped = log.read(1)
        assert [(r.offset, r.value) for r in stepped.records()] == [(receipt.offset, b"after")]
        assert [tuple(lost) for lost in stepped.lost] == [(1, receipt.offset)]
    with running(any_home, writer="read_only") as reader:
        again = reader.topic("t").partition(0)
        assert [tuple(lost) for lost in again.lost_ranges()] == [(1, receipt.offset)]


def test_L17_with_durable_acks_alone_a_crash_leaves_no_gap(any_home: ObjectStore) -> None:
    for life in range(3):
        lifeline = FaultyStore(any_home)
        store = open_store(lifeline)
        log = partition(store)
        assert log.append(b"v%d" % life).offset == life
        crash(store, lifeline)
    with running(any_home, writer="read_only") as reader:
        log = reader.topic("t").partition(0)
        assert (pairs(log), log.lost_ranges()) == (at(0, numbered(0, 3)), [])


def test_L17_no_offset_is_shown_past_the_committed_reservation(clock: ManualClock) -> None:
    """The store answers nothing: exactly the reserved offsets may be shown, and not one more."""
    gated = GatedStore(MemoryStore())
    with running(gated, clock, ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        reserved = log._internal.state.tail.reserved_until
        assert reserved == RESERVATION
        with gated.hold("put", suffix=".seg"):
            log.append([b"x"] * (reserved - 1))
            assert log.buffered_high_watermark == reserved
            blocked = background(log.append, b"one more", timeout=5.0)
            with pytest.raises(BufferFull, match="reservation"):
                drive(clock, blocked, 2.0)
            assert log.buffered_high_watermark == reserved
        assert drive(clock, background(log.append, b"next", timeout=1e6)).offset == reserved


def test_L17_a_crash_after_the_reservation_ran_out_reuses_nothing() -> None:
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, ack="buffered")
    log = partition(store)
    shown = [log.append([b"x"] * 6000).last_offset for _ in range(8)]  # several reservations long
    assert len(log.segments()) >= 1
    crash(store, lifeline)
    with running(objects) as again:
        assert partition(again).append(b"after").offset > shown[-1]


def test_L17_a_segment_reserves_past_everything_shown_and_not_only_past_its_own_records() -> None:
    """All of a large reservation has been shown. The next segment holds only the first of the records that wait; a crash
    right behind it must not give shown offsets away."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    gated = GatedStore(lifeline)
    store = open_store(gated, ack="buffered")
    log = store.create_topic("t", segment_bytes=1).partition(0)
    receipt = log.append([b"x"] * 10_000)
    assert (receipt.offset, receipt.last_offset) == (0, 9_999)
    log.flush()
    reserved = log._internal.state.tail.reserved_until
    while log.buffered_high_watermark < reserved:
        log.append([b"y"] * min(10_000, reserved - log.buffered_high_watermark))
    with gated.hold("put", suffix=".seg") as gate:
        blocked = background(log.append, b"one more")
        gate.wait_held()
        before = log.durable_high_watermark
        gate.release()
        assert blocked.result(PATIENCE_S).offset == reserved
        assert before < log.durable_high_watermark < reserved
        crash(store, lifeline, hanging=True)
    with running(objects) as again:
        assert partition(again).append(b"after").offset > reserved


@pytest.mark.parametrize("carried_out", [True, False])
def test_L17_C12_a_reservation_that_becomes_smaller_holds_before_it_is_committed(carried_out: bool) -> None:
    """A burst has reserved much, and a quiet flush gives most of it back. While that is in doubt nothing past the smaller
    one is shown: either of the two may be what the next writer finds."""
    objects, clock = MemoryStore(), ManualClock()
    lifeline = FaultyStore(objects)
    gated = GatedStore(lifeline)
    store = open_store(gated, clock, ack="buffered")
    log = partition(store)
    log.append([b"x"] * 10_000)
    drive(clock, background(log.flush), step_s=0.0)
    large = log._internal.state.tail.reserved_until
    clock.advance(10.0)
    log.append(b"quiet")
    with gated.hold("put", suffix=".seg", after=carried_out) as gate:
        flushing = background(log.flush, timeout=1e6)
        gate.wait_held()
        while True:
            try:
                log.append([b"y"] * 1000, timeout=0.0)
            except BufferFull:
                break
        shown = log.buffered_high_watermark
        assert shown < large
        crash(store, lifeline, hanging=True)
    del flushing
    with running(objects) as again:
        assert partition(again).append(b"after").offset >= shown


def test_L18_reading_outside_of_the_marks_says_what_the_marks_are(objects: ObjectStore) -> None:
    with running(objects, ack="buffered") as store:
        log = partition(store)
        log.append(numbered(0, 5))
        log.flush()
        log.append(numbered(5, 2))
        for offset, visibility, high in ((-1, "buffered", 7), (8, "buffered", 7), (6, "durable", 5)):
            with pytest.raises(OffsetOutOfRange) as caught:
                log.read(offset, visibility=visibility)  # type: ignore[arg-type]
            assert (caught.value.low, caught.value.high, caught.value.offset) == (0, high, offset)
        for visibility, high in (("buffered", 7), ("durable", 5)):
            result = log.read(high, visibility=visibility)  # type: ignore[arg-type]
            assert (bool(result), result.next_offset) == (False, high)


def test_L18_an_offset_above_the_mark_is_refused_at_once_even_by_a_reader_that_would_wait() -> None:
    with running(MemoryStore(), ack="buffered") as store:
        log = partition(store)
        log.append(b"v0")
        with pytest.raises(OffsetOutOfRange):
            background(log.read, 5, wait=1e6).result(PATIENCE_S)


def test_L18_a_follower_that_waits_learns_of_the_mark_before_it_refuses() -> None:
    """The other process has just told it an offset that its own last look at the store did not show."""
    objects, clock = MemoryStore(), ManualClock()
    with (
        running(objects, clock) as store,
        running(objects, clock, writer="read_only", follow_interval=60.0) as other,
    ):
        log = partition(store)
        log.append(b"v0")
        follower = other.topic("t").partition(0)
        assert pairs(follower) == [(0, b"v0")]
        log.append(numbered(1, 3))
        result = background(follower.read, 3, wait=5.0).result(PATIENCE_S)
        assert [(r.offset, r.value) for r in result.records()] == [(3, b"v3")]


def test_L19_durable_visibility_shows_nothing_that_a_crash_could_take_back() -> None:
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    gated = GatedStore(lifeline)
    store = open_store(gated, ack="buffered")
    log = partition(store)
    log.append(numbered(0, 2))
    log.flush()
    with gated.hold("put", suffix=".seg") as gate:
        log.append(numbered(2, 2))
        flushed = background(log.flush)
        gate.wait_held()
        log.append(numbered(4, 2))
        assert pairs(log) == at(0, numbered(0, 6))
        durable = pairs(log, visibility="durable")
        assert durable == at(0, numbered(0, 2))
        assert not log.read(2, visibility="durable")
        crash(store, lifeline, hanging=True)
    with pytest.raises(Exception):  # noqa: B017 whatever a dying process says
        flushed.result(0)
    with running(objects) as again:
        assert pairs(partition(again)) == durable


# Two writers, and readers in between


@pytest.mark.usefixtures("begin_in_own_chains")
def test_L15_a_reader_that_follows_may_see_our_own_commit_before_we_do() -> None:
    """A look at the store that began before the writer was opened here finds the writer's first segment while the answer
    to its PUT is still on its way: the record must not be counted twice, and its waiter must be told."""
    answers = GatedStore(MemoryStore())
    with running(answers) as store:
        log = partition(store)
        log.refresh()
        with answers.hold("get", suffix=".seg") as asked:
            looking = background(log.refresh)
            asked.wait_held()
            log.open_writer()
            with answers.hold("put", suffix=".seg", after=True) as stored:
                appended = log.submit(b"v0")
                stored.wait_held()
                asked.open()
                looking.result(PATIENCE_S)
            assert appended.result(PATIENCE_S).offset == 0
        assert pairs(log) == [(0, b"v0")]
        assert marks(log) == (0, 1, 1)
        assert log.append(b"v1").offset == 1


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W05_a_reader_that_follows_does_not_move_the_writers_place_in_the_chain() -> None:
    """While A is opening its writer here, B fences it at once and shows buffered records. A reader in A's process sees B's
    fence first. A must find itself fenced; it must not go on behind B's fence, with offsets that B has shown."""
    objects = MemoryStore()
    answers = GatedStore(objects)
    with running(answers) as a, running(objects, ack="buffered") as b:
        ours, theirs = partition(a), partition(b)
        ours.refresh()
        with answers.hold("put", suffix=".seg", after=True) as stored:
            opening: Future[object] = background(ours.open_writer)
            stored.wait_held()
            theirs.append(b"b0")
            ours.refresh()
        opening.result(PATIENCE_S)
        with pytest.raises(Fenced):
            ours.append(b"a0")
        assert theirs.append(b"b1", ack="durable").offset == 1
        assert pairs(theirs) == [(0, b"b0"), (1, b"b1")]


def test_L18_a_tail_of_a_fenced_writer_goes_on_with_the_successors_records() -> None:
    """Its buffered records are gone and will not come: the tail must neither spin at their offsets nor end there."""
    objects = MemoryStore()
    old = open_store(objects, ack="buffered")
    with running(objects) as new:
        log = partition(old)
        log.append(b"kept")
        log.flush()
        lost = log.append(b"lost").offset
        receipt = partition(new).append(b"new")
        with pytest.raises(Fenced):
            log.append(b"x", ack="durable")
        tail = log.tail(lost)
        record = background(next, tail).result(PATIENCE_S)
        assert (record.offset, record.value) == (receipt.offset, b"new")
        assert marks(log)[1] == receipt.offset + 1
        with pytest.raises(OutcomeUnknown, match=f"offsets {lost} to {lost} "):
            old.close()


def test_L18_a_waiting_reader_at_a_lost_offset_waits_instead_of_spinning(clock: ManualClock) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    old = open_store(faulty, clock, ack="buffered")
    with running(objects, clock) as new:
        log = partition(old)
        lost = log.append(b"lost").offset
        with running(objects, clock) as middle:
            partition(middle).open_writer()
        with pytest.raises(Fenced):
            log.append(b"x", ack="durable")
        faulty.forget_calls()
        reading = background(log.read, lost, wait=1e6)
        until(lambda: log._internal.state._readers_waiting == 1 or reading.done())
        asked = len(faulty.calls)
        # Two lanes and the chain between them, each to its end; whether what is not there was emptied is asked of each.
        assert asked <= 16, "it asks the store once an interval, not all the time"
        receipt = partition(new).append(b"new")
        result = drive(clock, reading, 1.0)
        assert [record.value for record in result.records()] in ([b"new"], [])
        assert result.next_offset in (receipt.offset, receipt.offset + 1)
    with pytest.raises(OutcomeUnknown):
        old.close()
