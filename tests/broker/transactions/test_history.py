"""B14: a seeded history of transactions of several producers, read all the time, while brokers take over from each other.

Each producer writes its transactions to two partitions, one record each, and commits or aborts as its seed says; at times
it is replaced by a new life. A reader reads committed records all the time. In the end: what was committed is there once
in each partition, what was aborted nowhere, in no read at any time; of what nobody knows, both or none.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Moved, committed_values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
PARTITIONS = 2
HANGS_S = 45.0
"""Less than the 60 s after which the broker would end a transaction by itself."""


class Producing(threading.Thread):
    """One transactional id: `committed`, `aborted` and `unknown` are what its user was told."""

    def __init__(self, address: str, name: str, seed: int, transactions: int) -> None:
        super().__init__(name=name)
        self._address = address
        self._rng = random.Random(seed)
        self._count = transactions
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            producer = self._new_life()
            for number in range(self._count):
                producer = self._transaction(producer, b"%s-%d" % (self.name.encode(), number))
        except BaseException as error:
            self.error = error

    def _new_life(self) -> confluent_kafka.Producer:
        options: dict[str, Any] = {"bootstrap.servers": self._address, "transactional.id": self.name}
        options |= {"log_level": 0, "retry.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        producer = confluent_kafka.Producer(options)
        producer.init_transactions(PATIENCE_S)
        return producer

    def _transaction(self, producer: confluent_kafka.Producer, value: bytes) -> confluent_kafka.Producer:
        keep, is_replaced = self._rng.random() < 0.7, self._rng.random() < 0.15
        self.aborted.add(value)
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", value, partition=partition)
            if is_replaced:
                producer.flush(PATIENCE_S)
                return self._new_life()  # which aborts it
            if keep:
                self.aborted.discard(value)
                self.unknown.add(value)
                producer.commit_transaction(PATIENCE_S)
                self.unknown.discard(value)
                self.committed.add(value)
            else:
                producer.abort_transaction(PATIENCE_S)
        except confluent_kafka.KafkaException as error:
            failure = error.args[0]
            if failure.txn_requires_abort() and self._is_aborted(producer):
                self.unknown.discard(value)
                self.aborted.add(value)
                return producer
            return self._new_life()  # fenced, or timed out while brokers moved
        return producer

    @staticmethod
    def _is_aborted(producer: confluent_kafka.Producer) -> bool:
        try:
            producer.abort_transaction(PATIENCE_S)
        except confluent_kafka.KafkaException:
            return False
        return True


def read_now(wire: Wire) -> list[list[bytes]]:
    """Of each partition that this broker leads at the moment: while they move, it may be none."""
    found = []
    for partition in range(PARTITIONS):
        with contextlib.suppress(Moved):
            found.append(committed_values(wire, partition=partition))
    return found


def nothing_is_open(wire: Wire) -> bool:
    """Whether every marker stands that was decided: they come after the producer's answer."""
    answers = [wire.fetch("t", 0, partition=partition) for partition in range(PARTITIONS)]
    return all(a.error_code == Code.NONE and a.last_stable_offset == a.high_watermark for a in answers)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seed", "takeovers", "transactions"),
    [(1, 2, 12), *((seed, 6, 60) for seed in range(2, 6))],
)
def test_B14_a_history_with_takeovers(
    start_broker: Start, seed: int, takeovers: int, transactions: int
) -> None:
    store, rng = MemoryStore(), random.Random(seed)
    broker = start_broker(store, node_id=1)
    with Wire(broker.port) as wire:
        make_topic(wire, partitions=PARTITIONS)
    producers = [Producing(broker.address, f"p{n}", seed * 100 + n, transactions) for n in range(3)]
    for producer in producers:
        producer.start()
    seen: list[list[bytes]] = []
    for number in range(takeovers):
        wanted = rng.randrange(3, 3 + transactions)
        with Wire(broker.port) as wire:
            wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            while sum(len(p.committed) for p in producers) < wanted and any(p.is_alive() for p in producers):
                seen += read_now(wire)
        # The next one takes every partition that it is asked for; the one before lives on, and does not know yet.
        broker = start_broker(store, node_id=2 + number)
        with Wire(broker.port) as wire:
            wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
    for producer in producers:
        producer.join(4 * PATIENCE_S)
        assert not producer.is_alive()
        assert producer.error is None, producer.error
    # Any of them may write last, and the others do not know: one that has just come looks into the store.
    broker = start_broker(store, node_id=2 + takeovers)
    with Wire(broker.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        deadline = time.monotonic() + HANGS_S
        while not (nothing_is_open(wire) and len(final := read_now(wire)) == PARTITIONS):
            assert time.monotonic() < deadline, "every producer has ended its transactions, and one is open"
    committed = set[bytes]().union(*(p.committed for p in producers))
    aborted = set[bytes]().union(*(p.aborted for p in producers))
    unknown = set[bytes]().union(*(p.unknown for p in producers))
    assert committed, "something was committed"
    for read in (*seen, *final):
        assert not aborted & set(read), "an aborted read"
    for read in final:
        assert len(read) == len(set(read)), "a doubled write"
        assert committed - set(read) == set(), "a lost write"
    assert set(final[0]) & unknown == set(final[1]) & unknown, "all or nothing"
