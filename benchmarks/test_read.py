"""Reading back: from the buffer, from the cache, and cold. What is read is compared with what was written."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import logstore
from benchmarks.material import rows
from benchmarks.measure import Figures, in_turns
from logstore.objects import MemoryStore
from logstore.testing import S3_LATENCY, SlowStore

SUITE = "read"
RECORDS = [logstore.Record(value, key) for key, value in rows(1000)]
VALUES = [record.value for record in RECORDS]
BUFFERED = 12  # thousands: less than a writer may show that has stored as many in its last interval
STORED = 160  # thousands: 4 segments of 4 MiB and a bit


def fill(log: logstore.PartitionLog, rounds: int) -> None:
    for _ in range(rounds):
        log.append(RECORDS, ack="buffered")


def read_all(log: logstore.PartitionLog, rounds: int, start: int = 0) -> None:
    ((count, last),) = deque(enumerate(log.records(start), start=1), maxlen=1)
    assert count == rounds * len(VALUES)
    assert last.value == VALUES[-1]


def check_all(log: logstore.PartitionLog, rounds: int, start: int = 0) -> None:
    assert [record.value for record in log.records(start)] == VALUES * rounds


def test_records_from_buffer_and_from_cache(benchmark: Any, figures: Figures, quick: bool) -> None:
    turns = 5 if quick else 20
    with logstore.open(MemoryStore(), ack="buffered", flush_interval=3600, cache_bytes=1 << 30) as store:
        log = store.create_topic("t").partition(0)
        fill(log, BUFFERED)
        start = log.flush()  # a reservation follows the rate: the next ones need no commit of their own
        fill(log, BUFFERED)
        assert log.read(start).source == "buffer"
        check_all(log, BUFFERED, start)
        buffered = in_turns({"buffer": lambda: read_all(log, BUFFERED, start)}, turns)["buffer"]
        log.flush()
        assert log.read(start).source == "segment"
        check_all(log, BUFFERED, start)
        cached = in_turns({"cache": lambda: read_all(log, BUFFERED, start)}, turns)["cache"]
        benchmark.pedantic(lambda: read_all(log, BUFFERED, start), rounds=1)
    count = BUFFERED * len(VALUES)
    for name, timing in (("buffer", buffered), ("cache", cached)):
        rate = count / timing.best_cpu / 1e6
        figures.add(SUITE, f"records() from the {name}", rate, "M records/s a core", target=1.0)


@contextmanager
def reader_at_s3_latency(objects: MemoryStore, *, prefetch: bool) -> Iterator[logstore.PartitionLog]:
    slow = SlowStore(objects, **S3_LATENCY, seed=4)  # type: ignore[arg-type]
    with logstore.open(slow, writer="read_only", cache_bytes=64 << 20) as store:
        if not prefetch:
            store._runtime.reader._prefetcher = None
        yield store.topic("t").partition(0)


def test_cold_scan_at_the_latency_of_s3(figures: Figures, quick: bool) -> None:
    """Prefetch: the next segment is on its way while this one is decoded. The contrast does without."""
    objects = MemoryStore()
    with logstore.open(objects, compression="none", flush_bytes=1 << 30, max_buffered_bytes=1 << 30) as store:
        fill(store.create_topic("t", segment_bytes=1 << 20).partition(0), STORED)

    def scan(prefetch: bool) -> None:
        with reader_at_s3_latency(objects, prefetch=prefetch) as log:
            read_all(log, STORED)

    with reader_at_s3_latency(objects, prefetch=True) as log:
        check_all(log, STORED)
    found = in_turns({"with": lambda: scan(True), "without": lambda: scan(False)}, 2 if quick else 5)
    ratio = found["without"].median / found["with"].median
    figures.add(
        SUITE,
        "cold scan at S3's latency, with prefetch to without",
        ratio,
        "×",
        target=1.2,
        MB_per_s=round(STORED * 1000 * 110 / found["with"].median / 1e6, 1),
    )


def test_a_topic_as_arrow(figures: Figures, quick: bool) -> None:
    """All columns of records in a folder, as Arrow and as records, in CPU time; both fetch, check and decode every byte."""
    size = (20 if quick else 200) * 1_000_000
    for value_size in (100, 600):
        noise = random.Random(3)
        some = [
            logstore.Record(noise.randbytes(value_size // 2).hex().encode(), b"key-%06d" % n)
            for n in range(1000)
        ]
        rounds = size // (1000 * (value_size + 10))
        with logstore.open(f"arrow-{value_size}", flush_bytes=4 << 20) as store:
            log = store.create_topic("t").partition(0)
            for _ in range(rounds):
                log.append(some, ack="buffered")
        with logstore.open(f"arrow-{value_size}", writer="read_only", cache_bytes=1 << 20) as store:
            topic = store.topic("t")

            def as_records(topic: logstore.Topic = topic, wanted: int = rounds * 1000) -> None:
                ((count, _),) = deque(enumerate(topic.partition(0).records(), start=1), maxlen=1)
                assert count == wanted

            def as_arrow(topic: logstore.Topic = topic, wanted: int = rounds * 1000) -> None:
                assert sum(batch.num_rows for batch in topic.arrow_batches()) == wanted

            found = in_turns({"records": as_records, "arrow": as_arrow}, 2 if quick else 5)
        arrow, records = found["arrow"].best_cpu, found["records"].best_cpu
        figures.add(
            SUITE,
            f"a topic as Arrow, to records(), values of {value_size} bytes",
            records / arrow,
            "×",
            arrow_cpu_s=round(arrow, 2),
            records_cpu_s=round(records, 2),
            MB=round(size / 1e6),
        )
