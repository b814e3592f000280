"""Shared writers on one partition, 40 ms PUT: what contention costs in throughput and in latency.

The measure is one writer with the same load, in turns with eight. Every acked record is read back at its offset.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

import logstore
from benchmarks.measure import Figures, percentile
from logstore.objects import MemoryStore
from logstore.testing import SlowStore

SUITE = "writers"
PUT_S = 0.040
WARM_UP_S = 1.5


@dataclass
class Load:
    """What one run gave: acks in `seconds`, and how long each of them took."""

    seconds: float
    latencies: list[float]
    races_lost: int
    segments: int

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


def run(writers: int, threads: int, seconds: float) -> Load:
    """`threads` producers in each of `writers` stores append one record after the other."""
    objects = MemoryStore()
    slow = SlowStore(objects, put=PUT_S)
    stores = [logstore.open(slow, writer="shared") for _ in range(writers)]
    stores[0].create_topic("t")
    logs = [store.topic("t").partition(0) for store in stores]
    acked: list[tuple[int, bytes, float, float]] = []
    stop = time.perf_counter() + WARM_UP_S + seconds

    def produce(log: logstore.PartitionLog, name: bytes) -> None:
        number = 0
        while (began := time.perf_counter()) < stop:
            value = name + b"-%d" % number
            offset = log.append(value).offset
            acked.append((offset, value, began, time.perf_counter()))
            number += 1

    producers = [
        threading.Thread(target=produce, args=(log, b"%d-%d" % (place, thread)))
        for place, log in enumerate(logs)
        for thread in range(threads)
    ]
    started = time.perf_counter()
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    lost = sum(store.health()["partitions"][0]["races_lost"] for store in stores)
    stored = [(record.offset, record.value) for record in logs[0].records()]
    for store in stores:
        store.close()
    assert sorted((offset, value) for offset, value, _, _ in acked) == stored
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    warm = [(began, ended) for _, _, began, ended in acked if began - started >= WARM_UP_S]
    segments = sum(info.key.endswith(".seg") for info in objects.list("topics/"))
    last = max(ended for _, ended in warm)
    return Load(last - started - WARM_UP_S, [ended - began for began, ended in warm], lost, segments)


@pytest.mark.parametrize("threads", [1, 8])
def test_eight_shared_writers_against_one(threads: int, figures: Figures, quick: bool) -> None:
    turns, seconds = (1, 3.0) if quick else (3, 6.0)
    loads = [(run(1, threads, seconds), run(8, threads, seconds)) for _ in range(turns)]
    one = max(loads, key=lambda pair: pair[0].rate)[0]
    eight = max(loads, key=lambda pair: pair[1].rate)[1]
    quietest = min((load for _, load in loads), key=lambda load: percentile(load.latencies, 0.99))
    each = f"{threads} producer{'s' * (threads > 1)} each"
    figures.add(
        SUITE,
        f"8 shared writers to 1, {each}, 40 ms PUT: acks/s",
        eight.rate / one.rate,
        "×",
        target=0.5,
        one_acks_per_s=round(one.rate, 1),
        eight_acks_per_s=round(eight.rate, 1),
        races_lost=eight.races_lost,
        segments=eight.segments,
    )
    figures.add(
        SUITE,
        f"8 shared writers, {each}, 40 ms PUT: p99 of an append",
        percentile(quietest.latencies, 0.99) / PUT_S,
        "PUT times",
        target=10.0,
        lower_is_better=True,
        p50_put_times=round(percentile(quietest.latencies, 0.5) / PUT_S, 2),
    )
