"""L04: a waiter waits for its own offset; whatever arrives during an upload is the next segment, whole."""

from __future__ import annotations

import threading

import pytest

from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.layout.paths import is_birth_lane
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    is_flushing,
    numbered,
    pairs,
    partition,
    running,
    until,
)
from tests.support.patience import PATIENCE_S


def segment_sizes(log: PartitionLog) -> list[int]:
    return [ref.end_offset - ref.base_offset for ref in log.segments()]


def writer_of(log: PartitionLog) -> ExclusiveWriter:
    writer = log._internal._writer
    assert isinstance(writer, ExclusiveWriter)
    return writer


def test_L04_everything_that_arrives_during_an_upload_is_one_segment() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            first = log.submit(b"v1")
            gate.wait_held()
            meanwhile = [log.submit(value) for value in numbered(2, 60)]
            gate.release()
            assert first.result(PATIENCE_S).offset == 1
            gate.wait_held()
            assert not any(future.done() for future in meanwhile)
            gate.release()
            assert [future.result(PATIENCE_S).offset for future in meanwhile] == list(range(2, 62))
            assert gate.held == ()
        assert segment_sizes(log) == [1, 1, 60]
        assert pairs(log) == at(0, numbered(0, 62))


def test_L04_a_waiter_knows_of_its_own_segment_not_of_the_next_one() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            early = background(log.append, b"v1")
            gate.wait_held()
            late = background(log.append, b"v2")
            until(lambda: writer_of(log).next_offset == 3)
            gate.release()
            assert early.result(PATIENCE_S).offset == 1
            gate.wait_held()
            assert not late.done()
        assert late.result(PATIENCE_S).offset == 2


def test_L04_no_convoy_every_append_is_in_the_upload_under_way_or_in_the_next() -> None:
    """32 producers in step: however they fall, a round of 32 acks costs at most two uploads."""
    producers, rounds = 32, 6
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        log = partition(store)
        log.append(b"first")
        left = producers
        lock = threading.Lock()

        def produce(number: int) -> None:
            nonlocal left
            for turn in range(rounds):
                log.append(b"%d-%d" % (number, turn))
            with lock:
                left -= 1

        puts = 0
        with gated.hold("put", suffix=".seg") as gate:
            running_producers = [background(produce, number) for number in range(producers)]
            while left:
                until(lambda: left == 0 or (bool(gate.held) and len(writer_of(log).durable_waiters) == left))
                if left:
                    puts += 1
                    gate.release()
                    until(lambda: not gate.held or left == 0)
        for producer in running_producers:
            producer.result(PATIENCE_S)
        assert puts <= 2 * rounds + 1
        assert sum(segment_sizes(log)) == producers * rounds + 1


@pytest.mark.parametrize("come_back", [3, 2])
def test_L04_the_next_upload_waits_a_moment_for_the_producers_that_the_last_one_released(
    clock: ManualClock, come_back: int
) -> None:
    """An upload of 8 s released three. The first is back at once; the next upload waits for the others, at most 2 s."""
    gated = GatedStore(MemoryStore())
    with running(gated, clock) as store:
        log = partition(store)
        log.append(b"v0")
        with gated.hold("put", suffix=".seg") as gate:
            blocker = log.submit(b"v1")
            gate.wait_held()
            three = [log.submit(value) for value in numbered(2, 3)]
            gate.release()
            blocker.result(PATIENCE_S)
            gate.wait_held()
            clock.advance(8.0)
            gate.release()
            for future in three:
                future.result(PATIENCE_S)
            back = [log.submit(b"v5")]
            until(lambda: is_flushing(store))
            back += [log.submit(value) for value in numbered(6, come_back - 1)]
            waited = 0.0
            while come_back < 3 and not gate.held:
                clock.advance(0.1)
                waited += 0.1
            assert (waited > 1.9) == (come_back < 3)
            gate.wait_held()
            gate.release()
            for future in back:
                future.result(PATIENCE_S)
        assert segment_sizes(log) == [1, 1, 3, come_back]


def test_L04_N01_what_comes_for_any_partition_during_an_upload_is_in_the_next_one() -> None:
    """One upload at a time, and no partition waits for another's."""
    gated = GatedStore(MemoryStore())
    with running(gated) as store:
        topic = store.create_topic("wide", 4)
        for number in range(4):
            topic.append(b"first", partition=number)
        with gated.hold("put", suffix=".seg") as gate:
            first = topic.partition(0).submit(b"x")
            gate.wait_held()
            futures = [topic.partition(number).submit(b"y") for number in range(4)]
            assert len(gate.held) == 1
            gate.release()
            assert first.result(PATIENCE_S).offset == 1
            (call,) = gate.wait_held()
            assert call.key.startswith("lanes/")
            assert not any(future.done() for future in futures)
            gate.release()
            assert [future.result(PATIENCE_S).offset for future in futures] == [2, 1, 1, 1]


def test_L04_own_chains_upload_side_by_side() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, uploads_max=4, lanes=0) as store:
        topic = store.create_topic("wide", 4)
        for number in range(4):
            topic.append(b"first", partition=number)
        with gated.hold("put", suffix=".seg") as gate:
            futures = [topic.partition(number).submit(b"x") for number in range(4)]
            assert len({call.key.rsplit("/", 1)[0] for call in gate.wait_held(count=4)}) == 4
        for future in futures:
            assert future.result(PATIENCE_S).offset == 1


def test_L04_one_append_is_one_segment_even_when_a_segment_is_full() -> None:
    """`segment_bytes` cuts between appends, never through one: an append is durable whole or not at all."""
    gated = GatedStore(MemoryStore())
    with running(gated, compression="none", max_batch_bytes=2000) as store:
        log = store.create_topic("t", segment_bytes=3000).partition(0)
        log.append(b"first")
        with gated.hold("put", suffix=".seg") as gate:
            log.submit(b"blocker")
            gate.wait_held()
            appends = [log.submit([b"x" * 500] * count) for count in (2, 12, 1, 1)]
        for future in appends:
            future.result(PATIENCE_S)
        assert segment_sizes(log) == [1, 1, 2, 12, 2]


def test_L04_a_thousand_small_appends_in_one_interval_cost_one_upload(clock: ManualClock) -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, clock, flush_interval=1.0) as store:
        log = partition(store)
        topic = store.topic("t")
        topic.append(b"first", ack="buffered")
        faulty.forget_calls()
        last = [topic.append(value, ack="buffered") for value in numbered(0, 1000)][-1]
        clock.advance(1.0)
        last.wait_durable(PATIENCE_S)
        asked = [call.operation for call in faulty.calls if not is_birth_lane(call.key.split("/")[1])]
        assert asked == ["put"], "and one says, once, who has claimed the partition where its topic begins"
        assert segment_sizes(log) == [1001]
