"""An offset is committed for one topic. A later topic of the same name has other records at the same offsets:
whoever resumed there would skip its first ones.
"""

from __future__ import annotations

import logstore
from broker_shim.groups.group_records import (
    Committed,
    OffsetKey,
    decode_committed,
    decode_key,
    encode_committed,
)
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, values

GROUP = "team"


def commit(client: Wire, offset: int, topic: str = "t", partition: int = 0) -> int:
    answer = client.ask(
        Api.OFFSET_COMMIT,
        7,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "here",
                    }
                ],
            }
        ],
    )
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed(client: Wire, topic: str = "t") -> int:
    asked = [{"name": topic, "partition_indexes": [0]}]
    answer = client.ask(Api.OFFSET_FETCH, 5, group_id=GROUP, topics=asked)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (Code.NONE, Code.NONE)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def all_committed(client: Wire) -> dict[str, list[int]]:
    answer = client.ask(Api.OFFSET_FETCH, 5, group_id=GROUP, topics=None)
    return {topic.name: [each.committed_offset for each in topic.partitions] for topic in answer.topics}


def delete(client: Wire, topic: str = "t") -> None:
    answer = client.ask(Api.DELETE_TOPICS, 3, topic_names=[topic], timeout=10_000)
    assert answer.responses[0].error_code == Code.NONE


def test_B01_a_group_reads_a_topic_that_was_recreated_from_its_beginning(broker: LocalBroker) -> None:
    settings = {"group.id": GROUP, "enable.auto.commit": True}
    with Wire(broker.port) as client:
        make_topic(client)
        Confluent().produce(broker.address, "t", [(b"k", b"old %d" % i, []) for i in range(3)])
        assert [got[0] for got in Confluent().consume(broker.address, "t", 3, **settings)] == [0, 1, 2]
        assert committed(client) == 3
        delete(client)
        make_topic(client)
        Confluent().produce(broker.address, "t", [(b"k", b"new %d" % i, []) for i in range(5)])
        again = Confluent().consume(broker.address, "t", 5, **settings)
        assert [(got[0], got[2]) for got in again] == [(i, b"new %d" % i) for i in range(5)]


def test_B01_a_consumer_that_knows_a_former_topics_epoch_reads_the_new_one() -> None:
    """librdkafka keeps to the largest epoch it knows of a name: it was refused for ever."""
    store = MemoryStore()
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"old"))
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        client.produce("t", batch(b"old too"))
        former = broker.log("t")._internal.epoch
        assert client.fetch("t", 0, leader_epoch=former + 1).error_code == Code.UNKNOWN_LEADER_EPOCH
        delete(client)
        make_topic(client)
        client.produce("t", batch(b"new"))
        assert broker.log("t")._internal.epoch < former
        assert values(client.fetch("t", 0, leader_epoch=former)) == [(0, b"new")]
        asked = {"partition_index": 0, "current_leader_epoch": former, "timestamp": -1}
        topics = [{"name": "t", "partitions": [asked]}]
        row = client.ask(Api.LIST_OFFSETS, 5, topics=topics).topics[0].partitions[0]
        assert (row.error_code, row.offset) == (Code.NONE, 1)


def test_B01_a_broker_that_starts_later_serves_those_who_know_a_former_topics_epoch() -> None:
    """Nobody has written since, so there is no writer: it knows from the store that the topic has taken another's place."""
    store = MemoryStore()
    for times in range(3):
        with LocalBroker(store) as broker, Wire(broker.port) as client:
            if times == 0:
                make_topic(client)
            client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            client.produce("t", batch(b"old"))
            former = broker.log("t")._internal.epoch
    with logstore.open(store) as service:
        service.delete_topic("t")
        service.create_topic("t").append(b"new")
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert values(client.fetch("t", 0, leader_epoch=former)) == [(0, b"new")]
        asked = {"partition_index": 0, "current_leader_epoch": former, "timestamp": -1}
        topics = [{"name": "t", "partitions": [asked]}]
        row = client.ask(Api.LIST_OFFSETS, 5, topics=topics).topics[0].partitions[0]
        assert (row.error_code, row.offset) == (Code.NONE, 1)
        assert broker.log("t")._internal.epoch < former


def test_B01_a_deleted_topic_takes_its_committed_offsets_along(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        make_topic(client, "other")
        assert [commit(client, 7), commit(client, 9, "other")] == [Code.NONE] * 2
        delete(client)
        assert (committed(client), all_committed(client)) == (-1, {"other": [9]})
        broker.until(lambda: _in_the_log(broker) == {"other"})


def test_B01_offsets_are_not_taken_over_from_a_topic_that_somebody_else_deleted() -> None:
    """The command line, a service or another broker deletes and creates it: this broker's groups are not told."""
    objects = MemoryStore()
    with LocalBroker(objects) as before, Wire(before.port) as client:
        make_topic(client)
        assert commit(client, 7) == Code.NONE
    with logstore.open(objects) as store:
        store.delete_topic("t")
    with LocalBroker(objects) as between, Wire(between.port) as client:
        assert (committed(client), all_committed(client)) == (-1, {})
    with logstore.open(objects) as store:
        store.create_topic("t")
    with LocalBroker(objects) as after, Wire(after.port) as client:
        assert (committed(client), all_committed(client)) == (-1, {})
        assert commit(client, 2) == Code.NONE
        assert (committed(client), all_committed(client)) == (2, {"t": [2]})


def test_B01_nothing_is_committed_for_a_partition_that_is_not_there(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, 7, "absent") == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert commit(client, 7, partition=1) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert all_committed(client) == {}
        make_topic(client, "absent")
        assert committed(client, "absent") == -1


def test_B01_committed_offsets_are_written_as_kafka_writes_them() -> None:
    """Version 4: the topic's id is a tagged field. Versions without it are read too."""
    value = Committed(7, 3, "here", 1_700_000_000_000, "0123456789abcdef")
    data = bytes.fromhex(
        "0004 0000000000000007 00000003 05 68657265 0000018bcfe56800 01 00 10 00000000000000000123456789abcdef"
    )
    assert encode_committed(value) == data
    assert decode_committed(data) == value
    older = bytes.fromhex("0003 0000000000000007 00000003 0004 68657265 0000018bcfe56800")
    assert decode_committed(older) == value._replace(incarnation=None)
    for incarnation in (None, "0123456789abcdefl"):  # of none that is known; of a topic that began in a lane
        other = value._replace(incarnation=incarnation)
        assert decode_committed(encode_committed(other)) == other


def _in_the_log(broker: LocalBroker) -> set[str]:
    """The topics that the group's log still holds an offset of."""
    latest: dict[str, bytes | None] = {}
    for index in range(broker.config.offsets_partitions):
        for record in broker.log("__consumer_offsets", index).records(visibility="durable"):
            assert record.key is not None
            key = decode_key(record.key)
            if isinstance(key, OffsetKey):
                latest[key.topic] = record.value
    return {topic for topic, value in latest.items() if value is not None}
