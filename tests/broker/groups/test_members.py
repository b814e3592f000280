"""B01: real consumers as members of one group: of different kinds, come and gone, fenced, given more partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.broker.harness import LocalBroker

PATIENCE_S = 40.0
Place = tuple[int, int]


def create(broker: LocalBroker, name: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions)])[name].result(10)
    return admin


def consumer_of(broker: LocalBroker, group: str, **settings: Any) -> confluent_kafka.Consumer:
    options = {name.replace("_", "."): value for name, value in settings.items()}
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            **options,
        }
    )


def send(broker: LocalBroker, topic: str, partitions: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def wait_for(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        step()


class Team:
    """Members on threads of their own: what each holds, and every record that any of them got."""

    def __init__(self, broker: LocalBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.stopping = threading.Event()
        self.held: dict[str, int] = {}
        self.got: Counter[Place] = Counter()
        self._noted = threading.Condition()

    def note(self, member: str, held: int, places: list[Place]) -> None:
        with self._noted:
            self.held[member] = held
            self.got.update(places)
            self._noted.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until what the members have noted makes it true."""
        with self._noted:
            assert self._noted.wait_for(condition, PATIENCE_S), f"it did not come to pass: {self.held}"

    def librdkafka(self) -> None:
        consumer = consumer_of(self.broker, "team", partition_assignment_strategy="range")
        consumer.subscribe([self.topic])
        while not self.stopping.is_set():
            found = [each for each in consumer.consume(100, 0.1) if each.error() is None]
            places = [(each.partition(), each.offset()) for each in found]
            self.note("librdkafka", len(consumer.assignment()), places)
        consumer.close()

    def kafka_python(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.broker.address,
            group_id="team",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
        )
        while not self.stopping.is_set():
            found = [each for messages in consumer.poll(1000).values() for each in messages]
            places = [(each.partition, each.offset) for each in found]
            self.note("kafka-python", len(consumer.assignment()), places)
        consumer.close()

    def aiokafka(self) -> None:
        asyncio.run(self._aiokafka())

    async def _aiokafka(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.broker.address,
            group_id="team",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await consumer.start()
        while not self.stopping.is_set():
            found = [each for many in (await consumer.getmany(timeout_ms=200)).values() for each in many]
            places = [(each.partition, each.offset) for each in found]
            self.note("aiokafka", len(consumer.assignment()), places)
        await consumer.stop()


def test_B01_members_of_three_kinds_share_one_group(broker: LocalBroker) -> None:
    create(broker, "mixed", 6)
    team = Team(broker, "mixed")
    members = [threading.Thread(target=run) for run in (team.librdkafka, team.kafka_python, team.aiokafka)]
    for member in members:
        member.start()
    try:
        even = {"librdkafka": 2, "kafka-python": 2, "aiokafka": 2}
        team.wait_for(lambda: team.held == even)
        send(broker, "mixed", 6, 600)
        team.wait_for(lambda: len(team.got) >= 600)
    finally:
        team.stopping.set()
        for member in members:
            member.join(PATIENCE_S)
    assert set(team.got) == {(number % 6, number // 6) for number in range(600)}


def test_B01_partitions_that_are_added_are_handed_out_to_those_who_consume(broker: LocalBroker) -> None:
    admin = create(broker, "growing", 1)
    consumer = consumer_of(broker, "g", topic_metadata_refresh_interval_ms=300)
    consumer.subscribe(["growing"])
    found: dict[Place, bytes] = {}

    def step() -> None:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            found[(message.partition(), message.offset())] = message.value()

    wait_for(lambda: len(consumer.assignment()) == 1, step)
    admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(10)
    wait_for(lambda: len(consumer.assignment()) == 3, step)
    send(broker, "growing", 3, 3)
    wait_for(lambda: len(found) == 3, step)
    consumer.close()
    assert found == {(0, 0): b"0", (1, 0): b"1", (2, 0): b"2"}


def test_B01_a_second_member_with_the_same_instance_id_fences_the_first(broker: LocalBroker) -> None:
    create(broker, "fenced", 1)
    first, second = (consumer_of(broker, "g", group_instance_id="the-one") for _ in range(2))
    fatal: list[str] = []

    def poll_first() -> None:
        message = first.poll(0.05)
        if message is not None and message.error() is not None:
            fatal.append(str(message.error()))

    first.subscribe(["fenced"])
    wait_for(lambda: len(first.assignment()) == 1, poll_first)
    second.subscribe(["fenced"])
    wait_for(lambda: len(second.assignment()) == 1, lambda: second.poll(0.05))
    wait_for(lambda: bool(fatal), poll_first)
    assert "fenced" in fatal[0].lower()
    first.close()
    assert len(second.assignment()) == 1
    second.close()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_B01_a_storm_of_rebalances_loses_no_record(broker: LocalBroker) -> None:
    """Cooperative members, every other one static, each away and back every few seconds, while records arrive."""
    create(broker, "storm", 12)
    stopping = threading.Event()
    sent = 0
    got: Counter[Place] = Counter()
    lock = threading.Lock()

    def member(number: int) -> None:
        settings = {"partition_assignment_strategy": "cooperative-sticky", "auto_commit_interval_ms": 200}
        if number % 2 == 0:
            settings["group_instance_id"] = f"static-{number}"
        while not stopping.is_set():
            consumer = consumer_of(broker, "storm", **settings)
            consumer.subscribe(["storm"])
            until = time.monotonic() + 1.5 + 0.7 * number
            while time.monotonic() < until and not stopping.is_set():
                note(consumer.poll(0.1))
            consumer.close()

    def note(message: confluent_kafka.Message | None) -> None:
        if message is not None and message.error() is None:
            with lock:
                got[(message.partition(), message.offset())] += 1

    members = [threading.Thread(target=member, args=(number,)) for number in range(5)]
    for each in members:
        each.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        send(broker, "storm", 12, 120)
        sent += 120
    stopping.set()
    for each in members:
        each.join(PATIENCE_S)
    last = consumer_of(broker, "storm", partition_assignment_strategy="cooperative-sticky")
    last.subscribe(["storm"])
    wait_for(lambda: len(got) >= sent, lambda: note(last.poll(0.1)))
    last.close()
    assert set(got) == {(index, offset) for index in range(12) for offset in range(sent // 12)}
