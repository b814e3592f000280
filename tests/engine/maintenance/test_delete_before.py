"""Deleting the records before an offset: gone at once for readers here, for good whatever crashes, and no others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import logstore
from logstore.engine.memory.catch_up import reload
from logstore.errors import CorruptData, Fenced, Indeterminate, OffsetOutOfRange, OutcomeUnknown, ReadOnly
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.dying import DiesAt
from tests.support.engine.harness import (
    at,
    background,
    crash,
    numbered,
    open_store,
    pairs,
    partition,
    running,
)
from tests.support.patience import PATIENCE_S

VALUES = numbered(0, 10)


def filled(store: logstore.Store) -> logstore.PartitionLog:
    """Ten records, a segment each."""
    log = partition(store)
    for value in VALUES:
        log.append(value)
    return log


def test_L18_records_before_the_offset_are_gone_at_once_and_stay_gone(any_home: ObjectStore) -> None:
    with running(any_home) as store:
        log = filled(store)
        assert log.delete_before(4) == log.low_watermark == 4
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(3)
        assert (caught.value.low, caught.value.high) == (4, 10)
        assert pairs(log) == at(4, VALUES[4:])
        assert log.append(b"more").offset == 10
        assert log.lost_ranges() == []
        crash(store)
    with open_store(any_home, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert log.low_watermark == 4
        assert pairs(log) == [*at(4, VALUES[4:]), (10, b"more")]


def test_L18_the_low_mark_may_lie_inside_a_batch_and_at_the_very_end() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = partition(store)
        log.append(VALUES)
        assert log.delete_before(7) == 7
        assert pairs(log) == at(7, VALUES[7:])
        assert log.delete_before(10) == 10
        assert pairs(log) == []
        assert log.append(b"next").offset == 10
        assert pairs(log) == [(10, b"next")]
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == [(10, b"next")]


def test_L18_it_fences_nobody_and_a_writer_elsewhere_does_not_bring_them_back() -> None:
    objects = MemoryStore()
    with running(objects) as writing, running(objects) as other:
        log = filled(writing)
        assert other.topic("t").partition(0).delete_before(4) == 4
        assert log.append(b"still the writer").offset == 10
        assert log.low_watermark == 0
        log._internal._checkpointer.run()  # type: ignore[union-attr]
        assert log.low_watermark == 4, "with its next checkpoint it learns of it"
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == [*at(4, VALUES[4:]), (10, b"still the writer")]


def test_L18_what_is_buffered_is_flushed_before_it_is_deleted() -> None:
    objects = MemoryStore()
    store = open_store(objects)
    log = filled(store)
    log.append([b"a", b"b", b"c"], ack="buffered")
    assert (log.durable_high_watermark, log.buffered_high_watermark) == (10, 13)
    assert log.delete_before(12) == 12
    assert pairs(log) == [(12, b"c")]
    crash(store)
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == [(12, b"c")]


def test_L18_offsets_that_cannot_be() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = filled(store)
        assert log.delete_before(6) == 6
        for offset in (-1, 11, 10**18):
            with pytest.raises(OffsetOutOfRange) as caught:
                log.delete_before(offset)
            assert (caught.value.low, caught.value.high) == (6, 10)
        for nonsense in (True, "6", 6.0, None):
            with pytest.raises(TypeError, match="an offset is an int"):
                log.delete_before(nonsense)  # type: ignore[arg-type]
        assert log.delete_before(2) == 6, "they are gone already"
        assert pairs(log) == at(6, VALUES[6:])
    with open_store(objects, writer="read_only") as store, pytest.raises(ReadOnly):
        store.topic("t").partition(0).delete_before(8)


def test_W05_a_writer_that_was_fenced_may_still_delete_what_is_stored_but_not_what_it_lost() -> None:
    objects = MemoryStore()
    first = open_store(objects)
    log = filled(first)
    log.append(b"taken along", ack="buffered")
    with running(objects) as second:
        second.topic("t").append(b"the new writer's")
        with pytest.raises(Fenced):
            log.flush()
        with pytest.raises(OffsetOutOfRange):
            log.delete_before(10**6)
        assert log.delete_before(5) == 5
        assert pairs(log)[:5] == at(5, VALUES[5:])
    with pytest.raises(OutcomeUnknown, match="offsets 10 to 10"):
        first.close()


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_W04_a_lost_answer_does_not_fail_it_and_endless_ones_are_told(fault: Fault) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        log = filled(store)
        faulty.fail("put", suffix="manifest", with_=fault, times=2)
        assert log.delete_before(4) == 4
        rule = faulty.fail("put", suffix="manifest", with_=fault, times=None)
        if fault is Fault.LOSE_REQUEST:
            with pytest.raises(Indeterminate):
                log.delete_before(6)
            assert log.low_watermark == 4
        faulty.remove(rule)
        assert log.delete_before(8) == 8


class Interrupts(FaultyStore):
    """Before the next manifest is written, `first` is done."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.first: Callable[[], object] = lambda: None

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if key.endswith("manifest"):
            first, self.first = self.first, lambda: None
            first()
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


@pytest.mark.usefixtures("own_chain")
def test_L18_when_maintenance_elsewhere_is_faster_it_is_done_on_top_of_that() -> None:
    objects, clock = MemoryStore(), ManualClock()
    interrupts = Interrupts(objects)
    with running(interrupts, clock) as store, running(objects, clock) as other:
        log = filled(store)
        there = other.topic("t").partition(0)
        merged: list[int] = []
        interrupts.first = lambda: merged.append(
            there._internal.maintenance.compact(clock.now_ms(), bytes(16))
        )
        assert log.delete_before(4) == 4
        assert merged[0] >= 4
        assert pairs(log) == at(4, VALUES[4:])
    with open_store(objects, clock, writer="read_only") as reader:
        assert pairs(reader.topic("t").partition(0)) == at(4, VALUES[4:])


def test_L18_of_two_who_delete_at_once_the_later_offset_stands() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store, running(objects) as other:
        log = filled(store)
        with gated.hold("put", suffix="manifest") as gate:
            deleting = background(log.delete_before, 4)
            gate.wait_held()
            assert other.topic("t").partition(0).delete_before(7) == 7
        assert deleting.result(PATIENCE_S) == 7
        assert log.low_watermark == 7


@pytest.mark.usefixtures("own_chain")
def test_L20_nothing_is_deleted_while_an_object_is_damaged() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        damaged = filled(store).segments()[2].key
    objects.put(damaged, b"scribble")
    with running(objects) as store:
        log = store.topic("t").partition(0)
        with pytest.raises(CorruptData):
            log.delete_before(5)
        assert log.low_watermark == 0
        assert log.read(0, 0).next_offset == 1


@pytest.mark.parametrize("after", [False, True], ids=["before_it", "after_it"])
def test_L18_killed_at_any_request_the_log_begins_before_or_after_and_nowhere_else(after: bool) -> None:
    begins: set[int] = set()
    dying: DiesAt | None = None
    request = 0
    while dying is None or dying.died:
        objects = MemoryStore()
        with running(objects) as store:
            filled(store)
        dying = DiesAt(objects)
        store = open_store(dying)
        log = store.topic("t").partition(0)
        dying.die_at(request, after=after)
        with suppress(logstore.LogStoreError):
            log.delete_before(4)
        crash(store)
        with open_store(objects, writer="read_only") as reader:
            found = reader.topic("t").partition(0)
            begins.add(found.low_watermark)
            assert pairs(found) == at(found.low_watermark, VALUES[found.low_watermark :])
        request += 1
    assert begins == {0, 4}
    assert request > 10


@pytest.mark.usefixtures("own_chain")
def test_L18_what_is_deleted_while_it_is_read_is_not_called_lost() -> None:
    """The read is answered with its records; where the log begins has moved by the time the answer is put together."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(objects) as store, running(gated, writer="read_only") as elsewhere:
        log, reader = filled(store), elsewhere.topic("t").partition(0)
        reader.refresh()
        with gated.hold("get", suffix=".seg") as gate:
            reading = background(reader.read, 0)
            gate.wait_held()
            assert log.delete_before(5) == 5
            reload(log._internal._chain, reader._internal.state)
        result = reading.result(PATIENCE_S)
        assert [record.value for record in result.records()] == VALUES
        assert result.lost == ()


@pytest.mark.parametrize("learns_by", ["deleting", "looking"])
def test_L15_a_writer_that_has_not_learnt_of_its_successor_begins_no_later_than_it_ends(
    learns_by: str,
) -> None:
    """All that it knows was deleted, and more that came since."""
    objects = MemoryStore()
    first = open_store(objects)
    log = filled(first)
    with running(objects) as second:
        partition(second).append([b"ten", b"eleven"])
        assert partition(second).delete_before(11) == 11
    if learns_by == "deleting":
        log.delete_before(3)
    else:
        reload(log._internal._chain, log._internal.state)
    assert (log.low_watermark, log.durable_high_watermark, log.buffered_high_watermark) == (10, 10, 10)
    assert pairs(log) == []
    with pytest.raises(Fenced):
        log.append(b"meets the fence")
    assert pairs(log, start=11) == [(11, b"eleven")]
    assert log.low_watermark in (10, 11)
    first.close()


def test_L06_a_closed_log_deletes_nothing() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        log = filled(store)
    with pytest.raises(logstore.Closed):
        log.delete_before(3)
    with open_store(objects, writer="read_only") as store:
        assert pairs(store.topic("t").partition(0)) == at(0, VALUES)
