"""L06: closing makes the tail durable, or says what is not, and ends every wait."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from logstore.engine.memory.results import Receipt
from logstore.errors import (
    Closed,
    Fenced,
    LogStoreError,
    OutcomeUnknown,
    StoreUnavailable,
)
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
    faulty.down()
    pending = log.submit(b"v7", ack="durable")
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
    before = set(threading.enumerate())
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
    until(lambda: not set(threading.enumerate()) - before)
    assert store.health()["buffered_bytes"] == 0
    with running(objects) as again:
        assert pairs(partition(again)) == [(0, b"v0")]


@pytest.mark.usefixtures("begin_in_own_chains")
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


class Interrupts(ManualClock):
    """Ctrl-C at the moment when the thread that made it begins to wait."""

    def __init__(self) -> None:
        super().__init__()
        self._victim = threading.get_ident()

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        if threading.get_ident() == self._victim:
            raise KeyboardInterrupt
        super().wait(condition, timeout)


def test_L06_an_interrupted_close_tells_those_who_wait_and_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    objects = GatedStore(MemoryStore())
    store = open_store(objects, Interrupts())
    log = background(partition, store).result(PATIENCE_S)
    background(log.append, b"opens the writer").result(PATIENCE_S)
    with objects.hold("put", suffix=".seg") as gate:
        pending = background(log.submit, b"v").result(PATIENCE_S)
        gate.wait_held()
        with pytest.raises(KeyboardInterrupt):
            store.close()
        with pytest.raises(OutcomeUnknown, match="offsets 1 to 1"):
            pending.result(PATIENCE_S)
        with pytest.raises(Closed):
            log.append(b"late")
        store.close()
    until(lambda: not set(threading.enumerate()) - before)


def test_L06_a_store_may_be_closed_by_the_callback_of_its_last_append() -> None:
    before = set(threading.enumerate())
    objects = GatedStore(MemoryStore())
    store = open_store(objects)
    log = partition(store)
    log.append(b"opens the writer")
    closed: Future[None] = Future()

    def close(appended: Future[Receipt]) -> None:
        try:
            closed.set_result(store.close())
        except BaseException as error:
            closed.set_exception(error)

    with objects.hold("put", suffix=".seg") as gate:
        appended = log.submit(b"last")
        gate.wait_held()
        appended.add_done_callback(close)
    closed.result(PATIENCE_S)
    until(lambda: not set(threading.enumerate()) - before)
    assert log.durable_high_watermark == 2


def test_L02_a_flush_leaves_out_the_partition_that_was_lost_and_no_other() -> None:
    """Another process has the first of them, with a record that was acked as buffered."""
    objects = MemoryStore()
    with running(objects) as store, running(objects) as other:
        topic = store.create_topic("t", 3)
        topic.partition(0).append(b"a")
        topic.partition(0).append(b"lost", ack="buffered")
        other.topic("t").partition(0).append(b"b")
        for _ in range(2):  # it is met by the first, and known to the second
            for number in (1, 2):
                topic.partition(number).append(b"c", ack="buffered")
            with pytest.raises(Fenced):
                store.flush(PATIENCE_S)
            for number in (1, 2):
                marks = topic.partition(number).marks()
                assert marks.durable == marks.buffered
        assert marks.durable == 2
        with pytest.raises(OutcomeUnknown, match="t/0: offsets 1 to 1"):
            store.close()
