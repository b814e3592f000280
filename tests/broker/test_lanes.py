"""N01, N04 through the broker: one PUT for all partitions, and another broker that goes on with them."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.objects import MemoryStore, MeteredStore
from tests.support.broker.harness import LocalBroker
from tests.support.patience import PATIENCE_S

PARTITIONS = 32


def send(broker: LocalBroker, first: int) -> None:
    """Ten records to each partition, and every one acked by all."""
    refused: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 100})
    for number in range(first, first + 10):
        for partition in range(PARTITIONS):
            producer.produce(
                "t", b"%d" % number, partition=partition, on_delivery=lambda error, _: refused.append(error)
            )
    assert producer.flush(PATIENCE_S) == 0
    assert refused == [None] * 10 * PARTITIONS


def received(broker: LocalBroker, count: int) -> dict[int, list[int]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", n, 0) for n in range(PARTITIONS)])
    found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
    try:
        for _ in range(count):
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None
            found[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    return found


def test_N01_a_broker_with_a_lane_stores_all_partitions_with_few_puts_and_another_takes_them_over(
    start_broker: Callable[..., LocalBroker],
) -> None:
    objects = MeteredStore(MemoryStore())
    first = start_broker(objects, lanes=1)
    admin = AdminClient({"bootstrap.servers": first.address})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(PATIENCE_S)
    send(first, 0)  # opens the writers: a fence for each
    before = objects.snapshot()["put"].requests
    send(first, 10)
    spent = objects.snapshot()["put"].requests - before
    assert spent < PARTITIONS, "with a chain for each partition it is at least one PUT for each"
    second = start_broker(objects, lanes=1, node_id=2)
    send(second, 20)
    found = received(second, 30 * PARTITIONS)
    assert found == {n: list(range(30)) for n in range(PARTITIONS)}
    assert any(objects.list("lanes/"))
