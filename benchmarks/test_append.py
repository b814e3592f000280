"""Appending: at each ack level, one by one and in bulk. Everything appended is read back and compared before a figure counts."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from benchmarks.measure import Figures
from logstore.engine.partition_log import PartitionLog
from logstore.objects import MemoryStore
from logstore.testing import SlowStore

SUITE = "append"
RNG = random.Random(5)
VALUES = [RNG.randbytes(100) for _ in range(1000)]
RECORDS = [logstore.Record(value, key=b"key-%04d" % n) for n, value in enumerate(VALUES)]
ROOM = {"max_buffered_bytes": 1 << 30, "flush_bytes": 8 << 20}


def check_all(log: PartitionLog, rounds: int) -> None:
    """Every record that was appended is there, in order, and durable once flushed."""
    log.flush()
    found = [record.value for record in log.records(visibility="durable")]
    assert len(found) == rounds * len(VALUES)
    assert found[: len(VALUES)] == found[-len(VALUES) :] == VALUES


def best_rate(run: Any, count: int, turns: int) -> float:
    best = float("inf")
    for _ in range(turns):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return count / best


def test_bulk_buffered(benchmark: Any, figures: Figures, quick: bool) -> None:
    turns = 3 if quick else 8
    with logstore.open(MemoryStore(), **ROOM) as store:
        log = store.create_topic("t").partition(0)
        rounds = 100

        def run() -> None:
            for _ in range(rounds):
                log.append(RECORDS, ack="buffered")

        run()
        rate = best_rate(run, rounds * len(RECORDS), turns)
        benchmark.pedantic(run, rounds=1)
        check_all(log, rounds * (turns + 2))
    figures.add(
        SUITE, "append(list of 1,000), buffered, 100-byte values", rate / 1e6, "M records/s", target=1.2
    )


def test_one_by_one_buffered(benchmark: Any, figures: Figures, quick: bool) -> None:
    turns = 3 if quick else 8
    with logstore.open(MemoryStore(), **ROOM) as store:
        topic = store.create_topic("t", partitions=1)
        count = 20 * len(RECORDS)

        def run() -> None:
            append = topic.append
            for _ in range(20):
                for record in RECORDS:
                    append(record.value, key=record.key, ack="buffered")

        run()
        rate = best_rate(run, count, turns)
        benchmark.pedantic(run, rounds=1)
        check_all(topic.partition(0), 20 * (turns + 2))
    figures.add(
        SUITE,
        "topic.append(value, key=…) one by one, buffered, one thread",
        rate / 1e3,
        "k records/s",
        target=250,
    )


@pytest.mark.parametrize("ack", ["local", "durable"])
def test_one_by_one_on_a_local_folder(ack: Any, figures: Figures, tmp_path: Path, quick: bool) -> None:
    """Each append waits for its own fsync: this measures the disk, and says so."""
    count = 100 if quick else 400
    with logstore.open(str(tmp_path / "store"), wal_dir=str(tmp_path / "wal")) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"warm-up", ack=ack)
        began = time.perf_counter()
        for n in range(count):
            log.append(b"%d" % n, ack=ack)
        rate = count / (time.perf_counter() - began)
        found = [record.value for record in log.records(1)]
        assert found == [b"%d" % n for n in range(count)]
    figures.add(SUITE, f"one by one, ack={ack}, local folder (one fsync each)", rate, "records/s")


def test_durable_bulk_against_the_latency_of_a_real_store(figures: Figures, quick: bool) -> None:
    """How much of a store's bandwidth is used when each PUT takes as long as S3's: uploads of one partition go one by one."""
    count = 40 if quick else 150
    with logstore.open(
        SlowStore(MemoryStore(), seed=3),
        flush_bytes=4 << 20,
        compression="none",
        max_buffered_bytes=64 << 20,
    ) as store:
        log = store.create_topic("t").partition(0)
        began = time.perf_counter()
        for _ in range(count):
            log.append(VALUES * 10, ack="buffered", timeout=60)
        log.flush()
        seconds = time.perf_counter() - began
        assert log.durable_high_watermark == count * 10 * len(VALUES)
    figures.add(
        SUITE,
        "buffered appends, S3-like latency (141 ms at 4 MiB), one partition",
        count * 1.0 / seconds,
        "MB/s",
    )
