"""Appending: at each ack level, one by one and in bulk. All of it is read back and compared before a figure counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from benchmarks.material import rows
from benchmarks.measure import Figures, in_turns
from logstore.objects import MemoryStore

SUITE = "append"
RECORDS = [logstore.Record(value, key) for key, value in rows(1000)]
VALUES = [record.value for record in RECORDS]
ROOM: dict[str, Any] = {"max_buffered_bytes": 1 << 30, "flush_bytes": 8 << 20}


def check_all(log: logstore.PartitionLog, rounds: int) -> None:
    """Every record that was appended is there, in order, and durable once flushed."""
    log.flush()
    found = [record.value for record in log.records(visibility="durable")]
    assert found == VALUES * rounds


@pytest.mark.parametrize(("size", "compression"), [(1000, "zstd"), (1000, "none"), (100, "none")])
def test_bulk_buffered(size: int, compression: str, benchmark: Any, figures: Figures, quick: bool) -> None:
    """With the default codec, which finds nothing to save in random bytes and looks all the same; and without one. Lists of
    1,000 are batches of their own; shorter ones share a batch."""
    turns, rounds = 4 if quick else 25, 50
    lists = [RECORDS[start : start + size] for start in range(0, len(RECORDS), size)]
    with logstore.open(MemoryStore(), compression=compression, **ROOM) as store:
        log = store.create_topic("t").partition(0)

        def run() -> None:
            for _ in range(rounds):
                for records in lists:
                    log.append(records, ack="buffered")

        found = in_turns({"append": run}, turns)["append"]
        benchmark.pedantic(run, rounds=1)
        check_all(log, rounds * (turns + 2))
    figures.add(
        SUITE,
        f"append(list of {size:,}), buffered, 100-byte values, {compression}",
        rounds * len(RECORDS) / found.best_cpu / 1e6,
        "M records/s a core",
        target=1.2,
    )


def test_one_by_one_buffered(benchmark: Any, figures: Figures, quick: bool) -> None:
    turns, rounds = 4 if quick else 40, 10
    with logstore.open(MemoryStore(), **ROOM) as store:
        topic = store.create_topic("t", partitions=1)

        def run() -> None:
            append = topic.append
            for _ in range(rounds):
                for record in RECORDS:
                    append(record.value, key=record.key, ack="buffered")

        found = in_turns({"append": run}, turns)["append"]
        benchmark.pedantic(run, rounds=1)
        check_all(topic.partition(0), rounds * (turns + 2))
    figures.add(
        SUITE,
        "topic.append(value, key=…) one by one, buffered, one thread",
        rounds * len(RECORDS) / found.best_cpu / 1e3,
        "k records/s a core",
        target=250,
    )


def test_one_by_one_against_a_kafka_producer(figures: Figures, quick: bool) -> None:
    """Both take a record into memory and return: librdkafka's `produce` into its queue, ours into the buffer with an offset,
    readable at once. No broker is there, so what `produce` took is seen when its queue is purged."""
    import confluent_kafka

    turns, rounds = 3 if quick else 8, 10
    given_up: list[bytes] = []
    queue = confluent_kafka.Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 0,
            "error_cb": lambda _: None,
            "on_delivery": lambda _, message: given_up.append(message.value()),
        }
    )
    with logstore.open(MemoryStore(), **ROOM) as store:
        topic = store.create_topic("t", partitions=1)

        def ours() -> None:
            append = topic.append
            for _ in range(rounds):
                for record in RECORDS:
                    append(record.value, key=record.key, ack="buffered")

        def theirs() -> None:
            produce = queue.produce
            for _ in range(rounds):
                for record in RECORDS:
                    produce("t", record.value, record.key)

        found = in_turns({"logstore": ours, "confluent-kafka produce": theirs}, turns)
        queue.purge()
        queue.flush(30)
        assert given_up == VALUES * rounds * (turns + 1)
        check_all(topic.partition(0), rounds * (turns + 1))
    seconds = {name: timing.cpu_seconds for name, timing in found.items()}
    levels = {
        "logstore": "in this process, with its offset, readable",
        "confluent-kafka produce": "in this process",
    }
    figures.add_peers(
        SUITE,
        "one by one into memory",
        "logstore",
        seconds,
        rounds * len(RECORDS) / 1e3,
        "k records/s a core",
        levels,
    )


@pytest.mark.parametrize("ack", ["local", "durable"])
def test_one_by_one_on_a_local_folder(ack: Any, figures: Figures, tmp_path: Path, quick: bool) -> None:
    """Each append waits for its own fsyncs: this measures the disk, and says so."""
    count = 100 if quick else 400
    with logstore.open(str(tmp_path / "store"), wal_dir=str(tmp_path / "wal")) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"warm-up", ack=ack)
        began = time.perf_counter()
        for n in range(count):
            log.append(b"%d" % n, ack=ack)
        rate = count / (time.perf_counter() - began)
        assert [record.value for record in log.records(1)] == [b"%d" % n for n in range(count)]
    figures.add(SUITE, f"one by one, ack={ack}, local folder (fsync for each)", rate, "records/s")
