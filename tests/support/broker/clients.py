"""The real clients, each behind the same four verbs, each with its own defaults.

A record is `(partition, key, value, headers)`. `produce` returns once every record is acked.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.support.patience import PATIENCE_S

Headers = list[tuple[str, bytes | None]]
Sent = tuple[bytes | None, bytes | None, Headers]
Got = tuple[int, bytes | None, bytes | None, Headers]


class Client(Protocol):
    name: str

    def produce(self, address: str, topic: str, records: list[Sent], **settings: Any) -> None: ...

    def consume(self, address: str, topic: str, count: int, **settings: Any) -> list[Got]: ...


class Confluent:
    """librdkafka."""

    name = "confluent-kafka"

    def produce(self, address: str, topic: str, records: list[Sent], **settings: Any) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, **{k.replace("_", "."): v for k, v in settings.items()}}
        )
        failures: list[object] = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                failures.append(error)

        for key, value, headers in records:
            producer.produce(topic, value, key, headers=headers or None, on_delivery=delivered)
        assert producer.flush(PATIENCE_S) == 0
        if failures:
            raise AssertionError(f"not delivered: {failures[0]}")

    def consume(self, address: str, topic: str, count: int, **settings: Any) -> list[Got]:
        options = {"bootstrap.servers": address, "auto.offset.reset": "earliest", "group.id": f"g-{topic}"}
        options |= {name.replace("_", "."): value for name, value in settings.items()}
        consumer = confluent_kafka.Consumer(options)
        consumer.subscribe([topic])
        found: list[Got] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    headers = list(message.headers() or [])
                    found.append((message.offset(), message.key(), message.value(), headers))
            if len(found) == count and options.get("enable.auto.commit", True):
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


class KafkaPython:
    name = "kafka-python"

    def produce(self, address: str, topic: str, records: list[Sent], **settings: Any) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=address, **settings)
        try:
            sent = [producer.send(topic, value, key, headers=headers) for key, value, headers in records]
            for future in sent:
                future.get(PATIENCE_S)
        finally:
            producer.close()

    def consume(self, address: str, topic: str, count: int, **settings: Any) -> list[Got]:
        options = {"auto_offset_reset": "earliest", "group_id": f"g-{topic}", **settings}
        consumer = kafka.KafkaConsumer(topic, bootstrap_servers=address, **options)
        found: list[Got] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                # A long poll, because 3.0 forgets an assignment that arrives just after one has timed out.
                for messages in consumer.poll(timeout_ms=10_000).values():
                    found += [(m.offset, m.key, m.value, list(m.headers)) for m in messages]
        finally:
            consumer.close()
        return found


class AioKafka:
    name = "aiokafka"

    def produce(self, address: str, topic: str, records: list[Sent], **settings: Any) -> None:
        async def run() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, **settings)
            await producer.start()
            try:
                sent = [await producer.send(topic, v, k, headers=h) for k, v, h in records]
                await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)
            finally:
                await producer.stop()

        asyncio.run(run())

    def consume(self, address: str, topic: str, count: int, **settings: Any) -> list[Got]:
        async def run() -> list[Got]:
            options = {"auto_offset_reset": "earliest", "group_id": f"g-{topic}", **settings}
            consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=address, **options)
            await consumer.start()
            found: list[Got] = []
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while len(found) < count:
                        for messages in (await consumer.getmany(timeout_ms=200)).values():
                            found += [(m.offset, m.key, m.value, list(m.headers)) for m in messages]
            finally:
                await consumer.stop()
            return found

        return asyncio.run(run())


CLIENTS: list[Client] = [Confluent(), KafkaPython(), AioKafka()]


def kcat(address: str, *arguments: str, given: bytes = b"") -> bytes:
    command = ["kcat", "-b", address, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
