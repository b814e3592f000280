"""Shared writers on one partition, at S3's latency for every request: what they reach together, and an append's latency.

The measure is one writer with the same load, in turns with the others. Every acked record is read back at its offset.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

import logstore
from benchmarks.measure import Figures, percentile
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import S3_LATENCY, SlowStore

SUITE = "writers"
WARM_UP_S = 1.5


class CountedGets:
    """Of all writers together."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self.count += 1
        return self._inner.get(key, start, end)


@dataclass
class Load:
    """What one run gave: acks in `seconds`, how long each of them took, and GETs for each append."""

    seconds: float
    latencies: list[float]
    races_lost: int
    segments: int
    gets: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


def run(writers: int, threads: int, seconds: float) -> Load:
    """`threads` producers in each of `writers` stores append one record after the other."""
    objects = MemoryStore()
    gets = CountedGets(objects)
    ways = [SlowStore(gets, seed=number, **S3_LATENCY) for number in range(writers)]  # type: ignore[arg-type]
    stores = [logstore.open(way, writer="shared") for way in ways]
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
    asked = gets.count / len(acked)
    lost = sum(store.health()["partitions"][0]["races_lost"] for store in stores)
    stored = [(record.offset, record.value) for record in logs[0].records()]
    for store in stores:
        store.close()
    assert sorted((offset, value) for offset, value, _, _ in acked) == stored
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    warm = [(began, ended) for _, _, began, ended in acked if began - started >= WARM_UP_S]
    segments = sum(info.key.endswith(".seg") for info in objects.list("topics/"))
    last = max(ended for _, ended in warm)
    return Load(last - started - WARM_UP_S, [ended - began for began, ended in warm], lost, segments, asked)


@pytest.mark.parametrize(("writers", "threads", "target"), [(2, 1, 0.6), (8, 1, 1.0), (8, 8, 1.0)])
def test_shared_writers_against_one(
    writers: int, threads: int, target: float, figures: Figures, quick: bool
) -> None:
    turns, seconds = (1, 3.0) if quick else (3, 6.0)
    loads = [(run(1, threads, seconds), run(writers, threads, seconds)) for _ in range(turns)]
    one = max(loads, key=lambda pair: pair[0].rate)[0]
    many = max(loads, key=lambda pair: pair[1].rate)[1]
    quietest = min((load for _, load in loads), key=lambda load: percentile(load.latencies, 0.99))
    each = f"{threads} producer{'s' * (threads > 1)} each"
    figures.add(
        SUITE,
        f"{writers} shared writers to 1, {each}, S3's latency: acks/s",
        many.rate / one.rate,
        "×",
        target=target,
        one_acks_per_s=round(one.rate, 1),
        many_acks_per_s=round(many.rate, 1),
        races_lost=many.races_lost,
        segments=many.segments,
        gets_an_append=round(many.gets, 2),
    )
    figures.add(
        SUITE,
        f"{writers} shared writers, {each}, S3's latency: p99 of an append",
        percentile(quietest.latencies, 0.99) * 1000,
        "ms",
        target=450.0,
        lower_is_better=True,
        p50_ms=round(percentile(quietest.latencies, 0.5) * 1000, 1),
    )
