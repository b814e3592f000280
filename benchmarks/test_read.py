"""Reading back: from the buffer, from the cache, and cold. What is read is compared with what was written."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import logstore
from benchmarks.measure import Figures, in_turns
from logstore.engine.partition_log import PartitionLog
from logstore.objects import MemoryStore
from logstore.testing import SlowStore

SUITE = "read"
RNG = random.Random(6)
VALUES = [RNG.randbytes(100) for _ in range(1000)]
COUNT = 200


BUFFERED = 12  # thousands: what a new writer may show before its next commit


def fill(log: PartitionLog, rounds: int) -> None:
    for _ in range(rounds):
        log.append(
            [logstore.Record(value, key=b"key-%04d" % n) for n, value in enumerate(VALUES)], ack="buffered"
        )


def read_all(log: PartitionLog, rounds: int) -> None:
    found = deque(enumerate(log.records(), start=1), maxlen=1)
    count, last = found[0]
    assert count == rounds * len(VALUES)
    assert last.value == VALUES[-1]


def test_records_from_buffer_and_from_cache(benchmark: Any, figures: Figures, quick: bool) -> None:
    turns = 5 if quick else 20
    with logstore.open(MemoryStore(), ack="buffered", flush_interval=3600, cache_bytes=1 << 30) as store:
        log = store.create_topic("t").partition(0)
        fill(log, BUFFERED)
        assert log.read(0).source == "buffer"
        buffered = in_turns({"buffer": lambda: read_all(log, BUFFERED)}, turns)["buffer"]
        log.flush()
        assert log.read(0).source == "segment"
        cached = in_turns({"cache": lambda: read_all(log, BUFFERED)}, turns)["cache"]
        benchmark.pedantic(lambda: read_all(log, BUFFERED), rounds=1)
    count = BUFFERED * len(VALUES)
    figures.add(SUITE, "records() from the buffer", count / buffered.best / 1e6, "M records/s", target=1.0)
    figures.add(SUITE, "records() from the cache", count / cached.best / 1e6, "M records/s", target=1.0)


def test_cold_sequential_read_at_the_latency_of_a_real_store(figures: Figures, quick: bool) -> None:
    """Prefetch: the next segment is on its way while this one is decoded. The contrast turns it off."""
    objects = MemoryStore()
    with logstore.open(objects, compression="none", flush_bytes=1 << 30, max_buffered_bytes=1 << 30) as store:
        log = store.create_topic("t", segment_bytes=4 << 20).partition(0)
        fill(log, COUNT)

    def scan(prefetch: bool) -> None:
        with logstore.open(
            SlowStore(objects, seed=4), writer="read_only", cache_bytes=64 << 20 if prefetch else 0
        ) as store:
            read_all(store.topic("t").partition(0), COUNT)

    found = in_turns({"with": lambda: scan(True), "without": lambda: scan(False)}, 2 if quick else 4)
    ratio = found["without"].median / found["with"].median
    figures.add(SUITE, "cold scan at S3's latency, with prefetch to without", ratio, "×", target=1.2)
