"""L28, L29: a store that is down, heals, or goes away for good; and what is left behind after `close()`."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable

import pytest

import logstore
from logstore.engine.host.breaker import FAILURES_TO_OPEN, CircuitBreaker
from logstore.errors import Closed, LogStoreError, OutcomeUnknown, StoreUnavailable, UnsupportedStore
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
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

PROBE_S = 2.0


def threads() -> set[threading.Thread]:
    """Ours. Another test may have left some behind, which end when they like: compare with what was there before."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("logstore")}


def sockets() -> int:
    """How many this process has open. What only an exception's traceback still holds does not count."""
    gc.collect()
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return count


# L28: the breaker by itself


class Tripped:
    """A breaker that has just opened."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.closed = 0
        self.breaker = CircuitBreaker(PROBE_S, self.clock, self._on_close)
        for _ in range(FAILURES_TO_OPEN):
            assert self.breaker.delay() == 0.0
            self.breaker.failure()

    def _on_close(self) -> None:
        self.closed += 1


def test_L28_an_open_breaker_lets_one_probe_through_each_interval() -> None:
    tripped = Tripped()
    breaker, clock = tripped.breaker, tripped.clock
    assert breaker.is_open
    for _ in range(3):
        assert breaker.delay() == PROBE_S
        clock.advance(PROBE_S)
        assert breaker.delay() == 0.0, "the probe"
        assert breaker.delay() > 0.0, "somebody else while the probe is under way"
        breaker.failure()
    clock.advance(PROBE_S)
    assert breaker.delay() == 0.0
    breaker.success()
    assert (breaker.is_open, tripped.closed) == (False, 1)
    assert breaker.delay() == breaker.delay() == 0.0


@pytest.mark.parametrize("asked_at", [0.0, 0.1, 1.0, 1.5, 1.9, 1.999])
def test_L28_whenever_one_asks_the_next_probe_is_not_missed(asked_at: float) -> None:
    """Coming back late would make a healed store wait for longer than an interval."""
    tripped = Tripped()
    tripped.clock.advance(asked_at)
    assert tripped.breaker.delay() == pytest.approx(PROBE_S - asked_at)


# L28: the store


@pytest.mark.parametrize("seed", range(1, 6))
def test_L28_when_the_store_heals_every_partition_goes_on_within_one_probe_interval(seed: int) -> None:
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    with running(faulty, clock, seed=seed, probe_interval=PROBE_S, flush_interval=1.0) as store:
        topic = store.create_topic("t", partitions=4)
        reach_all(topic, clock)
        faulty.down()
        for number in range(4):
            topic.append(b"during", partition=number, ack="buffered")
        until_tried(clock, faulty, 10)
        faulty.heal()
        logs = [topic.partition(number) for number in range(4)]
        for _ in range(20):
            clock.advance(PROBE_S / 20)
            settle(store)
        until(lambda: all(log.durable_high_watermark == 2 for log in logs))
        assert store.health()["store_reachable"]
        assert [pairs(log, visibility="durable") for log in logs] == [[(0, b"before"), (1, b"during")]] * 4


def reach_all(topic: logstore.Topic, clock: ManualClock) -> None:
    """A durable record in each partition, from a writer that may show records before they are durable."""
    for number in range(topic.partitions):
        receipt = topic.append(b"before", partition=number, ack="buffered")
        drive(clock, background(receipt.wait_durable, PATIENCE_S))


def until_tried(clock: ManualClock, faulty: FaultyStore, puts: int) -> None:
    """Let the outage last until so many uploads were refused."""
    faulty.forget_calls()

    def tried() -> bool:
        clock.advance(0.05)
        return faulty.count("put") >= puts

    until(tried)


def settle(store: logstore.Store) -> None:
    """Wait until the task pool has done all that is due now."""
    task_pool, clock = store._runtime.task_pool, store._runtime.clock

    def quiet() -> bool:
        with task_pool._wake:
            return not task_pool._running and all(due > clock.monotonic() for due in task_pool._due.values())

    until(quiet)


def test_L28_a_store_that_is_down_sees_one_upload_an_interval_however_many_partitions_wait() -> None:
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    store = open_store(faulty, clock, probe_interval=PROBE_S, flush_interval=0.1)
    topic = store.create_topic("t", partitions=16)
    reach_all(topic, clock)
    faulty.down()
    for number in range(16):
        topic.append(b"during", partition=number, ack="buffered")
    until_tried(clock, faulty, 16 + FAILURES_TO_OPEN)  # each has met the outage, and the breaker is open
    settle(store)
    faulty.forget_calls()
    intervals = 25
    for _ in range(intervals * 4):
        clock.advance(PROBE_S / 4)
        settle(store)
    assert intervals - 2 <= faulty.count("put") <= intervals + 1
    assert not store.health()["store_reachable"]
    faulty.heal()
    drive(clock, background(store.flush))
    assert all(topic.partition(number).durable_high_watermark == 2 for number in range(16))
    store.close()


def test_L28_buffered_and_cached_data_is_read_while_the_store_is_down() -> None:
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    with running(faulty, clock) as store:
        log = partition(store)
        log.append([b"stored"] * 3, ack="buffered")
        log.flush()
        assert len(pairs(log, visibility="durable")) == 3  # and with that it is cached
        faulty.down()
        log.append([b"buffered"] * 3, ack="buffered")
        assert [value for _, value in pairs(log)] == [b"stored"] * 3 + [b"buffered"] * 3
        assert log.read(4).source in ("window", "buffer")
        assert log.read(0, 1).source == "segment"
        faulty.heal()
        drive(clock, background(store.flush))


def test_L28_what_is_neither_buffered_nor_cached_is_a_typed_error_and_readable_later() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"cold")
    faulty = FaultyStore(objects)
    with running(faulty, cache_bytes=0) as store:
        log = store.topic("t").partition(0)
        _ = log.durable_high_watermark
        faulty.down()
        with pytest.raises(StoreUnavailable):
            log.read(0)
        faulty.heal()
        assert pairs(log) == [(0, b"cold")]


@pytest.mark.parametrize("fault", list(Fault))
def test_L28_one_failure_of_any_kind_never_stops_a_partition(fault: Fault) -> None:
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    with running(faulty, clock) as store:
        log = partition(store)
        log.append(b"v0")
        for number in range(1, 6):
            faulty.fail("put", suffix=".seg", with_=fault)
            drive(clock, background(log.append, b"v%d" % number, timeout=1e6))
            faulty.fail("get", with_=fault)
            assert pairs(log)[-1] == (number, b"v%d" % number)
        assert [value for _, value in pairs(log)] == numbered(0, 6)


def test_L28_a_writer_is_opened_as_soon_as_the_store_is_back() -> None:
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects)
    with running(faulty, clock, probe_interval=PROBE_S) as store:
        log = partition(store)
        _ = log.durable_high_watermark
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.SLOW_DOWN)
        waiting = background(log.append, b"patient", timeout=3600.0)
        until_tried(clock, faulty, 8)
        faulty.heal()
        before = clock.monotonic()
        assert drive(clock, waiting, step_s=0.05).offset == 0
        assert clock.monotonic() - before < 3600.0


# L29


@pytest.mark.parametrize("work", ["nothing", "append", "read", "many partitions"])
def test_L29_no_thread_is_left_behind(objects: ObjectStore, work: str) -> None:
    with running(objects) as store:
        for number in range(20):
            partition(store).append(b"%d" % number)
    before = threads()
    store = open_store(objects, flush_interval=0.01)
    if work == "append":
        partition(store).append(b"x", ack="buffered")
    elif work == "read":
        assert len(pairs(partition(store))) == 20
    elif work == "many partitions":
        topic = store.create_topic("many", partitions=12)
        topic.append_many([logstore.Record(b"v", b"key-%d" % number) for number in range(100)])
    store.close()
    assert not threads() - before
    store.close()


@pytest.mark.s3
def test_L29_no_socket_is_left_behind(seaweed_url: Callable[[], str]) -> None:
    url = seaweed_url()
    with logstore.open(url) as store:  # what boto3 keeps for ever is there from now on
        store.create_topic("t", partitions=4)
    before = sockets()
    store = logstore.open(url)
    topic = store.topic("t")
    topic.append_many([logstore.Record(b"v", b"key-%d" % number) for number in range(100)])
    assert sum(len(pairs(topic.partition(number))) for number in range(4)) == 100
    assert sockets() > before
    store.close()
    until(lambda: sockets() == before)


@pytest.mark.s3
def test_L29_a_failed_open_leaves_nothing_behind(seaweed_url: Callable[[], str]) -> None:
    url = seaweed_url().replace("logstore-tests", "no-such-bucket", 1)
    before, names = sockets(), threads()
    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        logstore.open(url)
    until(lambda: sockets() == before)
    assert threads() == names


def test_L29_a_store_of_the_callers_own_is_not_closed() -> None:
    class Closable(MemoryStore):
        closed = False

        def close(self) -> None:
            self.closed = True

    objects = Closable()
    open_store(objects).close()
    assert not objects.closed


@pytest.mark.parametrize(
    "where",
    [
        "s3://logstore-tests/x?endpoint_url=http%3A%2F%2F127.0.0.1%3A9&region=us-east-1",
        "gs://bucket/x",
        "memory://",
    ],
)
def test_L29_the_library_never_falls_back_to_memory_by_itself(where: str) -> None:
    with pytest.raises((StoreUnavailable, UnsupportedStore)):
        logstore.open(where)


def test_L29_a_close_while_the_writer_is_being_opened_does_not_wait_for_the_store() -> None:
    clock, faulty = ManualClock(), FaultyStore(MemoryStore())
    store = open_store(faulty, clock)
    log = partition(store)
    _ = log.durable_high_watermark
    faulty.fail("put", suffix=".seg", times=None)
    opening = background(log.append, b"x", timeout=3600.0)
    until(lambda: faulty.count("put", suffix=".seg") > 0)
    background(store.close, 0.0).result(PATIENCE_S)
    with pytest.raises((Closed, StoreUnavailable)):
        opening.result(PATIENCE_S)
    assert pairs_of(faulty) == []


def pairs_of(faulty: FaultyStore) -> list[tuple[int, bytes]]:
    faulty.heal()
    with open_store(faulty, writer="read_only") as store:
        return pairs(store.topic("t").partition(0))


def test_L29_a_close_that_gives_up_on_an_upload_says_so_and_its_thread_ends_with_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store answers after all, long after the close: nobody is told twice, and nothing is freed twice."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    before = threads()
    store = open_store(gated, ManualClock())
    log = partition(store)
    log.append(b"zero")
    with gated.hold("put", suffix=".seg") as gate, caplog.at_level(logging.ERROR):
        future = log.submit(b"one")
        gate.wait_held()
        with pytest.raises(OutcomeUnknown, match="offsets 1 to 1"):
            store.close(timeout=0.0)
        with pytest.raises(LogStoreError):
            future.result(PATIENCE_S)
        gate.release()
    until(lambda: not threads() - before)
    surprised = [entry.message for entry in caplog.records if entry.name == "logstore.engine.host.task_pool"]
    assert surprised == [], "the flush task met something it did not expect"
    assert store.health()["buffered_bytes"] == 0
    with open_store(objects, writer="read_only") as again:
        assert pairs(again.topic("t").partition(0)) == [(0, b"zero"), (1, b"one")], (
            "unknown, and it was stored"
        )


def test_L29_waiting_readers_end_with_the_store() -> None:
    store = open_store(MemoryStore(), ManualClock())
    log = partition(store)
    log.append(b"zero")
    reader = background(log.read, 1, wait=3600.0)
    follower = background(lambda: [record.value for record in log.tail()])
    until(lambda: log._internal.state._readers_waiting == 2)
    store.close()
    assert not reader.result(PATIENCE_S).parts
    assert follower.result(PATIENCE_S) == [b"zero"]


def test_L29_a_crashed_store_in_this_process_does_not_disturb_the_next_one() -> None:
    objects = MemoryStore()
    store = open_store(objects)
    partition(store).append(b"zero")
    crash(store)
    with running(objects) as again:
        assert partition(again).append(b"one").offset == 1


def test_L28_health_asks_nobody_and_answers_while_an_upload_hangs() -> None:
    gated = GatedStore(MemoryStore())
    faulty = FaultyStore(gated)
    with running(faulty) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"one")
        with gated.hold("put") as gate:
            waiting = log.submit(b"two")
            gate.wait_held()
            before = len(faulty.calls)
            health = store.health()
            assert len(faulty.calls) == before
            assert health["partitions"][0]["durable_high_watermark"] == 1
            assert health["unanswered_seconds"] is not None
        waiting.result(PATIENCE_S)
