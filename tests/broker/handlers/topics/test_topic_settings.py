"""B16: topic settings as Kafka's users write them: accepted, kept, described as they were set, with effect where they can
have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic

import logstore
from broker_shim.handlers.topics import topic_configs
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import LOG_APPEND_TIME, split
from logstore.format.batches.codecs import CODEC_IDS
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.clients import AioKafka, Client, Confluent, KafkaPython, Sent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, read_all
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]

CUSTOMARY = {
    "cleanup.policy": "delete",
    "compression.type": "zstd",
    "delete.retention.ms": "3600000",
    "file.delete.delay.ms": "1000",
    "flush.messages": "10000",
    "flush.ms": "1000",
    "index.interval.bytes": "8192",
    "max.compaction.lag.ms": "604800000",
    "max.message.bytes": "5242880",
    "message.timestamp.difference.max.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "60000",
    "min.insync.replicas": "2",
    "preallocate": "true",
    "retention.bytes": "1073741824",
    "retention.ms": "0",
    "segment.bytes": "1073741824",
    "segment.jitter.ms": "100",
    "segment.ms": "3600000",
    "unclean.leader.election.enable": "true",
}
"""What Terraform, Strimzi, Spring and Connect write into topics."""


def admin_of(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def make(broker: LocalBroker, name: str = "t", **settings: str) -> None:
    config = {setting.replace("_", "."): value for setting, value in settings.items()}
    admin = admin_of(broker)
    admin.create_topics([NewTopic(name, 1, 3, config=config)])[name].result(PATIENCE_S)


def described(broker: LocalBroker, name: str = "t", kind: Any = ConfigResource.Type.TOPIC) -> dict[str, Any]:
    admin = admin_of(broker)  # held on to: its futures end with it
    [future] = admin.describe_configs([ConfigResource(kind, name)]).values()
    shown: dict[str, Any] = future.result(PATIENCE_S)
    return shown


def alter(
    client: Wire, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str]:
    rows = [{"name": name, "config_operation": how, "value": value} for name, how, value in changes]
    resource = {"resource_type": 2, "resource_name": "t", "configs": rows}
    answer = client.ask(
        Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    ).responses[0]
    return answer.error_code, answer.error_message or ""


def describe(client: Wire) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    answer = client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True).results[0]
    assert answer.error_code == Code.NONE
    for row in answer.configs:
        assert (row.synonyms[0].value, row.synonyms[0].source) == (row.value, row.config_source)
    return {row.name: (row.value, row.config_source) for row in answer.configs}


# ── kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_B16_what_users_write_is_accepted_and_described_as_it_was_set(start_broker: Start) -> None:
    store = MemoryStore()
    admin = admin_of(first := start_broker(store))
    admin.create_topics([NewTopic("t", 1, 3, config=CUSTOMARY)])["t"].result(PATIENCE_S)
    for broker in (first, start_broker(store, node_id=2)):  # a second one has it from the store
        shown = described(broker)
        assert {name: shown[name].value for name in CUSTOMARY} == CUSTOMARY
        sources = {shown[name].source for name in CUSTOMARY}
        assert sources == {ConfigSource.DYNAMIC_TOPIC_CONFIG.value}


def test_B16_what_is_described_can_be_set_again_and_nothing_changes(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert alter(client, *((name, 0, value) for name, value in CUSTOMARY.items()))[0] == Code.NONE
        before, config = describe(client), broker.server.store.topic("t").config
        assert alter(client, *((name, 0, value) for name, (value, _) in before.items())) == (Code.NONE, "")
        again = describe(client)
        assert {name: value for name, (value, _) in again.items()} == {n: v for n, (v, _) in before.items()}
        rows = [{"name": name, "value": value} for name, (value, _) in before.items()]
        resource = {"resource_type": 2, "resource_name": "t", "configs": rows}
        answer = client.ask(Api.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
        assert (answer.responses[0].error_code, answer.responses[0].error_message) == (Code.NONE, None)
        assert describe(client) == again
        assert broker.server.store.topic("t").config == config


def test_B16_every_default_may_be_set(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        config = broker.server.store.topic("t").config
        defaults = describe(client)
        assert {source for _, source in defaults.values()} == {topic_configs.SOURCE_DEFAULT}
        assert alter(client, *((name, 0, value) for name, (value, _) in defaults.items())) == (Code.NONE, "")
        assert {source for _, source in describe(client).values()} == {topic_configs.SOURCE_TOPIC}
        assert broker.server.store.topic("t").config == config
        assert alter(client, *((name, 1, None) for name in defaults)) == (Code.NONE, "")
        assert describe(client) == defaults


def test_B16_the_old_call_takes_back_what_it_does_not_name(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        alter(client, ("retention.ms", 0, "1000"), ("min.insync.replicas", 0, "2"))
        rows = [{"name": "min.insync.replicas", "value": "3"}]
        resource = {"resource_type": 2, "resource_name": "t", "configs": rows}
        client.ask(Api.ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        shown = describe(client)
        assert shown["min.insync.replicas"] == ("3", topic_configs.SOURCE_TOPIC)
        assert shown["retention.ms"] == ("-1", topic_configs.SOURCE_DEFAULT)


def test_B16_what_the_library_alters_is_described_and_survives_a_clients_change(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        alter(client, ("retention.ms", 0, "1000"), ("segment.bytes", 0, "1073741824"))
        store = broker.server.store
        assert store.topic("t").config == logstore.TopicConfig(1.0, None, topic_configs.SEGMENT_BYTES_MAX)
        store.alter_topic("t", retention_seconds=60, retention_bytes=5)
        shown = describe(client)
        assert (shown["retention.ms"][0], shown["retention.bytes"][0]) == ("60000", "5")
        assert shown["segment.bytes"][0] == "1073741824", "what was not altered is as it was set"
        assert alter(client, ("flush.ms", 0, "7")) == (Code.NONE, "")
        assert store.topic("t").config == logstore.TopicConfig(60.0, 5, topic_configs.SEGMENT_BYTES_MAX)
        store.alter_topic("t", retention_seconds=None)
        assert describe(client)["retention.ms"] == ("-1", topic_configs.SOURCE_DEFAULT)


def test_B16_nothing_of_a_compacted_topic_expires(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        alter(client, ("cleanup.policy", 0, "compact"), ("retention.ms", 0, "1"), ("retention.bytes", 0, "1"))
        store = broker.server.store
        config = store.topic("t").config
        assert (config.retention_seconds, config.retention_bytes) == (None, None)
        shown = describe(client)
        assert (shown["cleanup.policy"][0], shown["retention.ms"][0]) == ("compact", "1")
        assert alter(client, ("cleanup.policy", 2, "delete")) == (Code.NONE, "")
        assert describe(client)["cleanup.policy"][0] == "compact,delete"
        config = store.topic("t").config
        assert (config.retention_seconds, config.retention_bytes) == (0.001, 1)
        assert alter(client, ("cleanup.policy", 3, "delete")) == (Code.NONE, "")
        assert describe(client)["cleanup.policy"][0] == "compact"


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("min.insync.replica", "2", "Unknown topic config name"),
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", str(2**63), "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("max.message.bytes", str(2**31), "Not a number of type INT"),
        ("segment.bytes", "0", "at least 14"),
        ("segment.ms", "0", "at least 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("cleanup.policy", "compact,shrink", "one of: compact, delete"),
        ("compression.type", "brotli", "one of: uncompressed"),
        ("compression.gzip.level", "0", "equal to -1"),
        ("message.timestamp.type", "Now", "one of: CreateTime"),
        ("preallocate", "maybe", "true or false"),
        ("remote.storage.enable", "true", "one of: false"),
        ("flush.ms", None, "Null value"),
    ],
)
def test_B16_what_kafka_refuses_is_refused_with_a_reason_and_changes_nothing(
    broker: LocalBroker, name: str, value: str | None, why: str
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        before = describe(client)
        code, message = alter(client, ("flush.messages", 0, "5"), (name, 0, value))
        assert code == (Code.INVALID_REQUEST if value is None else Code.INVALID_CONFIG)
        assert why in message
        assert name in message
        assert describe(client) == before
        configs = [{"name": name, "value": value}]
        topic = {"name": "other", "num_partitions": 1, "replication_factor": 1, "configs": configs}
        made = client.ask(Api.CREATE_TOPICS, 5, topics=[topic], timeout=10_000).topics[0]
        assert (made.error_code, why in made.error_message) == (Code.INVALID_CONFIG, True)
        assert broker.server.store.topics() == ["t"]


def test_B16_lists_grow_and_shrink_and_nothing_else_does(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert alter(client, ("flush.ms", 2, "1")) == (
            Code.INVALID_CONFIG,
            "Can't APPEND to key flush.ms because its type is not LIST.",
        )
        assert alter(client, ("flush.ms", 0, "1"), ("flush.ms", 0, "2"))[0] == Code.INVALID_REQUEST
        assert alter(client, ("cleanup.policy", 2, "compact"), validate_only=True) == (Code.NONE, "")
        assert describe(client)["cleanup.policy"][0] == "delete"


# ── with effect ──────────────────────────────────────────────────────────────────────────────────────────────


def test_B16_a_topic_has_its_own_limit_on_messages(start_broker: Start) -> None:
    broker = start_broker(max_message_bytes=10_000)
    with Wire(broker.port) as client:
        make_topic(client)
        large, small = batch(b"x" * 20_000), batch(b"x" * 500)
        assert client.produce("t", large).error_code == Code.MESSAGE_TOO_LARGE
        assert describe(client)["max.message.bytes"] == ("10000", topic_configs.SOURCE_FLAG)
        alter(client, ("max.message.bytes", 0, "30000"))
        assert client.produce("t", large).error_code == Code.NONE, "the partition is not opened again for it"
        alter(client, ("max.message.bytes", 0, "100"))
        assert client.produce("t", small).error_code == Code.MESSAGE_TOO_LARGE
        alter(client, ("max.message.bytes", 1, None))
        assert client.produce("t", small).error_code == Code.NONE
        assert [len(value or b"") for _, value in read_all(client)] == [20_000, 500]


def test_B16_a_message_of_several_megabytes_goes_where_its_topic_allows_it(broker: LocalBroker) -> None:
    make(broker, max_message_bytes="5242880")
    large = bytes(4 << 20)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "message.max.bytes": 5 << 20, "log_level": 0}
    )
    outcome: list[object] = []
    for topic in ("t", "small"):
        producer.produce(topic, large, on_delivery=lambda error, _: outcome.append(error and error.name()))
        assert producer.flush(PATIENCE_S) == 0
    assert outcome == [None, "MSG_SIZE_TOO_LARGE"]
    [(_, _, found, _)] = Confluent().consume(broker.address, "t", 1)
    assert found == large


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_B16_batches_are_compressed_as_their_topic_says_and_read_by_every_client(
    broker: LocalBroker, wanted: str
) -> None:
    make(broker, compression_type=wanted)
    sent: list[Sent] = [
        (b"k", b"again and again " * 50, [("h", b"v")]),
        (None, b"short", []),
        (b"k", None, []),
    ]
    Confluent().produce(broker.address, "t", sent, compression_type="gzip", enable_idempotence=True)
    Confluent().produce(broker.address, "t", sent, enable_idempotence=True)
    raw = b"".join(bytes(part) for part in broker.log("t").read(0, 1 << 20).parts)
    codec = CODEC_IDS["none" if wanted == "uncompressed" else wanted]
    assert {info.codec_id for info in split(raw)} == {codec}
    assert {info.producer_id >= 0 for info in split(raw)} == {True}
    expected = [(offset, *record) for offset, record in enumerate(sent * 2)]
    readers: list[Client] = [Confluent(), KafkaPython(), AioKafka()]
    for reader in readers:
        assert reader.consume(broker.address, "t", 6, group_id=reader.name) == expected


def test_B16_a_large_batch_is_compressed_apart_and_a_damaged_one_is_not_blessed(broker: LocalBroker) -> None:
    make(broker, compression_type="zstd")
    with Wire(broker.port) as client:
        large = batch(*(b"the same thing %d" % (number % 7) for number in range(8000)))
        damaged = bytearray(large)
        damaged[-3] ^= 1
        assert client.produce("t", bytes(damaged)).error_code == Code.CORRUPT_MESSAGE
        assert client.produce("t", large).error_code == Code.NONE
        [info] = split(b"".join(bytes(part) for part in broker.log("t").read(0, 1 << 20).parts))
        assert (info.codec_id, info.size < len(large) // 5) == (CODEC_IDS["zstd"], True)
        assert len(read_all(client)) == 8000


def test_B16_what_is_too_large_once_its_topic_has_unpacked_it_is_refused(broker: LocalBroker) -> None:
    make(broker, compression_type="uncompressed", max_message_bytes="50000")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        Confluent().produce(broker.address, "t", [(None, b"x" * 60_000, [])], compression_type="zstd")
    assert broker.log("t").buffered_high_watermark == 0


def test_B16_records_get_the_time_of_their_append(broker: LocalBroker) -> None:
    make(broker, message_timestamp_type="LogAppendTime")
    began = int(time.time() * 1000)
    with Wire(broker.port) as client:
        answer = client.produce("t", batch(b"a", b"b", timestamp_ms=1_000))
        ended = int(time.time() * 1000)
        assert began <= answer.log_append_time <= ended
        found = client.fetch("t", 0)
        [info] = split(bytes(found.records))
        assert (info.attributes & LOG_APPEND_TIME, info.max_timestamp_ms) == (
            LOG_APPEND_TIME,
            answer.log_append_time,
        )
    stamp = answer.log_append_time
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    read = consumer.consume(2, PATIENCE_S)
    consumer.close()
    assert [message.timestamp() for message in read] == [
        (confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, stamp)
    ] * 2
    other = kafka.KafkaConsumer("t", bootstrap_servers=broker.address, auto_offset_reset="earliest")
    [messages] = other.poll(timeout_ms=int(PATIENCE_S * 1000)).values()
    other.close()
    assert [(each.timestamp_type, each.timestamp) for each in messages] == [(1, stamp)] * len(messages)
    log = broker.log("t")
    assert [record.timestamp_ms for record in log.records()] == [stamp] * 2
    assert (log.offset_for_timestamp(began - 1), log.offset_for_timestamp(stamp + 1)) == (0, None)


def test_B16_the_producers_time_counts_again_when_its_topic_says_so(broker: LocalBroker) -> None:
    make(broker, message_timestamp_type="LogAppendTime")
    with Wire(broker.port) as client:
        assert client.produce("t", batch(b"a", timestamp_ms=1_000)).log_append_time > 1_000
        alter(client, ("message.timestamp.type", 1, None))
        assert client.produce("t", batch(b"b", timestamp_ms=1_000)).log_append_time == -1
        assert [record.timestamp_ms for record in broker.log("t").records()][1] == 1_000


def test_C07_what_a_later_release_has_set_stops_nobody(broker: LocalBroker) -> None:
    store = broker.server.store
    later = {"compression.type": "brotli", "max.message.bytes": "plenty", "new.setting": "1"}
    store._create_topic_of_kafka("t", 1, later, {})
    with Wire(broker.port) as client:
        assert client.produce("t", batch(b"a")).error_code == Code.NONE
        shown = describe(client)
        assert shown["compression.type"][0] == "brotli"
        assert alter(client, ("flush.ms", 0, "7")) == (Code.NONE, "")
        assert dict(store.topic("t")._internal.descriptor.kafka) == {**later, "flush.ms": "7"}


# ── the broker's own ─────────────────────────────────────────────────────────────────────────────────────────


def test_B16_a_broker_says_what_tools_ask_it_for(start_broker: Start) -> None:
    broker = start_broker(num_partitions=3, store="s3://key:secret@bucket/prefix?endpoint=x")
    shown = described(broker, "1", ConfigResource.Type.BROKER)
    expected = {
        "advertised.listeners": f"PLAINTEXT://{broker.address}",
        "auto.create.topics.enable": "true",
        "broker.id": "1",
        "default.replication.factor": "1",
        "delete.topic.enable": "true",
        "log.dirs": "s3://bucket/prefix",
        "log.retention.ms": "-1",
        "message.max.bytes": str(broker.config.max_message_bytes),
        "num.partitions": "3",
    }
    assert {name: shown[name].value for name in expected} == expected
    assert all(entry.is_read_only for entry in shown.values())
    assert shown["num.partitions"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert shown["default.replication.factor"].source == ConfigSource.DEFAULT_CONFIG.value
    with Wire(broker.port) as client:
        resource = {"resource_type": 4, "resource_name": "7", "configuration_keys": None}
        answer = client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[resource]).results[0]
        assert (answer.error_code, "expected 1" in answer.error_message) == (Code.INVALID_REQUEST, True)


def test_B14_a_transactions_batches_are_rewritten_as_its_topic_says_and_stay_its_own(
    broker: LocalBroker,
) -> None:
    make(broker, compression_type="zstd", message_timestamp_type="LogAppendTime")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": "x", "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    for value, ends in ((b"aborted", producer.abort_transaction), (b"kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("t", value * 100)
        producer.flush(PATIENCE_S)
        ends(PATIENCE_S)
    raw = b"".join(bytes(part) for part in broker.log("t").read(0, 1 << 20).parts)
    written = [info for info in split(raw) if not info.is_control]
    assert {(info.codec_id, info.is_transactional) for info in written} == {(CODEC_IDS["zstd"], True)}
    [(_, _, found, _)] = Confluent().consume(broker.address, "t", 1)
    assert found == b"kept" * 100
