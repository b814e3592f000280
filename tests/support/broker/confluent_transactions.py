"""Transactions by librdkafka, and its consumers that read committed records, or all."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka

from tests.support.broker.harness import LocalBroker
from tests.support.patience import PATIENCE_S


def transactional(broker: LocalBroker, name: str = "tx", **settings: Any) -> confluent_kafka.Producer:
    options = {"bootstrap.servers": broker.address, "transactional.id": name, "log_level": 0, **settings}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions(PATIENCE_S)
    return producer


def read(broker: LocalBroker, topic: str, end: bytes, isolation: str = "read_committed") -> list[bytes]:
    """The values up to `end`, which was written last: what is not there before it will not come."""
    options = {"bootstrap.servers": broker.address, "group.id": f"{topic}-{isolation}-{time.monotonic()}"}
    options |= {"auto.offset.reset": "earliest", "isolation.level": isolation, "log_level": "0"}
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while end not in found:
            assert time.monotonic() < deadline, f"only {found} came"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found
