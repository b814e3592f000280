"""B14: transactional producers as real clients make them, read by real `read_committed` consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.broker.clients import Confluent
from tests.support.broker.confluent_transactions import read, transactional
from tests.support.broker.harness import LocalBroker
from tests.support.patience import PATIENCE_S


def test_B14_confluent_commits_and_aborts(broker: LocalBroker) -> None:
    producer = transactional(broker)
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.produce("t", b"%d-%d" % (number, part))
        if number % 2:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"end")
    producer.commit_transaction(PATIENCE_S)
    kept = [b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    assert read(broker, "t", b"end") == [*kept, b"end"]
    every = [b"%d-%d" % (number, part) for number in range(6) for part in range(3)]
    assert read(broker, "t", b"end", "read_uncommitted") == [*every, b"end"]


def test_B14_aiokafka_commits_aborts_and_reads_committed(broker: LocalBroker) -> None:
    async def run() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id="aio")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("t", b"kept")
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send_and_wait("t", b"dropped")
                raise KeyError
        async with producer.transaction():
            await producer.send_and_wait("t", b"end")
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.address,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while b"end" not in found:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    found += [message.value for message in messages]
        await consumer.stop()
        return found

    assert asyncio.run(run()) == [b"kept", b"end"]


def test_B14_kafka_python_commits_and_aborts(broker: LocalBroker) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.address, transactional_id="kp")
    try:
        producer.init_transactions()
        for value, keep in ((b"kept", True), (b"dropped", False), (b"end", True)):
            producer.begin_transaction()
            producer.send("t", value).get(PATIENCE_S)
            if keep:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    assert read(broker, "t", b"end") == [b"kept", b"end"]


def test_B14_consume_transform_produce_is_exactly_once(broker: LocalBroker) -> None:
    """Every second transaction is aborted, and its input is read again: each comes out once."""
    Confluent().produce(broker.address, "in", [(b"k", b"%d" % i, []) for i in range(20)])
    options: dict[str, Any] = {"bootstrap.servers": broker.address, "group.id": "etl"}
    options |= {"auto.offset.reset": "earliest"}
    options |= {"enable.auto.commit": False, "isolation.level": "read_committed", "log_level": 0}
    producer = transactional(broker, "etl")
    tries = 0
    deadline = time.monotonic() + PATIENCE_S
    place = [confluent_kafka.TopicPartition("in", 0)]
    while True:
        consumer = confluent_kafka.Consumer(options)
        [committed] = consumer.committed(place, PATIENCE_S)
        if committed.offset == 20:
            consumer.close()
            break
        assert time.monotonic() < deadline
        consumer.assign([confluent_kafka.TopicPartition("in", 0, max(0, committed.offset))])
        messages: list[Any] = []
        while not messages:
            messages = consumer.consume(4, 1.0)
        producer.begin_transaction()
        for message in messages[:4]:
            producer.produce("out", b"<%s>" % (message.value() or b""))
        after = confluent_kafka.TopicPartition("in", 0, messages[:4][-1].offset() + 1)
        producer.send_offsets_to_transaction([after], consumer.consumer_group_metadata(), PATIENCE_S)
        tries += 1
        if tries % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
        consumer.close()
    producer.begin_transaction()
    producer.produce("out", b"end")
    producer.commit_transaction(PATIENCE_S)
    assert read(broker, "out", b"end") == [*(b"<%d>" % i for i in range(20)), b"end"]


def test_B14_a_new_life_fences_the_old_one(broker: LocalBroker) -> None:
    old = transactional(broker)
    old.begin_transaction()
    old.produce("t", b"of the old one")
    old.flush(PATIENCE_S)
    new = transactional(broker)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        old.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].fatal()
    new.begin_transaction()
    new.produce("t", b"end")
    new.commit_transaction(PATIENCE_S)
    assert read(broker, "t", b"end") == [b"end"]


def test_B14_with_buffered_acks_what_is_committed_is_durable(
    start_broker: Callable[..., LocalBroker],
) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    producer = transactional(broker)
    producer.begin_transaction()
    producer.produce("t", b"end")
    producer.commit_transaction(PATIENCE_S)
    assert broker.log("t").durable_high_watermark >= 1
    assert read(broker, "t", b"end") == [b"end"]
