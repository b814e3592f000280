"""B04 with racks (KIP-392): a consumer reads from a broker in its own zone, durable records, from the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from broker_shim.partitions.cluster import Cluster, Node, View
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.layout.broker import NODE_PREFIX
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
CLUSTER: dict[str, Any] = {
    "heartbeat_interval": 0.05,
    "heartbeat_timeout": 60.0,
    "follow_interval": 0.05,
    "offsets_partitions": 1,
}


def two_zones(start_broker: Start, **settings: Any) -> dict[int, LocalBroker]:
    """Brokers 1 and 2 in the zones `a` and `b`, who know each other."""
    store = MemoryStore()
    brokers = {
        number: start_broker(store, node_id=number, rack=rack, **CLUSTER, **settings)
        for number, rack in ((1, "a"), (2, "b"))
    }
    for each in brokers.values():
        cluster = each.server.broker.cluster
        each.until(lambda cluster=cluster: len(cluster.view.nodes) == 2 and cluster.may_lead)  # type: ignore[misc]
    return brokers


def led_by(broker: LocalBroker, partitions: int) -> dict[int, int]:
    cluster = broker.server.broker.cluster
    return {index: broker.call(lambda index=index: cluster.leader("t", index)) for index in range(partitions)}  # type: ignore[misc]


def fetch(client: Wire, partition: int, offset: int, rack: str, **options: Any) -> Any:
    row = {"partition": partition, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}
    request = {
        "max_wait": options.get("wait_ms", 0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "rack_id": rack,
        "isolation_level": options.get("isolation", 0),
        "topics": [{"topic": "t", "partitions": [{**row, "fetch_offset": offset}]}],
    }
    correlation = client.send(Api.FETCH, 12, messages.encode_request(Api.FETCH, 12, request))
    return client.answer(Api.FETCH, 12, correlation).responses[0].partitions[0]


def test_B04_a_leader_sends_consumers_to_their_zone_and_a_follower_serves_only_those(
    start_broker: Start,
) -> None:
    brokers = two_zones(start_broker)
    with Wire(brokers[1].port) as one, Wire(brokers[2].port) as two:
        wires = {1: one, 2: two}
        make_topic(one)
        [leader] = led_by(brokers[1], 1).values()
        follower = 3 - leader
        rack = {1: "a", 2: "b"}[follower]
        for wire in wires.values():
            rows = wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            assert {each.node_id: each.rack for each in rows.brokers} == {1: "a", 2: "b"}
            assert rows.topics[0].partitions[0].replica_nodes == [leader, follower]
        assert wires[leader].produce("t", batch(b"first")).error_code == Code.NONE
        sent = fetch(wires[leader], 0, 0, rack, wait_ms=600_000)
        assert (sent.preferred_read_replica, sent.error_code, values(sent)) == (follower, Code.NONE, [])
        at_home = fetch(wires[leader], 0, 0, {1: "a", 2: "b"}[leader])
        assert (at_home.preferred_read_replica, values(at_home)) == (-1, [(0, b"first")])
        elsewhere = fetch(wires[leader], 0, 0, "a zone without a broker")
        assert (elsewhere.preferred_read_replica, values(elsewhere)) == (-1, [(0, b"first")])
        assert values(fetch(wires[follower], 0, 0, rack, wait_ms=20_000)) == [(0, b"first")]
        for nobody in ("", "elsewhere"):
            assert fetch(wires[follower], 0, 0, nobody).error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert fetch(wires[follower], 0, 99, rack, wait_ms=20_000).error_code == Code.OFFSET_NOT_AVAILABLE
        assert wires[leader].produce("t", batch(b"second")).error_code == Code.NONE
        assert values(fetch(wires[follower], 0, 1, rack, wait_ms=20_000)) == [(1, b"second")]
        assert wires[leader].produce("t", batch(b"third")).base_offset == 2, "and nobody was fenced"


def test_B04_what_is_not_durable_is_read_from_the_leader(start_broker: Start) -> None:
    brokers = two_zones(start_broker, flush_on_ack=False, flush_interval=3600.0)
    with Wire(brokers[1].port) as one, Wire(brokers[2].port) as two:
        make_topic(one)
        [leader] = led_by(brokers[1], 1).values()
        wire, rack = (one, "b") if leader == 1 else (two, "a")
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert wire.produce("t", batch(b"stored")).error_code == Code.NONE
        brokers[leader].log("t").flush(PATIENCE_S)
        assert wire.produce("t", batch(b"buffered", b"too")).error_code == Code.NONE
        assert fetch(wire, 0, 0, rack).preferred_read_replica == 3 - leader
        ahead = fetch(wire, 0, 2, rack)
        assert (ahead.preferred_read_replica, values(ahead)) == (-1, [(1, b"buffered"), (2, b"too")])


def test_B04_librdkafka_reads_from_its_zone(start_broker: Start) -> None:
    """Of eight partitions some are led in the other zone: that broker sends no record."""
    brokers = two_zones(start_broker)
    with Wire(brokers[1].port) as one, Wire(brokers[2].port) as two:
        make_topic(one, partitions=8)
        two.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        leaders = led_by(brokers[1], 8)
        assert set(leaders.values()) == {1, 2}
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": brokers[1].address,
                "group.id": "g",
                "client.rack": "b",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition("t", index, 0) for index in range(8)])
            found: list[tuple[int, bytes]] = []
            for value in (b"first", b"second"):
                for index, leader in leaders.items():
                    wire = one if leader == 1 else two
                    assert wire.produce("t", batch(value), partition=index).error_code == Code.NONE
                deadline = time.monotonic() + PATIENCE_S
                while len(found) % 8 or not found or found[-1][1] != value:
                    assert time.monotonic() < deadline, found
                    message = consumer.poll(0.1)
                    if message is not None:
                        assert message.error() is None
                        found.append((message.partition(), message.value()))
            assert sorted(found) == sorted((i, v) for i in range(8) for v in (b"first", b"second"))
            assert brokers[1].server.broker.counters.bytes_out == 0
            assert brokers[2].server.broker.counters.bytes_out > 0
        finally:
            consumer.close()


@pytest.mark.parametrize("several", [True, False])
def test_B04_racks_count_among_several_brokers_only(several: bool) -> None:
    me = Node(1, "here", 1, "life", 0, "a")
    other = Node(2, "there", 2, "life", 0, "b")
    cluster = Cluster(
        MemoryStore(), me, interval_s=1.0 if several else 0.0, timeout_s=60.0, monotonic=lambda: 0.0
    )
    cluster.adopt(View({1: me, 2: other}))
    assert cluster.nearest("b", "t", 0) == (2 if several else None)
    assert cluster.nearest("c", "t", 0) is None
    assert cluster.may_follow("a") == several
    assert cluster.replicas(1) == ([1, 2] if several else [1])


def test_B04_a_broker_without_a_rack_says_nothing_that_an_older_one_would_not_understand() -> None:
    store = MemoryStore()
    for rack, has_rack in (("", False), ("a", True)):
        node = Node(1, "here", 1, "life", 0, rack)
        Cluster(store, node, interval_s=1.0, timeout_s=60.0, monotonic=lambda: 0.0).register()
        [key] = [info.key for info in store.list(NODE_PREFIX)]
        assert (b"rack" in store.get(key)) == has_rack
