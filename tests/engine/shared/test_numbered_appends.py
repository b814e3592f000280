"""Numbered appends of idempotent producers: what is queued together, what is large, and what is deleted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import Closed, Fenced, GapError, InvalidRecord
from logstore.objects import MemoryStore, ObjectStore
from logstore.producer import Producer
from logstore.testing import GatedStore
from tests.support.engine.actors import TOPIC, contents
from tests.support.patience import PATIENCE_S


@contextmanager
def shared(home: ObjectStore, **settings: Any) -> Iterator[PartitionLog]:
    with logstore.open(home, writer="shared", probe_interval=0.001, **settings) as store:
        yield store.create_topic(TOPIC, exist_ok=True).partition(0)


def test_W11_an_old_epoch_that_is_queued_behind_the_new_one_is_refused() -> None:
    """Both wait behind an upload, so neither is in the chain when they are judged."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with shared(gated) as log:
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"first")
            gate.wait_held()
            renewed = Producer(log, 17, epoch=1).submit(b"new life", sequence=0)
            zombie = Producer(log, 17, epoch=0).submit(b"zombie", sequence=0)
        assert renewed.result(PATIENCE_S).offset == 1
        with pytest.raises(Fenced, match="epoch 0 was replaced by epoch 1"):
            zombie.result(PATIENCE_S)
        assert Producer(log, 17, epoch=1).append(b"goes on", sequence=1).offset == 2
    assert [value for _, value in contents(objects)] == [b"first", b"new life", b"goes on"]


def test_W11_the_next_life_recognises_an_append_of_more_batches_than_are_remembered_one_by_one() -> None:
    objects = MemoryStore()
    values = [b"%04d" % number * 250 for number in range(200)]
    with shared(objects, max_batch_bytes=2000) as log:
        assert Producer(log, 17).append(values, sequence=0).offset == 0
    with shared(objects, max_batch_bytes=2000) as log:
        again = Producer(log, 17).append(values, sequence=0)
        assert (again.offset, again.last_offset) == (0, 199)
    assert [value for _, value in contents(objects)] == values


def submitted(calls: list[tuple[int, int]], *, queued: bool) -> tuple[list[Any], list[bytes | None]]:
    """Submit sequences `first` to `last` for each call, with an append of somebody else after each, and say what became of
    them: queued together behind an upload, or each when the one before it is stored."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    futures: list[Any] = []

    def submit(log: PartitionLog, first: int, last: int) -> None:
        records = [b"%d" % number for number in range(first, last + 1)]
        futures.append(Producer(log, 17).submit(records, sequence=first))
        other = log.submit(b"other")
        if not queued:
            other.result(PATIENCE_S)

    with shared(gated) as log:
        if queued:
            with gated.hold("put", suffix=".seg") as gate:
                log.submit(b"other")
                gate.wait_held()
                for call in calls:
                    submit(log, *call)
        else:
            log.append(b"other")
            for call in calls:
                submit(log, *call)
        outcomes = [
            future.exception(PATIENCE_S) or (future.result().offset, future.result().last_offset)
            for future in futures
        ]
    return outcomes, [value for _, value in contents(objects) if value != b"other"]


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "stored"])
def test_W11_a_retry_that_was_cut_otherwise_stores_nothing_twice(queued: bool) -> None:
    (*placed, refused), values = submitted([(0, 4), (0, 2), (3, 4), (2, 2), (3, 6)], queued=queued)
    assert placed == [(1, 5), (1, 3), (4, 5), (3, 3)]
    assert isinstance(refused, InvalidRecord)
    assert values == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "stored"])
@pytest.mark.parametrize("calls", [[(0, 2), (3, 4), (0, 4)], [(5, 8), (0, 4)]], ids=["apart", "too late"])
def test_W11_a_retry_whose_records_lie_apart_is_refused(calls: list[tuple[int, int]], queued: bool) -> None:
    """No one offset would be true of all of it."""
    (*_, refused), values = submitted(calls, queued=queued)
    assert isinstance(refused, InvalidRecord)
    assert values == [b"%d" % number for first, last in calls[:-1] for number in range(first, last + 1)]


def test_W11_a_flush_waits_for_what_was_appended_before_a_duplicate() -> None:
    """A duplicate is acked before the window that it came in is stored. Whoever asked for a flush waits for all of it."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with shared(gated) as log:
        producer = Producer(log, 17)
        producer.append(b"once", sequence=0)
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"under way")
            gate.wait_held()
            before = log.submit(b"before the flush")
            duplicate = producer.submit(b"once", sequence=0)
            _, flush = log._internal.begin_flush()
            gate.release()
            gate.wait_held()
            assert duplicate.result(PATIENCE_S).offset == 0
            assert flush is not None
            assert not flush.done()
            assert not before.done()
        flush.result(PATIENCE_S)
        assert before.done()
    assert [value for _, value in contents(objects)] == [b"once", b"under way", b"before the flush"]


def test_W11_a_producer_that_was_at_another_writer_meanwhile_goes_on_where_it_is() -> None:
    """A writer that was idle has not followed the chain: what it has not seen is not missing."""
    objects = MemoryStore()
    with shared(objects) as log, shared(objects) as elsewhere:
        here, there = Producer(log, 17), Producer(elsewhere, 17)
        here.append(b"0", sequence=0)
        for number in range(1, 4):
            there.append(b"%d" % number, sequence=number)
        assert here.next_sequence() == 4
        assert here.append(b"4", sequence=4).offset == 4
        there.append(b"5", sequence=5)
        with pytest.raises(GapError, match="sequence 7 came where 6 is next"):
            here.append(b"7", sequence=7)
        assert here.append(b"5", sequence=5).offset == 5
    assert [value for _, value in contents(objects)] == [b"%d" % number for number in range(6)]


def test_W11_a_retry_and_what_follows_it_go_together_to_a_writer_that_has_not_seen_the_first_try() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with shared(gated) as log, shared(objects) as elsewhere:
        here, there = Producer(log, 17), Producer(elsewhere, 17)
        here.append(b"0", sequence=0)
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"under way")
            gate.wait_held()
            for number in range(1, 4):
                there.append(b"%d" % number, sequence=number)
            again, following = here.submit(b"1", sequence=1), here.submit(b"4", sequence=4)
        assert (again.result(PATIENCE_S).offset, following.result(PATIENCE_S).offset > 3) == (1, True)
    numbers = [value for _, value in contents(objects) if value != b"under way"]
    assert numbers == [b"%d" % number for number in range(5)]


def test_W08_an_append_that_is_refused_fails_no_flush() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with shared(gated) as log:
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"under way")
            gate.wait_held()
            alone = Producer(log, 17)
            alone.submit(b"0", sequence=0)
            refused = alone.submit(b"5", sequence=5)
            _, flush = log._internal.begin_flush()
        with pytest.raises(GapError):
            refused.result(PATIENCE_S)
        assert flush is not None
        flush.result(PATIENCE_S)
        assert log.durable_high_watermark == 2
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"under way")
            gate.wait_held()
            refused = alone.submit(b"5", sequence=5)
            _, flush = log._internal.begin_flush()
        with pytest.raises(GapError):
            refused.result(PATIENCE_S)
        assert flush is not None
        flush.result(PATIENCE_S)
    assert [value for _, value in contents(objects)] == [b"under way", b"0", b"under way"]


@pytest.mark.parametrize("low", [5, 10, 15, 20])
def test_W11_the_next_sequence_is_known_where_records_were_deleted(low: int) -> None:
    """A low watermark inside a segment: what the segment says about its producers still counts, as it does for the
    writer."""
    objects = MemoryStore()
    with shared(objects) as log:
        producer = Producer(log, 17)
        producer.append([b"x"] * 10, sequence=0)
        producer.append([b"x"] * 10, sequence=10)
        log.append([b"y"] * 4)
        log.delete_before(low)
        expected = 20 if low < 20 else 0
        assert producer.next_sequence() == expected
        assert producer.append(b"next", sequence=20).offset == 24
        assert producer.next_sequence() == 21


def test_W11_a_writer_that_is_stopped_while_it_reads_the_chain_settles_nothing_twice() -> None:
    """A duplicate is found in what was read; but whoever waited was told by then, and its memory is free."""
    objects = MemoryStore()
    with shared(objects) as log:
        Producer(log, 17).append(b"once", sequence=0)
    gated = GatedStore(objects)
    with logstore.open(gated, writer="shared") as store:
        producer = Producer(store.topic(TOPIC).partition(0), 17)
        with gated.hold("get") as gate:
            retried = producer.submit(b"once", sequence=0)
            gate.wait_held()
            producer._writer.stop(Closed("stopped"))
        with pytest.raises(Closed):
            retried.result(PATIENCE_S)
        store.create_topic("other").append(b"goes on")
        assert store.health()["buffered_bytes"] == 0
