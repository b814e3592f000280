"""L04: 64 producers wait for durable acks on one partition of a store whose PUT takes 40 ms.

A waiter waits for its own offset, and what arrives during an upload is the next segment. The figures are acks a second, the
99th percentile of an ack in PUT times, and records a segment. The broken way stands beside it in the same run: a flush for
each append behind one lock, so that producers queue. Every ack is checked against the log before a figure counts.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import logstore
from benchmarks.measure import Figures, percentile
from logstore.objects import MemoryStore
from logstore.testing import SlowStore

SUITE = "group commit"
PRODUCERS = 64
PUT_S = 0.040


def run_producers(
    append: Callable[[bytes], int], seconds: float
) -> tuple[list[float], dict[int, bytes], float]:
    """64 threads, each appending again as soon as it is acked: ack latencies, what was acked where, and how long it took."""
    latencies: list[list[float]] = [[] for _ in range(PRODUCERS)]
    acked: list[dict[int, bytes]] = [{} for _ in range(PRODUCERS)]
    start = threading.Barrier(PRODUCERS + 1)
    end = 0.0

    def produce(number: int) -> None:
        start.wait()
        turn = 0
        while time.perf_counter() < end:
            value = b"%d-%d" % (number, turn)
            began = time.perf_counter()
            offset = append(value)
            latencies[number].append(time.perf_counter() - began)
            acked[number][offset] = value
            turn += 1

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    end = began + seconds
    start.wait()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    together: dict[int, bytes] = {}
    for each in acked:
        assert not together.keys() & each.keys(), "an offset was acked twice"
        together |= each
    return [latency for each in latencies for latency in each], together, took


def commits(objects: MemoryStore, log: logstore.PartitionLog) -> int:
    """How many entries the writer's lane has. (Not how many segments the log has: small ones are merged.)"""
    assert log._internal.lane is not None
    return sum(info.key.endswith(".seg") for info in objects.list(f"lanes/{log._internal.lane.name}/"))


def check_acks(log: logstore.PartitionLog, acked: dict[int, bytes]) -> None:
    stored = {record.offset: record.value for record in log.records(visibility="durable")}
    assert acked.items() <= stored.items()


def test_64_durable_producers(benchmark: Any, figures: Figures, quick: bool) -> None:
    """The median of three runs: a machine that stops for 60 ms, as shared ones do, is a whole percent of one run."""
    seconds, rounds = (1.0, 1) if quick else (3.0, 3)
    objects = MemoryStore()
    with logstore.open(SlowStore(objects, put=PUT_S)) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"open the writer")
        run_producers(lambda value: log.append(value).offset, 0.3)
        before = commits(objects, log)
        found: list[tuple[list[float], dict[int, bytes], float]] = []
        benchmark.pedantic(
            lambda: found.append(run_producers(lambda value: log.append(value).offset, seconds)),
            rounds=rounds,
        )
        segments = commits(objects, log) - before
        for _, acked, _ in found:
            check_acks(log, acked)
    rate = statistics.median(len(latencies) / took for latencies, _, took in found)
    p50, p99 = (
        statistics.median(percentile(latencies, share) for latencies, _, _ in found) for share in (0.5, 0.99)
    )
    details: dict[str, Any] = {"p50_ms": round(p50 * 1e3, 1), "p99_ms": round(p99 * 1e3, 1)}
    figures.add(SUITE, "64 durable producers, 40 ms PUT", rate, "acks/s", target=1200, **details)
    figures.add(SUITE, "p99 of an ack, in PUT times", p99 / PUT_S, "×", target=2.5, lower_is_better=True)
    acks = sum(len(latencies) for latencies, _, _ in found)
    figures.add(SUITE, "records a segment", acks / segments, "records", target=25)


def test_the_broken_way(figures: Figures, quick: bool) -> None:
    """What a log does that flushes for each append and lets the others queue: the contrast."""
    seconds = 1.0 if quick else 2.0
    with logstore.open(SlowStore(MemoryStore(), put=PUT_S)) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"open the writer", ack="buffered")
        lock = threading.Lock()

        def append(value: bytes) -> int:
            with lock:
                offset = log.append(value, ack="buffered").offset
                log.flush()
                return offset

        latencies, acked, took = run_producers(append, seconds)
        check_acks(log, acked)
    figures.add(
        SUITE,
        "the broken way: a flush for each append, one lock",
        len(latencies) / took,
        "acks/s",
        p99_s=round(percentile(latencies, 0.99), 2),
    )


def test_a_lone_producer_pays_one_put(figures: Figures, quick: bool) -> None:
    """Waiting for others must cost a producer nothing that is alone."""
    count = 20 if quick else 60
    with logstore.open(SlowStore(MemoryStore(), put=PUT_S)) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"open the writer")
        latencies = []
        for number in range(count):
            began = time.perf_counter()
            log.append(b"%d" % number)
            latencies.append(time.perf_counter() - began)
    figures.add(
        SUITE,
        "a lone producer's ack, in PUT times",
        percentile(latencies, 0.5) / PUT_S,
        "×",
        target=1.1,
        lower_is_better=True,
    )
