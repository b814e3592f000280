"""B09: which epoch clients are told of a partition. Never none where there is a leader, and never a smaller one than before:
franz-go stays with a dead leader if the next one says −1, others if it says less than they know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_shim.partitions import leader_epochs
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.wrappers.metered import MeteredStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic

Start = Callable[..., LocalBroker]
CLUSTER: dict[str, Any] = {"heartbeat_interval": 0.05, "heartbeat_timeout": 60.0}


def told(client: Wire, topic: str = "t") -> list[tuple[int, int]]:
    """Leader and epoch of each partition."""
    [row] = client.ask(Api.METADATA, 9, topics=[{"name": topic}]).topics
    assert row.error_code == Code.NONE
    return [(each.leader_id, each.leader_epoch) for each in row.partitions]


def until_it_leads_among(broker: LocalBroker, count: int) -> None:
    cluster = broker.server.broker.cluster
    broker.until(lambda: len(cluster.view.nodes) == count and cluster.may_lead)


def requests(store: MeteredStore) -> int:
    return sum(each.requests for each in store.snapshot().values())


@pytest.mark.parametrize("lanes", [0, 1])
def test_B09_the_next_leader_says_the_epoch_before_it_has_opened_anything(
    start_broker: Start, lanes: int
) -> None:
    store = MemoryStore()
    first = start_broker(store, node_id=1, lanes=lanes)
    with Wire(first.port) as old:
        make_topic(old)
        assert told(old) == [(1, 0)], "nobody has written it yet"
        assert old.produce("t", batch(b"by one")).base_offset == 0
        [(_, epoch)] = told(old)
        assert epoch > 0
        second = start_broker(store, node_id=2, lanes=lanes)
        with Wire(second.port) as new:
            assert told(new) == [(2, epoch)]
            assert second.server.broker.partitions.hosted("t", 0) is None, "and opens nothing for that"
            assert old.produce("t", batch(b"still one")).error_code == Code.NONE, "and fences nobody"
            assert new.produce("t", batch(b"by two")).error_code == Code.NONE
            assert told(new) == [(2, epoch + 1)]


def test_B09_a_broker_that_does_not_lead_says_the_same_epoch_as_the_one_that_does(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whomever a client asks: one that says none, or less, keeps it from the leader that it names."""
    monkeypatch.setattr(leader_epochs, "FRESH_S", 0.0)
    store = MemoryStore()
    brokers = [start_broker(store, node_id=n, **CLUSTER) for n in (1, 2, 3)]
    for broker in brokers:
        until_it_leads_among(broker, 3)
    clients = {n: Wire(broker.port) for n, broker in enumerate(brokers, 1)}
    try:
        make_topic(clients[1], partitions=6)
        for index, (leader, _) in enumerate(told(clients[1])):
            told(clients[leader])
            assert clients[leader].produce("t", batch(b"v"), partition=index).error_code == Code.NONE
        first = told(clients[1])
        assert min(epoch for _, epoch in first) > 0
        assert len({leader for leader, _ in first}) > 1
        assert told(clients[2]) == told(clients[3]) == first
    finally:
        for client in clients.values():
            client.socket.close()


def test_B09_a_change_of_leaders_is_looked_at_at_once(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_epochs, "FRESH_S", 3600.0)
    store = MemoryStore()
    one = start_broker(store, node_id=1, **CLUSTER)
    with Wire(one.port) as first:
        make_topic(first)
        told(first)
        with LocalBroker(store, node_id=2, **CLUSTER) as two, Wire(two.port) as second:
            for broker in (one, two):
                until_it_leads_among(broker, 2)
            names = [f"n{n}" for n in range(20)]
            name = next(each for each in names if one.server.broker.cluster.leader(each, 0) == 2)
            make_topic(second, name)
            assert told(first, name) == [(2, 0)]
            assert second.produce(name, batch(b"by two")).error_code == Code.NONE
            [(_, epoch)] = told(second, name)
            assert epoch > 0
        one.until(lambda: len(one.server.broker.cluster.view.nodes) == 1)
        assert told(first, name) == [(1, epoch)], "what it saw before the change does not count"


def test_B09_the_epochs_of_a_lane_cost_as_much_as_one(start_broker: Start) -> None:
    store = MeteredStore(MemoryStore())
    with LocalBroker(store, node_id=1) as first, Wire(first.port) as old:
        make_topic(old, partitions=64)
        told(old)
        for index in range(64):
            assert old.produce("t", batch(b"v"), partition=index).error_code == Code.NONE
        known = told(old)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as new:
        before = requests(store)
        assert told(new) == [(2, epoch) for _, epoch in known]
        assert requests(store) - before < 40, "not one for each partition"
        before = requests(store)
        assert told(new) == [(2, epoch) for _, epoch in known]
        assert requests(store) == before, "it has just looked"


def test_B09_who_leads_is_told_while_the_store_does_not_answer(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_epochs, "PATIENCE_S", 0.0)
    monkeypatch.setattr(leader_epochs, "FRESH_S", 0.0)
    store = GatedStore(MemoryStore())
    with LocalBroker(store, node_id=1) as first, Wire(first.port) as old:
        make_topic(old)
        assert old.produce("t", batch(b"v")).error_code == Code.NONE
        [(_, epoch)] = told(old)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as new:
        second.run(second.server.broker.partitions.find("t"))
        with store.hold("*"):
            assert told(new) == [(2, -1)]
        while told(new) != [(2, epoch)]:
            pass
