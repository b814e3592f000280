"""The broker: CPU seconds of its own process (the stable figure on a busy machine), wall clock, and latencies.

The broker is another process; the clients are real ones. What is consumed is counted and its content checked.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import urllib.request
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import confluent_kafka
import pytest

from benchmarks.measure import Figures, percentile
from broker_shim.__main__ import own_the_process
from broker_shim.wire.apis import Api
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import SlowStore
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire

SUITE = "broker"
VALUE = os.urandom(1000)
PUT_S = 0.04
UNCOMMITTED = {
    "isolation.level": "read_uncommitted",
    "fetch.queue.backoff.ms": 1,
    "enable.auto.commit": False,
}


def produce(broker: BrokerProcess, count: int) -> tuple[float, float]:
    """Wall and broker CPU seconds for `count` values of 1 KB."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    producer.produce("bench", VALUE)
    assert producer.flush(30) == 0
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    for number in range(count - 1):
        producer.produce("bench", VALUE)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - began, broker.cpu_seconds() - cpu


def wait_until_stored(broker: BrokerProcess, end: int) -> None:
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    with Wire(broker.port) as client:
        while True:
            answer = client.ask(
                Api.LIST_OFFSETS,
                6,
                replica_id=-1,
                isolation_level=1,
                topics=[{"name": "bench", "partitions": asked}],
            )
            if answer.topics[0].partitions[0].offset >= end:
                return
            time.sleep(0.02)


def consume(broker: BrokerProcess, count: int) -> tuple[float, float]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "bench",
            "queued.max.messages.kbytes": 500_000,
            "fetch.message.max.bytes": 4_000_000,
            **UNCOMMITTED,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("bench", 0, 0)])
    cpu, began, found = broker.cpu_seconds(), time.perf_counter(), 0
    deadline = began + 120
    while found < count and time.perf_counter() < deadline:
        for message in consumer.consume(10_000, 1.0):
            assert message.error() is None
            assert message.offset() == found
            found += 1
    elapsed, used = time.perf_counter() - began, broker.cpu_seconds() - cpu
    assert message.value() == VALUE
    consumer.close()
    assert found == count
    return elapsed, used


def test_produce_and_fetch_of_1_kb_records(figures: Figures, quick: bool, tmp_path: Path) -> None:
    """Buffered acks, one partition; local folder and memory in turns. Everything that is fetched is in memory."""
    count, turns = (60_000, 2) if quick else (200_000, 4)
    megabytes = count * len(VALUE) / 1e6
    flags = ("--flush-on-ack", "false", "--cache-bytes", str(1 << 30), "--max-buffered-bytes", str(1 << 30))
    wall: dict[str, list[float]] = {"local folder": [], "memory": []}
    produce_cpu: dict[str, list[float]] = {"local folder": [], "memory": []}
    stored_cpu: dict[str, list[float]] = {"local folder": [], "memory": []}
    fetch_cpu: dict[str, list[float]] = {"local folder": [], "memory": []}
    for turn in range(turns):
        for name, url in (("local folder", f"file://{tmp_path}/store-{turn}"), ("memory", "memory://bench")):
            with BrokerProcess(url, *flags) as broker:
                before = broker.cpu_seconds()
                elapsed, used = produce(broker, count)
                wait_until_stored(broker, count)
                stored_cpu[name].append(broker.cpu_seconds() - before)
                wall[name].append(elapsed)
                produce_cpu[name].append(used)
                consume(broker, count)  # what was flushed meanwhile comes into the cache
                fetch_cpu[name].append(consume(broker, count)[1])
    local = "local folder"
    figures.add(
        SUITE, "produce 1 KB, local folder", megabytes / min(produce_cpu[local]), "MB/CPU s", target=350
    )
    figures.add(
        SUITE,
        "produce 1 KB, local folder, until it is stored",
        megabytes / min(stored_cpu[local]),
        "MB/CPU s",
    )
    figures.add(SUITE, "produce 1 KB, memory", megabytes / min(produce_cpu["memory"]), "MB/CPU s")
    figures.add(SUITE, "fetch 1 KB from memory", megabytes / min(fetch_cpu[local]), "MB/CPU s", target=1500)
    figures.add(SUITE, "produce 1 KB, wall clock", megabytes / min(wall[local]), "MB/s")
    ratio = min(wall["memory"]) / min(wall[local])
    figures.add(SUITE, "wall clock: local folder to memory://", ratio, "×", target=0.8)


def serve_slowly(parent: Connection) -> None:
    """In a process of its own: a broker over a store whose PUT takes 40 ms. Ends when the parent says so."""
    with LocalBroker(SlowStore(MemoryStore(), put=PUT_S)) as broker:
        own_the_process()
        parent.send(broker.port)
        parent.recv()
        parent.send(broker.log("bench").durable_high_watermark)


def test_sixteen_producers_share_uploads(figures: Figures, quick: bool) -> None:
    """flush-on-ack: no convoy. Each producer sends its next record when the last one is durable."""
    rounds = 25 if quick else 100
    raw, _ = encode_batch([Record(VALUE, b"k")], now_ms=1, codec_id=0)
    latencies: list[float] = []
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve_slowly, args=(there,))
    process.start()
    try:
        assert here.poll(60)
        port = here.recv()
        with Wire(port) as client:
            client.ask(Api.METADATA, 9, topics=[{"name": "bench"}], allow_auto_topic_creation=True)
            assert client.produce("bench", raw).error_code == 0

        def run() -> None:
            with Wire(port) as client:
                for number in range(rounds):
                    began = time.perf_counter()
                    assert client.produce("bench", raw).error_code == 0
                    if number:  # in the first round whoever is not in the first upload waits for two
                        latencies.append(time.perf_counter() - began)

        threads = [threading.Thread(target=run) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        here.send("done")
        assert here.recv() == 16 * rounds + 1
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
    for share, name, target in ((0.5, "p50", 1.6), (0.99, "p99", 2.5)):
        value = percentile(latencies, share) / PUT_S
        figures.add(
            SUITE,
            f"durable produce, 16 producers, {name}",
            value,
            "PUTs",
            target=target,
            lower_is_better=True,
        )


def read_delays(address: str, turns: int, count: int, parent: Connection) -> None:
    """In a process of its own, so that the producer's interpreter lock is no part of the measurement."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "fetch.wait.max.ms": 100, **UNCOMMITTED}
    )
    consumer.assign([confluent_kafka.TopicPartition("bench", 0, 1)])
    for _ in range(turns):
        delays: list[float] = []
        parent.send("ready")
        while len(delays) < count:
            message = consumer.poll(1.0)
            if message is not None:
                delays.append(time.perf_counter() - float(message.value()))
        parent.send(delays)
    consumer.close()


def send_steadily(producer: confluent_kafka.Producer, count: int, rate: int) -> None:
    """Each value is the moment when it was handed to the producer."""
    began = time.perf_counter()
    for number in range(count):
        if number % 20 == 0:
            ahead = began + number / rate - time.perf_counter()
            if ahead > 0:
                producer.poll(ahead)
        producer.produce("bench", b"%.9f" % time.perf_counter())
    assert producer.flush(30) == 0


@pytest.mark.timeout(300)
def test_from_producer_to_consumer_at_10_000_a_second(figures: Figures, quick: bool, tmp_path: Path) -> None:
    """linger.ms=1, a consumer that polls one by one. Of several turns the best: a delay that somebody else on the
    machine causes is not the broker's.
    """
    turns, seconds, rate = (2, 3, 10_000) if quick else (5, 4, 10_000)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    measured: list[list[float]] = []
    with BrokerProcess(f"file://{tmp_path}/store", "--flush-on-ack", "false") as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 1})
        producer.produce("bench", b"0")
        assert producer.flush(30) == 0
        reader = spawn.Process(target=read_delays, args=(broker.address, turns, seconds * rate, there))
        reader.start()
        try:
            for _ in range(turns):
                assert here.poll(60)
                assert here.recv() == "ready"
                send_steadily(producer, seconds * rate, rate)
                assert here.poll(60)
                measured.append(here.recv()[rate:])  # the first second starts connections and caches
        finally:
            reader.join(30)
            if reader.is_alive():
                reader.kill()
    best = min(measured, key=lambda delays: percentile(delays, 0.99))
    assert len(best) == (seconds - 1) * rate
    figures.add(
        SUITE,
        "produce to consume, p99",
        percentile(best, 0.99) * 1000,
        "ms",
        target=20,
        lower_is_better=True,
    )
    figures.add(SUITE, "produce to consume, p50", percentile(best, 0.5) * 1000, "ms")


@pytest.mark.timeout(300)
def test_a_hundred_idle_consumers(figures: Figures, quick: bool, tmp_path: Path) -> None:
    """Subscribed, each in a group of its own, nothing to read: heartbeats and long polls, no request to the store.

    It is counted from when the store is quiet: a lane's checkpoint follows the commit that makes it due, and metadata that a
    client has asked for is read beside its consumer's first steps.
    """
    seconds = 5 if quick else 20
    with BrokerProcess(f"file://{tmp_path}/store", "--metrics", "127.0.0.1:0") as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
        producer.produce("bench", VALUE)
        assert producer.flush(30) == 0
        consumers = [
            confluent_kafka.Consumer(
                {
                    "bootstrap.servers": broker.address,
                    "group.id": f"g{number}",
                    "auto.offset.reset": "earliest",
                }
            )
            for number in range(100)
        ]
        for consumer in consumers:
            consumer.subscribe(["bench"])
        for consumer in consumers:
            assert consumer.consume(1, 60)
            consumer.commit(asynchronous=False)
        requests, cpu = quiet_requests(broker), broker.cpu_seconds()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for consumer in consumers:
                consumer.poll(0)
            time.sleep(0.2)
        used = broker.cpu_seconds() - cpu
        asked = store_requests(broker) - requests
        print("requests of the idle time:", dict(asked))
        for consumer in consumers:
            consumer.close()
    figures.add(
        SUITE, "idle, 100 consumers", 100 * used / seconds, "% of a core", target=5, lower_is_better=True
    )
    figures.add(
        SUITE, "idle, requests to the store", asked.total(), "requests", target=0, lower_is_better=True
    )


def quiet_requests(broker: BrokerProcess) -> Counter[str]:
    """What has been asked of the store once nothing more comes for a second; at most half a minute later."""
    before = store_requests(broker)
    for _ in range(30):
        time.sleep(1)
        now = store_requests(broker)
        if now == before:
            break
        before = now
    return before


def store_requests(broker: BrokerProcess) -> Counter[str]:
    """By operation."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counted = (line.rsplit(" ", 1) for line in lines if line.startswith("broker_shim_store_requests"))
    return Counter({name.split('"')[1]: int(float(count)) for name, count in counted})
