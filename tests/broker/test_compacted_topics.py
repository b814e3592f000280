"""B13: compacted topics through the broker: what clients set, what is refused, and a table that is restored from one."""

from __future__ import annotations

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.codecs import CODEC_NAMES
from logstore.format.batches.record import Record
from tests.support.broker.clients import CLIENTS, Client, Sent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.patience import PATIENCE_S

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def make(broker: LocalBroker, name: str, **config: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.address})
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(PATIENCE_S)
    return admin


def updates(keys: int, turns: int) -> list[Sent]:
    sent: list[Sent] = [
        (b"key-%d" % key, b"%d" % turn * 20, [("turn", b"%d" % turn)])
        for turn in range(turns)
        for key in range(keys)
    ]
    return [*sent, (b"key-0", None, []), (b"end", b"end", [])]


def compact(broker: LocalBroker, topic: str) -> int:
    """As `logstore compact` would, beside the broker. Returns how many records are gone."""
    log = broker.server.store.topic(topic).partition(0)._internal
    gone = int(log.maintenance.clean(log.now_ms).records)
    log.state.replace_view(log._chain.load())
    return gone


def nothing_is_open(broker: LocalBroker, topic: str) -> bool:
    """Whether every marker stands: they may come after the producer's answer. On the broker's loop."""
    hosted = broker.server.broker.partitions.get(topic, 0)
    stable = None if isinstance(hosted, Code) else hosted.stable()
    return stable is not None and not stable.transactions.open


def test_B13_the_policy_is_accepted_described_and_takes_effect(broker: LocalBroker) -> None:
    admin = make(
        broker, "t", cleanup_policy="compact", delete_retention_ms="5000", min_cleanable_dirty_ratio="0.1"
    )
    config = broker.server.store.topic("t").config
    assert (config.compact, config.tombstone_seconds, config.dirty_ratio) == (True, 5.0, 0.1)
    resource = ConfigResource(ResourceType.TOPIC, "t")
    shown = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert shown["cleanup.policy"].value == "compact"
    assert shown["delete.retention.ms"].value == "5000"
    make(broker, "both", cleanup_policy="compact,delete", retention_ms="1000", max_compaction_lag_ms="7000")
    config = broker.server.store.topic("both").config
    assert (config.compact, config.retention_seconds, config.compact_within_seconds) == (True, 1.0, 7.0)
    broker.server.store.alter_topic("t", compact=False)
    shown = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert shown["cleanup.policy"].value == "delete"


def test_B13_a_record_without_a_key_is_refused_as_kafka_does(broker: LocalBroker) -> None:
    make(broker, "t", cleanup_policy="compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
    errors: list[confluent_kafka.KafkaError | None] = []
    producer.produce("t", b"no key", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0] is not None
    assert errors[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    producer.produce("t", b"fine", b"key", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[1] is None


@pytest.mark.parametrize("version", [7, 8, 9, 11])
def test_B13_the_answer_names_the_records_without_a_key(broker: LocalBroker, version: int) -> None:
    """`record_errors` of Produce 8 (KIP-467): the client can tell its user which of the batch it was."""
    make(broker, "t", cleanup_policy="compact")
    records = [Record(b"v", b"k"), Record(b"no key"), Record(b"v", b"l"), Record(b"nor here")]
    with Wire(broker.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        answer = client.produce("t", encode_batch(records, now_ms=1, codec_id=0)[0], version=version)
        assert answer.error_code == Code.INVALID_RECORD
        if version >= 8:
            assert [each.batch_index for each in answer.record_errors] == [1, 3]
            assert {each.batch_index_error_message for each in answer.record_errors} == {answer.error_message}
            assert "without a key" in answer.error_message
        fine = client.produce("t", encode_batch(records[:1], now_ms=1, codec_id=0)[0], version=version)
        assert (fine.error_code, fine.base_offset) == (Code.NONE, 0)


def test_B13_librdkafka_fails_the_records_without_a_key_by_that_error(broker: LocalBroker) -> None:
    """One batch: those that are named failed by themselves, the others because of them, as with Kafka. (Of one record that
    is named alone librdkafka takes the batch's error for all.)"""
    make(broker, "t", cleanup_policy="compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 200})
    codes: dict[bytes, int] = {}

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        codes[message.value() or b""] = 0 if error is None else error.code()

    producer.produce("t", b"keyed", b"key", on_delivery=delivered)
    producer.produce("t", b"not", on_delivery=delivered)
    producer.produce("t", b"nor this", on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    wrong = confluent_kafka.KafkaError.INVALID_RECORD
    different = confluent_kafka.KafkaError._INVALID_DIFFERENT_RECORD
    assert codes == {b"keyed": different, b"not": wrong, b"nor this": wrong}


@each_client
def test_B13_a_client_restores_a_table(broker: LocalBroker, client: Client) -> None:
    """Each record that is left, at its offset: also where a batch has lost some, or all, of its records."""
    make(broker, "table", cleanup_policy="compact")
    sent = updates(20, 30)
    for begin in range(0, len(sent), 50):
        client.produce(broker.address, "table", sent[begin : begin + 50])
    gone = compact(broker, "table")
    assert gone > len(sent) // 2
    found = client.consume(broker.address, "table", len(sent) - gone)
    assert [(key, value) for _, key, value, _ in found] == [sent[offset][:2] for offset, *_ in found]
    table = {key: value for _, key, value, _ in found}
    assert table == {key: value for key, value, _ in sent}
    assert found[-1][0] == len(sent) - 1


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_B13_librdkafka_reads_what_is_left_in_every_codec(broker: LocalBroker, codec: str) -> None:
    make(broker, "table", cleanup_policy="compact")
    client, sent = CLIENTS[0], updates(10, 20)
    for begin in range(0, len(sent), 40):
        client.produce(broker.address, "table", sent[begin : begin + 40], compression_type=codec)
    gone = compact(broker, "table")
    found = client.consume(broker.address, "table", len(sent) - gone)
    assert [(key, value, headers) for _, key, value, headers in found] == [
        sent[offset] for offset, *_ in found
    ]


def test_B13_a_consumer_in_the_middle_goes_on_behind_the_gap(broker: LocalBroker) -> None:
    make(broker, "t", cleanup_policy="compact")
    sent: list[Sent] = [(b"a", b"%d" % n, []) for n in range(30)]
    for one in sent:
        CLIENTS[0].produce(broker.address, "t", [one])
    options = {"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "error"}
    consumer = confluent_kafka.Consumer(options)
    try:
        compact(broker, "t")
        left = [record.offset for record in broker.server.store.topic("t").partition(0).records()]
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 7)])
        message, deadline = None, time.monotonic() + PATIENCE_S
        while message is None and time.monotonic() < deadline:
            message = consumer.poll(0.2)
        assert message is not None
        assert message.error() is None
        assert message.offset() == left[0]
        assert message.offset() > 7
    finally:
        consumer.close()


def test_B13_an_idempotent_producer_goes_on_after_a_restart(broker: LocalBroker) -> None:
    """Its batches are compacted away; its numbers are not forgotten."""
    make(broker, "t", cleanup_policy="compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    errors: list[object] = []
    for turn in range(3):
        for n in range(10):
            producer.produce("t", b"%d" % n, b"a", on_delivery=lambda error, message: errors.append(error))
            assert producer.flush(PATIENCE_S) == 0
        if turn == 1:
            CLIENTS[1].produce(broker.address, "t", [(b"a", b"x", []), (b"b", b"x", [])])
            assert compact(broker, "t")
    assert set(errors) == {None}


@each_client
def test_B13_a_table_of_transactions_is_restored(broker: LocalBroker, client: Client) -> None:
    """Two producers, one of which aborts half of what it does; compaction in between, and in the end. Each consumer that
    reads committed records gets the table; nothing of what was aborted is stored any more; both producers go on."""
    make(broker, "table", cleanup_policy="compact", segment_bytes="16384")
    options = {"bootstrap.servers": broker.address, "log_level": 0}
    producers = [confluent_kafka.Producer({**options, "transactional.id": f"p{n}"}) for n in range(2)]
    for producer in producers:
        producer.init_transactions(PATIENCE_S)
    table: dict[bytes, bytes | None] = {}
    gone = 0
    for turn in range(24):
        n = turn % 2
        producers[n].begin_transaction()
        written: dict[bytes, bytes | None] = {}
        for key in range(5):
            value = None if turn % 7 == key else b"%d-%d" % (turn, key) * 5
            written[b"key-%d" % key] = value
            producers[n].produce("table", value, b"key-%d" % key)
        assert producers[n].flush(PATIENCE_S) == 0
        if n and turn % 4 == 1:
            producers[n].abort_transaction(PATIENCE_S)
        else:
            producers[n].commit_transaction(PATIENCE_S)
            table |= written
        if turn in (9, 16):
            gone += compact(broker, "table")
    client.produce(broker.address, "table", [(b"end", b"end", [])])
    broker.until(lambda: nothing_is_open(broker, "table"))
    gone += compact(broker, "table")
    left = list(broker.server.store.topic("table").partition(0).records())
    assert len(left) == 24 * 5 + 1 - gone <= 3 * 5 + 1, "what was aborted and what was replaced is gone"
    found = client.consume(broker.address, "table", len(left), isolation_level="read_committed")
    assert {key: value for _, key, value, _ in found} == {**table, b"end": b"end"}
    for producer in producers:
        producer.begin_transaction()
        producer.produce("table", b"again", b"again")
        producer.commit_transaction(PATIENCE_S)
