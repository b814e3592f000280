"""Topics that the command line, a service or another broker changes while this broker knows them."""

from __future__ import annotations

import pytest

import logstore
from broker_shim import broker as broker_module
from broker_shim.partitions import partition_registry
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.layout.broker import NODE_PREFIX as NODES
from logstore.layout.paths import CATALOG_PREFIX
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, list_offset, make_topic, read_all


@pytest.fixture(autouse=True)
def never_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is old at once: as after the seconds that a broker believes it."""
    monkeypatch.setattr(partition_registry, "REFRESH_AFTER_S", 0.0)


def described(client: Wire, topic: str = "t") -> tuple[int, int]:
    """The code and the number of partitions that clients are told."""
    topics = [{"name": topic}]
    answer = client.ask(Api.METADATA, 4, topics=topics, allow_auto_topic_creation=False)
    return answer.topics[0].error_code, len(answer.topics[0].partitions or ())


def test_L25_a_topic_that_somebody_else_recreated_shows_no_old_record() -> None:
    objects = MemoryStore()
    with LocalBroker(objects) as broker, Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"old 0", b"old 1", b"old 2"))
        assert [value for _, value in read_all(client)] == [b"old 0", b"old 1", b"old 2"]
        with logstore.open(objects) as service:
            service.delete_topic("t")
            assert described(client)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
            service.create_topic("t").append(b"new")
        assert described(client) == (Code.NONE, 1)
        assert list_offset(client, -1) == 1
        assert read_all(client) == [(0, b"new")]


def test_B01_partitions_that_somebody_else_added_are_told_to_clients() -> None:
    objects = MemoryStore()
    with LocalBroker(objects) as broker, Wire(broker.port) as client:
        make_topic(client)
        assert described(client) == (Code.NONE, 1)
        with logstore.open(objects) as service:
            service.add_partitions("t", 3)
        assert described(client) == (Code.NONE, 3)


def test_L28_topics_are_described_from_memory_while_the_store_is_down() -> None:
    store = FaultyStore(MemoryStore(), seed=1)
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"here"))
        assert read_all(client) == [(0, b"here")]
        store.down()
        assert described(client) == (Code.NONE, 1)
        assert (list_offset(client, -1), read_all(client)) == (1, [(0, b"here")])
        store.heal()
        assert described(client) == (Code.NONE, 1)


def test_L28_a_listing_names_every_known_topic_while_the_store_is_down() -> None:
    """A consumer that subscribes by pattern asks for all topics, and gives up what is not in the answer."""
    store = FaultyStore(MemoryStore(), seed=1)

    def listed(client: Wire) -> list[tuple[str, int]]:
        answer = client.ask(Api.METADATA, 9, topics=None)
        return [(topic.name, topic.error_code) for topic in answer.topics]

    with LocalBroker(store) as broker, Wire(broker.port) as client:
        make_topic(client, "orders")
        make_topic(client, "payments")
        everything = [("orders", Code.NONE), ("payments", Code.NONE)]
        assert listed(client) == everything
        store.down()
        assert listed(client) == everything
        store.heal()
        store.fail("get", prefix=CATALOG_PREFIX)
        assert listed(client) == everything, "one request that fails hides no topic"


def test_L28_topics_are_described_from_memory_while_the_store_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_registry, "REFRESH_PATIENCE_S", 0.05)
    store = GatedStore(MemoryStore())
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"here"))
        with store.hold("get", prefix=CATALOG_PREFIX) as gate:
            assert described(client) == (Code.NONE, 1)
            assert gate.held, "the store was asked, and had not answered"
        broker.until(lambda: not gate.held)
        assert read_all(client) == [(0, b"here")]


def test_B09_a_partition_that_a_service_has_written_to_is_still_read_and_taken_back() -> None:
    """The broker owned it. Nobody else can lead it, so it goes on: it reads what the service wrote, and the next
    produce takes it back.
    """
    objects = MemoryStore()
    with LocalBroker(objects) as broker, Wire(broker.port) as client:
        make_topic(client)
        for number in range(3):
            offset = 2 * number
            broker.until(lambda: described_leader(broker) == broker.config.node_id)
            assert produced(client, b"broker %d" % number) == offset
            with logstore.open(objects) as service:
                assert service.topic("t").append(b"service %d" % number).offset == offset + 1
            assert client.produce("t", batch(b"refused")).error_code == Code.NOT_LEADER_OR_FOLLOWER
        broker.until(lambda: described_leader(broker) == broker.config.node_id)
        written = [value for _, value in read_all(client)]
        assert written == [b"%s %d" % (who, n) for n in range(3) for who in (b"broker", b"service")]


def test_B09_who_leads_is_found_out_when_the_store_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "LOOK_AGAIN_S", 0.01)
    objects = FaultyStore(MemoryStore(), seed=1)
    with LocalBroker(objects) as broker, Wire(broker.port) as client:
        make_topic(client)
        assert produced(client, b"first") == 0
        with logstore.open(objects) as service:
            service.topic("t").append(b"second")
        objects.fail("list", prefix=NODES, times=3)
        assert client.produce("t", batch(b"refused")).error_code == Code.NOT_LEADER_OR_FOLLOWER
        broker.until(lambda: described_leader(broker) == broker.config.node_id)
        assert produced(client, b"third") == 2


def described_leader(broker: LocalBroker) -> int:
    return broker.server.broker.cluster.leader("t", 0)


def produced(client: Wire, value: bytes) -> int:
    answer = client.produce("t", batch(value))
    assert answer.error_code == Code.NONE
    offset: int = answer.base_offset
    return offset


def test_B01_a_topic_created_while_topics_are_listed_is_listed_and_stays_in_use() -> None:
    store = GatedStore(MemoryStore())
    with LocalBroker(store) as broker, Wire(broker.port) as one, Wire(broker.port) as two:
        make_topic(one, "old")
        with store.hold("get", prefix=f"{CATALOG_PREFIX}old") as gate:
            listing = one.send(Api.METADATA, 4, messages.encode_request(Api.METADATA, 4, {"topics": None}))
            gate.wait_held()
            make_topic(two, "new")
            assert two.produce("new", batch(b"first")).error_code == Code.NONE
            in_use = broker.server.broker.partitions.hosted("new", 0)
            gate.open()
            answer = one.answer(Api.METADATA, 4, listing)
        assert {"old", "new"} <= {topic.name for topic in answer.topics}
        assert in_use is not None
        assert broker.server.broker.partitions.hosted("new", 0) is in_use
