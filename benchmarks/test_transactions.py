"""Transactional produce, in PUT times: 100 records a transaction, one after the other, over a store whose PUT takes 40 ms.

What is measured is a whole round: AddPartitionsToTxn, one batch of 100 records, EndTxn, each sent when the one before was
answered, and whatever the next round has to wait for. With a chain for each partition a round is the record that the
partition is part of it, beside the marker of the round before, the batch and the decision; in one lane it is the batch and
the end. Across brokers, where coordinator and partition are in different lanes, three again, whatever the settings.

The other unit is a durable ack: the median of as many batches of the same size outside of any transaction, sent to the same
partition between two turns. That is what a PUT time is on this machine at this moment, with everything around it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from benchmarks.measure import Figures, percentile
from broker_shim.__main__ import own_the_process
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import SlowStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor
from tests.support.patience import PATIENCE_S

SUITE = "broker"
PUT_S = 0.04
PARTITIONS = 16
VALUES = [b"v" * 100] * 100
SETTINGS = {"one lane": 1, "a chain for each partition": 0}


def serve(parent: Connection, brokers: int, lanes: int) -> None:
    """In a process of its own: brokers over one slow store. Ends when the parent says so."""
    store = SlowStore(MemoryStore(), put=PUT_S)
    cluster: dict[str, Any] = {"heartbeat_interval": 0.5, "heartbeat_timeout": 60.0} if brokers > 1 else {}
    with ExitStack() as running:
        started = [
            running.enter_context(LocalBroker(store, node_id=n, lanes=lanes, **cluster))
            for n in range(1, brokers + 1)
        ]
        for broker in started:
            broker.until(lambda each=broker: len(each.server.broker.cluster.view.nodes) == brokers)  # type: ignore[misc]
            broker.until(lambda each=broker: each.server.broker.cluster.may_lead)  # type: ignore[misc]
        own_the_process()
        parent.send({broker.config.node_id: broker.port for broker in started})
        parent.recv()


@contextmanager
def served(brokers: int, lanes: int) -> Iterator[dict[int, int]]:
    """The ports, by the id of each broker."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, brokers, lanes))
    process.start()
    try:
        assert here.poll(60)
        yield here.recv()
        here.send("done")
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()


class Taken(NamedTuple):
    """Seconds of each round, and of each durable ack afterwards."""

    def add(self, more: Taken) -> None:
        self.rounds.extend(more.rounds)
        self.acks.extend(more.acks)

    def report(self, figures: Figures, name: str, target: float | None) -> None:
        p50 = percentile(self.rounds, 0.5)
        figures.add(SUITE, f"{name}, p50", p50 / PUT_S, "PUTs", target=target, lower_is_better=True)
        in_acks = p50 / percentile(self.acks, 0.5)
        figures.add(
            SUITE, f"{name}, p50, in durable acks", in_acks, "acks", target=target, lower_is_better=True
        )

    rounds: list[float]
    acks: list[float]


def rounds(ports: dict[int, int], count: int, *, across: bool) -> Taken:
    """The partition is one that another broker leads than the one that coordinates, or the same one."""
    with ExitStack() as open_wires:
        wires = {node: open_wires.enter_context(Wire(port)) for node, port in ports.items()}
        some = next(iter(wires.values()))
        make_topic(some, partitions=PARTITIONS)
        answer = some.ask(Api.FIND_COORDINATOR, 3, key="tx", key_type=1)
        while answer.error_code != Code.NONE:
            answer = some.ask(Api.FIND_COORDINATOR, 3, key="tx", key_type=1)
        coordinator = answer.node_id
        for wire in wires.values():
            topic = wire.ask(Api.METADATA, 9, topics=[{"name": "t"}]).topics[0]
        leaders = {each.partition_index: each.leader_id for each in topic.partitions}
        partition = next(p for p, leader in leaders.items() if (leader != coordinator) == across)
        producer = Transactor(wires[coordinator])
        while producer.init() is not Code.NONE:
            pass
        taken = Taken([], [])
        raw, _ = encode_batch([Record(value) for value in VALUES], now_ms=1, codec_id=0)
        for number in range(count + 3):
            began = time.perf_counter()
            producer.wire = wires[coordinator]
            assert producer.add("t", partition) is Code.NONE
            producer.wire = wires[leaders[partition]]
            assert producer.send(*VALUES, partition=partition) is Code.NONE
            producer.wire = wires[coordinator]
            assert producer.end() is Code.NONE
            if number >= 3:  # the first ones open logs, and write a snapshot
                taken.rounds.append(time.perf_counter() - began)
        for _ in range(count):
            began = time.perf_counter()
            assert wires[leaders[partition]].produce("t", raw, partition=partition).error_code == Code.NONE
            taken.acks.append(time.perf_counter() - began)
        return taken


def client_rounds(port: int, count: int) -> list[float]:
    """The same as an application sees it, through librdkafka."""
    options = {"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": "client", "linger.ms": 0}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions(PATIENCE_S)
    taken: list[float] = []
    for number in range(count + 3):
        began = time.perf_counter()
        producer.begin_transaction()
        for value in VALUES:
            producer.produce("t", value, partition=0)
        producer.commit_transaction(PATIENCE_S)
        if number >= 3:
            taken.append(time.perf_counter() - began)
    return taken


@pytest.mark.timeout(300)
def test_transactions_of_100_records_at_one_broker(figures: Figures, quick: bool) -> None:
    count, turns = (10, 2) if quick else (30, 3)
    taken = {name: Taken([], []) for name in SETTINGS}
    clients: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(turns):
        for name, lanes in SETTINGS.items():
            with served(1, lanes) as ports:
                taken[name].add(rounds(ports, count, across=False))
                clients[name] += client_rounds(next(iter(ports.values())), count)
    for name in SETTINGS:
        target = 2.2 if SETTINGS[name] else None
        taken[name].report(figures, f"a transaction of 100 records, {name}", target)
        figures.add(
            SUITE,
            f"a transaction of 100 records through librdkafka, {name}, p50",
            percentile(clients[name], 0.5) / PUT_S,
            "PUTs",
            lower_is_better=True,
        )


@pytest.mark.timeout(300)
def test_transactions_of_100_records_across_two_brokers(figures: Figures, quick: bool) -> None:
    count, turns = (10, 1) if quick else (30, 3)
    taken = {name: Taken([], []) for name in SETTINGS}
    for _ in range(turns):
        for name, lanes in SETTINGS.items():
            with served(2, lanes) as ports:
                taken[name].add(rounds(ports, count, across=True))
    for name in SETTINGS:
        taken[name].report(figures, f"a transaction of 100 records across two brokers, {name}", 4.2)
