"""B14: kill -9 of the broker at every one of its writes, under a librdkafka producer that goes on with the next
broker on that address. Java's client does the same in tests/compat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.support.broker.client_kills import END, ZOMBIE, Told, at_every_write, killed_at
from tests.support.patience import PATIENCE_S

GROUP = "g"
TRIES = 3


class Producing:
    """One transactional id, its lives, and what it was told."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.told = Told()
        self._reader = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})
        self.producer = self._new_life()

    def _new_life(self) -> confluent_kafka.Producer:
        options: dict[str, Any] = {"bootstrap.servers": self._address, "transactional.id": "tx"}
        # By default librdkafka forgets a lone broker that is gone and makes another of its address; its memory of where a
        # group is coordinated keeps the first, and send_offsets_to_transaction waits for that one for a quarter of an hour.
        options["metadata.recovery.strategy"] = "none"
        producer = confluent_kafka.Producer({**options, "log_level": 0})
        _until_done(lambda: producer.init_transactions(PATIENCE_S))
        return producer

    def story(self) -> Told:
        for number, commit in enumerate((True, False, True)):
            self._transaction(str(number), commit=commit, offset=number)
        former = self.producer
        _begin(former, ZOMBIE)
        former.flush(PATIENCE_S)
        self.producer = self._new_life()
        try:
            _until_done(lambda: former.commit_transaction(PATIENCE_S))
            self.told.zombie_committed = True
        except KafkaException:
            pass
        while END not in self.told.committed:
            assert END not in self.told.unknown, "nobody knows of the last one"
            self._transaction(END, commit=True)
        self._read()
        return self.told

    def _transaction(self, value: str, *, commit: bool, offset: int | None = None) -> None:
        producer, is_ending = self.producer, False
        try:
            _begin(producer, value)
            if offset is not None:
                offsets, group = [TopicPartition("t", 0, offset)], self._reader.consumer_group_metadata()
                _until_done(lambda: producer.send_offsets_to_transaction(offsets, group, PATIENCE_S))
            if commit:
                is_ending = True
                _until_done(lambda: producer.commit_transaction(PATIENCE_S))
                self.told.committed.append(value)
            else:
                _until_done(lambda: producer.abort_transaction(PATIENCE_S))
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                try:
                    _until_done(lambda: producer.abort_transaction(PATIENCE_S))
                except KafkaException:
                    self.producer = self._new_life()
                else:
                    is_ending = False
            else:
                self.producer = self._new_life()
            if is_ending:
                self.told.unknown.append(value)

    def _read(self) -> None:
        options = {"bootstrap.servers": self._address, "group.id": "r", "isolation.level": "read_committed"}
        consumer = confluent_kafka.Consumer({**options, "auto.offset.reset": "earliest"})
        try:
            for partition in (0, 1):
                consumer.assign([TopicPartition("t", partition, 0)])
                values: list[str] = []
                while END not in values:
                    message = consumer.poll(PATIENCE_S)
                    assert message is not None, f"after {values} nothing came"
                    if message.error() is None:
                        values.append((message.value() or b"").decode())
                self.told.read.append(values)
            [found] = self._reader.committed([TopicPartition("t", 0)], PATIENCE_S)
            self.told.offset = found.offset if found.offset >= 0 else None
        finally:
            consumer.close()
            self._reader.close()


def _begin(producer: confluent_kafka.Producer, value: str) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce("t", value.encode(), partition=partition)


def _until_done(step: Callable[[], object]) -> None:
    """A call that may be made again is."""
    for tries_left in reversed(range(TRIES)):
        try:
            step()
            return
        except KafkaException as error:
            if not tries_left or not error.args[0].retriable():
                raise


def story(address: str) -> Told:
    return Producing(address).story()


@pytest.mark.parametrize(("number", "when"), [(5, "after"), (9, "before")])
def test_B14_librdkafka_goes_on_after_kill_9_at_a_write(tmp_path: Path, number: int, when: str) -> None:
    assert killed_at(tmp_path, number, when, 1, story), "the script is shorter than was thought"


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lanes", [0, 1])
def test_B14_librdkafka_goes_on_after_kill_9_at_every_write(tmp_path: Path, lanes: int, when: str) -> None:
    kills = at_every_write(tmp_path, when, lanes, story)
    print(f"librdkafka, lanes={lanes}, {when}: {kills} kills")
    assert kills > 8
