"""B01: Kafka's own admin calls, through the real clients' admin interfaces and on the wire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import aiokafka.admin
import confluent_kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from broker_shim.partitions.shards import java_hash
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.engine.garbage.removal import is_removed
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.load import commit, committed
from tests.support.broker.steps import batch, make_topic, owned, read_all, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]


@pytest.fixture
def admin(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def wait(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(PATIENCE_S)


def test_B01_topics_are_created_described_grown_and_deleted(broker: LocalBroker, admin: AdminClient) -> None:
    wait(admin.create_topics([NewTopic("a", 3, 1), NewTopic("b", 1, 3)]))
    listed = admin.list_topics(timeout=PATIENCE_S).topics
    assert {name: len(topic.partitions) for name, topic in listed.items()} == {"a": 3, "b": 1}
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        wait(admin.create_topics([NewTopic("a", 3, 1)]))
    wait(admin.create_partitions([NewPartitions("b", 4)]))
    assert len(admin.list_topics(timeout=PATIENCE_S).topics["b"].partitions) == 4
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_PARTITIONS"):
        wait(admin.create_partitions([NewPartitions("b", 2)]))
    wait(admin.delete_topics(["a"]))
    assert set(admin.list_topics(timeout=PATIENCE_S).topics) == {"b"}
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_TOPIC"):
        wait(admin.delete_topics(["a"]))


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad/name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("t", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("t", 1, 1, config={"no.such": "1"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config={"cleanup.policy": "shrink"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
    ],
)
def test_B01_a_topic_that_cannot_be_is_refused_with_a_reason(
    admin: AdminClient, topic: NewTopic, code: str
) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match=code):
        wait(admin.create_topics([topic]))
    assert admin.list_topics(timeout=PATIENCE_S).topics == {}


def test_B01_a_deleted_topic_comes_back_empty(broker: LocalBroker, admin: AdminClient) -> None:
    Confluent().produce(broker.address, "again", [(b"k", b"old", [])])
    wait(admin.delete_topics(["again"]))
    Confluent().produce(broker.address, "again", [(b"k", b"new", [])])
    assert Confluent().consume(broker.address, "again", 1) == [(0, b"k", b"new", [])]


def test_B01_a_deletion_that_was_interrupted_is_finished_by_the_next_request(
    broker: LocalBroker, admin: AdminClient
) -> None:
    Confluent().produce(broker.address, "t", [(b"k", b"old", [])])
    store = broker.server.store
    chain = broker.log("t")._internal._chain
    store._catalog.delete("t")  # as far as another broker came
    assert not is_removed(chain)
    wait(admin.delete_topics(["t"]))
    assert is_removed(chain)
    assert store._catalog.unfinished() == []
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_TOPIC"):
        wait(admin.delete_topics(["t"]))


def test_B01_settings_take_effect(broker: LocalBroker, admin: AdminClient) -> None:
    wait(admin.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "86400000"})]))
    assert broker.server.store.topic("t").config.retention_seconds == 86_400
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("retention.bytes", "1000000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    Confluent().produce(broker.address, "t", [(b"k", b"it is open", [])])
    log = broker.server.store.topic("t").partition(0)
    wait(admin.incremental_alter_configs([change]))
    assert log._internal._settings.config.segment_bytes == 2_000_000, "without being opened again"
    config = broker.server.store.topic("t").config
    assert (config.retention_seconds, config.retention_bytes, config.segment_bytes) == (
        None,
        1_000_000,
        2_000_000,
    )
    shown = next(
        iter(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "t")]).values())
    ).result(PATIENCE_S)
    assert {name: shown[name].value for name in ("retention.ms", "retention.bytes", "cleanup.policy")} == {
        "retention.ms": "-1",
        "retention.bytes": "1000000",
        "cleanup.policy": "delete",
    }
    bad = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[ConfigEntry("flush.hours", "1", incremental_operation=AlterConfigOpType.SET)],
    )
    with pytest.raises(
        confluent_kafka.KafkaException, match=re.escape("Unknown topic config name: flush.hours")
    ):
        wait(admin.incremental_alter_configs([bad]))


def test_B01_the_old_alter_configs_resets_what_it_does_not_name(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)

        def alter(**configs: str) -> int:
            rows = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
            resource = {"resource_type": 2, "resource_name": "t", "configs": rows}
            answer = client.ask(Api.ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            return int(answer.responses[0].error_code)

        assert alter(retention_bytes="500", segment_bytes="1000") == Code.NONE
        assert alter(segment_bytes="2000") == Code.NONE
        config = broker.server.store.topic("t").config
        assert (config.retention_bytes, config.segment_bytes) == (None, 2000)


def test_B01_a_broker_describes_itself(broker: LocalBroker, admin: AdminClient) -> None:
    shown = next(
        iter(admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values())
    ).result(PATIENCE_S)
    assert shown["flush.on.ack"].value == "true"
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [(node.id, node.port) for node in cluster.nodes] == [(1, broker.port)]


def test_B01_delete_records_moves_the_beginning(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        for number in range(5):
            client.produce("t", batch(b"%d" % number))

        def delete(offset: int) -> tuple[int, int]:
            partitions = [{"partition_index": 0, "offset": offset}]
            answer = client.ask(Api.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": partitions}])
            found = answer.topics[0].partitions[0]
            return found.error_code, found.low_watermark

        assert delete(3) == (Code.NONE, 3)
        early = client.fetch("t", 0)
        assert (early.error_code, early.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, 3)
        assert values(client.fetch("t", 3))[0] == (3, b"3")
        partitions = [{"partition_index": 0, "timestamp": -2}]
        earliest = client.ask(Api.LIST_OFFSETS, 5, topics=[{"name": "t", "partitions": partitions}])
        assert earliest.topics[0].partitions[0].offset == 3
        assert delete(9) == (Code.OFFSET_OUT_OF_RANGE, -1)
        assert delete(-1) == (Code.NONE, 5)


def test_B01_groups_are_listed_described_and_deleted(broker: LocalBroker, admin: AdminClient) -> None:
    Confluent().produce(broker.address, "t", [(b"k", b"v", [])])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "client.id": "me",
        }
    )
    consumer.subscribe(["t"])
    assert consumer.consume(1, 20)
    consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
    assert described.state.name == "STABLE"
    assert [(m.client_id, m.assignment.topic_partitions[0].topic) for m in described.members] == [("me", "t")]
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        wait(admin.delete_consumer_groups(["g"]))
    consumer.close()
    assert [g.group_id for g in admin.list_consumer_groups().result(PATIENCE_S).valid] == ["g"]
    offsets = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions("g")])["g"]
    assert offsets.result(PATIENCE_S).topic_partitions[0].offset == 1
    wait(admin.delete_consumer_groups(["g"]))
    assert admin.list_consumer_groups().result(PATIENCE_S).valid == []
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        wait(admin.delete_consumer_groups(["g"]))


def test_B01_offsets_of_a_group_are_deleted_one_by_one(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, "g", 5) == Code.NONE
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = client.ask(Api.OFFSET_DELETE, 0, group_id="g", topics=topics)
        assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
        assert committed(client, "g") == -1


def test_B01_empty_groups_expire(start_broker: Start) -> None:
    broker = start_broker(offsets_retention=0.0)
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, "old", 5) == Code.NONE
        coordinator = broker.server.broker.coordinator
        later = coordinator.now_ms() + 10
        [shard] = coordinator.shards
        shard._now_ms = lambda: later
        broker.call(coordinator._expire)
        broker.until(lambda: not shard.offsets)
        assert committed(client, "old") == -1


def test_B01_the_admin_clients_of_the_others_work_too(broker: LocalBroker) -> None:
    old = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.address)
    old.create_topics([kafka.admin.NewTopic("k", 2, 1)])
    assert "k" in old.list_topics()
    old.close()

    async def newer() -> list[str]:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        try:
            await client.create_topics([aiokafka.admin.NewTopic("l", 1, 1)])
            return sorted(await client.list_topics())
        finally:
            await client.close()

    assert asyncio.run(newer()) == ["k", "l"]


@pytest.mark.parametrize("name", ["", ".", "..", "../t", "/t", "a/b", "a\0b", "x" * 250])
def test_L25_a_name_that_no_topic_can_have_is_refused_as_such_by_a_deletion_too(
    broker: LocalBroker, name: str
) -> None:
    with Wire(broker.port) as client:
        answer = client.ask(Api.DELETE_TOPICS, 5, topic_names=[name], timeout=10_000)
        assert answer.responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("setting", "largest"),
    [("retention.ms", 2**63 - 1), ("retention.bytes", 2**63 - 1), ("segment.bytes", 2**31 - 1)],
)
def test_B01_a_setting_is_shown_as_it_was_made_up_to_kafkas_largest(
    broker: LocalBroker, setting: str, largest: int
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)

        def change(value: int) -> int:
            configs = [{"name": setting, "config_operation": 0, "value": str(value)}]
            resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
            answer = client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            return int(answer.responses[0].error_code)

        def shown() -> str | None:
            resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": [setting]}
            answer = client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[resource])
            value: str | None = answer.results[0].configs[0].value
            return value

        assert (change(largest), shown()) == (Code.NONE, str(largest))
        for value in (largest + 1, 10**400):
            assert (change(value), shown()) == (Code.INVALID_CONFIG, str(largest))


def test_B01_auto_creation_can_be_turned_off(start_broker: Start) -> None:
    broker = start_broker(auto_create_topics=False)
    with Wire(broker.port) as client:
        answer = client.ask(Api.METADATA, 9, topics=[{"name": "nope"}], allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.server.store.topics() == []


def test_B01_clients_cannot_write_to_the_internal_topic(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        commit(client, "g", 1)
        answer = client.produce("__consumer_offsets", batch(b"forged"))
        assert answer.error_code == Code.INVALID_TOPIC_EXCEPTION


def test_B08_clients_cannot_delete_what_groups_are_made_of(start_broker: Start) -> None:
    """As in Kafka no records of the internal topic can be deleted; retention, which there leaves it alone, neither."""
    store = MemoryStore()
    internal = "__consumer_offsets"
    first = start_broker(store)
    with Wire(first.port) as client:
        make_topic(client)
        commit(client, "g", 1)
        index = java_hash("g") % first.config.offsets_partitions
        asked = [{"name": internal, "partitions": [{"partition_index": index, "offset": -1}]}]
        deleted = client.ask(Api.DELETE_RECORDS, 2, topics=asked, timeout=10_000).topics[0].partitions[0]
        assert deleted.error_code == Code.INVALID_TOPIC_EXCEPTION
        for api, operation in (
            (Api.ALTER_CONFIGS, {}),
            (Api.INCREMENTAL_ALTER_CONFIGS, {"config_operation": 0}),
        ):
            change = {"name": "retention.ms", "value": "1", **operation}
            resource = {"resource_type": 2, "resource_name": internal, "configs": [change]}
            altered = client.ask(api, 1, resources=[resource], validate_only=False)
            assert altered.responses[0].error_code == Code.INVALID_REQUEST
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        assert committed(client, "g") == 1


def epoch_end(client: Wire, epoch: int, partition: int = 0, current: int = -1) -> tuple[int, int, int]:
    """What a consumer that has this epoch is told: error, epoch, end offset."""
    asked = [{"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}]
    topics = [{"topic": "t", "partitions": asked}]
    answer = client.ask(Api.OFFSET_FOR_LEADER_EPOCH, 3, replica_id=-1, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("lanes", [0, 1])
@pytest.mark.parametrize("partitions", [1, 16])
def test_B09_a_consumer_of_any_epoch_may_go_on(start_broker: Start, partitions: int, lanes: int) -> None:
    """It was served with an older one, so its place may be behind where that ended. A smaller end is data loss to it."""
    store, last = MemoryStore(), partitions - 1
    for number in range(1, 4):
        broker = start_broker(store, node_id=number, lanes=lanes)
        with Wire(broker.port) as client:
            if number == 1:
                make_topic(client, partitions=partitions)
                assert epoch_end(client, 0, last) == (Code.NONE, 0, 0), "nobody has written"
            client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            for _ in range(number):
                client.produce("t", batch(b"a", b"b"), partition=last)
    with Wire(broker.port) as client:  # epoch 1: 0-1, epoch 2: 2-5, epoch 3: 6-11
        for epoch in range(4):
            assert epoch_end(client, epoch, last, current=3) == (Code.NONE, epoch, 12)
        for epoch in (-1, 4):
            assert epoch_end(client, epoch, last, current=3) == (Code.NONE, -1, -1), "there is none"
        assert epoch_end(client, 3, last, current=4) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
        for epoch in (-1, 0, 2, 3):
            found = client.fetch("t", 0, partition=last, leader_epoch=epoch)
            assert found.error_code == Code.NONE, "no log of ours truncates"
        found = client.fetch("t", 0, partition=last, leader_epoch=4)
        assert found.error_code == Code.UNKNOWN_LEADER_EPOCH


def test_B09_a_broker_that_does_not_write_looks_where_the_log_ends(start_broker: Start) -> None:
    store = MemoryStore()
    reader, writer = start_broker(store, node_id=1), start_broker(store, node_id=2)
    with Wire(reader.port) as client, Wire(writer.port) as producer:
        make_topic(client)
        assert epoch_end(client, 0) == (Code.NONE, 0, 0)
        producer.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.produce("t", batch(b"a", b"b"))
        assert epoch_end(client, 1) == (Code.NONE, 1, 2), "the place of a consumer that came from the writer"


def test_B01_a_group_lives_where_kafka_would_put_it() -> None:
    """The values are Java's own."""
    texts = ("", "a", "console-consumer", "grüße", "Hello World", "polygenelubricants", "😀")
    expected = [0, 97, 648006740, 98768023, 862545276, 0, 1772899]
    assert [java_hash(text) for text in texts] == expected


def test_B01_an_embedded_writer_is_followed_and_not_fenced(start_broker: Start) -> None:
    """A service appends with the library; a Kafka consumer reads through the broker; the service stays the writer."""
    import logstore

    store = MemoryStore()
    with logstore.open(store) as service:
        topic = service.create_topic("t")
        topic.append(b"one")
        broker = start_broker(store, follow_interval=0.01)
        with Wire(broker.port) as client:
            client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            assert values(client.fetch("t", 0)) == [(0, b"one")]
            waiting = client.send_fetch("t", 1, wait_ms=20_000)
            topic.append(b"two")
            assert values(client.fetched(11, waiting)) == [(1, b"two")]
            topic.append(b"three")  # and was not fenced
            assert client.fetch("t", 3).error_code == Code.NONE, "it is there, whatever was known before"
            assert client.fetch("t", 4000).error_code == Code.OFFSET_OUT_OF_RANGE
            topic.append(b"four")  # and was not fenced by somebody who has lost his way either
            assert values(client.fetch("t", 3, wait_ms=20_000)) == [(3, b"four")]


def test_B09_owned_means_no_request_while_idle(start_broker: Start) -> None:
    """Long polls on a partition that the broker owns cost the store nothing."""
    from logstore.testing import FaultyStore

    store = FaultyStore(MemoryStore(), seed=1)
    broker = start_broker(store, follow_interval=0.01)
    with Wire(broker.port) as client:
        owned(client, broker)
        client.fetch("t", 0)
        store.forget_calls()
        for _ in range(5):
            assert values(client.fetch("t", 1, wait_ms=30)) == []
        assert store.calls == []


def test_B01_changed_settings_reach_a_partition_that_is_being_written(start_broker: Start) -> None:
    """Producers do not notice: what was on its way is stored, and the next record goes to the log with the new settings."""
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce("t", batch(b"before")).base_offset == 0
        hosted = broker.server.broker.partitions.hosted("t", 0)
        assert hosted is not None
        resource = {
            "resource_type": 2,
            "resource_name": "t",
            "configs": [{"name": "retention.ms", "config_operation": 0, "value": "3600000"}],
        }
        answer = client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
        assert answer.responses[0].error_code == Code.NONE
        while (produced := client.produce("t", batch(b"after"))).error_code:
            assert produced.error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert hosted.log._internal.maintenance._retention._topic.retention_seconds == 3600
        assert read_all(client) == [(0, b"before"), (produced.base_offset, b"after")]
