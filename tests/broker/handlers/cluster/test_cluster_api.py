"""B01: what Kafka's tools ask about replicas, disks, quotas and times: answered as it is here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import kafka.admin
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

import logstore
from broker_shim.partitions.latest_time import latest_by_time
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.wrappers.slices import SlicedStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]


def sizes(client: Wire, topics: Any = None) -> dict[tuple[str, int], int]:
    answer = client.ask(Api.DESCRIBE_LOG_DIRS, 4, topics=topics)
    [folder] = answer.results
    assert (answer.error_code, folder.error_code, folder.log_dir) == (0, 0, "memory://unused")
    return {
        (topic.name, each.partition_index): each.partition_size
        for topic in folder.topics
        for each in topic.partitions
    }


# ── log dirs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_B01_the_size_of_a_partition_is_that_of_its_objects(start_broker: Start) -> None:
    store = MemoryStore()
    broker = start_broker(store)
    with Wire(broker.port) as client:
        make_topic(client, "t", 2)
        make_topic(client, "u", 1)
        for _ in range(3):
            assert client.produce("t", batch(b"x" * 1000)).error_code == Code.NONE
        stored = sum(len(SlicedStore(store).get(ref.key)) for ref in broker.log("t").segments())
        assert stored > 3000
        expected = {("t", 0): stored, ("t", 1): 0, ("u", 0): 0}
        assert sizes(client) == expected
        assert sizes(client, [{"topic": "t", "partitions": [1, 7]}, {"topic": "no", "partitions": [0]}]) == {
            ("t", 1): 0
        }
    with Wire(start_broker(store, node_id=2).port) as client:
        assert sizes(client) == expected, "one that has not opened them looks"


def test_B01_each_of_several_brokers_counts_what_it_leads(start_broker: Start) -> None:
    store = MemoryStore()
    brokers = [
        start_broker(store, node_id=number, heartbeat_interval=0.2, heartbeat_timeout=60.0)
        for number in (1, 2)
    ]
    for broker in brokers:
        cluster = broker.server.broker.cluster
        broker.until(lambda cluster=cluster: len(cluster.view.nodes) == 2)  # type: ignore[misc]
        broker.until(lambda cluster=cluster: any(cluster.leads("t", i) for i in range(20)))  # type: ignore[misc]
    with Wire(brokers[0].port) as first, Wire(brokers[1].port) as second:
        make_topic(first, "t", 20)
        led = [set(sizes(client)) for client in (first, second)]
    assert led[0] | led[1] == {("t", index) for index in range(20)}
    assert not led[0] & led[1]


def test_B01_kafka_python_reads_sizes_and_reassignments(broker: LocalBroker) -> None:
    Confluent().produce(broker.address, "t", [(b"k", b"v" * 500, [])])
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        described = str(admin.describe_log_dirs())
        assert "memory://unused" in described
        assert admin.list_partition_reassignments() == {}
    finally:
        admin.close()


# ── leaders and replicas ─────────────────────────────────────────────────────────────────────────────────────


def test_B01_nothing_can_be_moved_and_that_is_said(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)

        def reassign(partition: int, replicas: list[int] | None) -> int:
            row = {"partition_index": partition, "replicas": replicas}
            topics = [{"name": "t", "partitions": [row]}]
            answer = client.ask(Api.ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics, timeout=1000)
            return int(answer.responses[0].partitions[0].error_code)

        assert reassign(0, [1]) == Code.NONE
        assert reassign(0, [2]) == Code.INVALID_REPLICA_ASSIGNMENT
        assert reassign(0, None) == Code.NO_REASSIGNMENT_IN_PROGRESS
        assert reassign(5, [1]) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert client.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=1000).topics == []
        asked = [{"topic": "t", "partitions": [0, 9]}, {"topic": "no", "partitions": [0]}]
        answer = client.ask(Api.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked, timeout=1000)
        found = [
            [row.error_code for row in each.partition_result] for each in answer.replica_election_results
        ]
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert found == [[Code.ELECTION_NOT_NEEDED, unknown], [unknown]]
        whole = client.ask(Api.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=1000)
        assert (whole.error_code, whole.replica_election_results) == (Code.NONE, [])


@pytest.mark.parametrize(
    ("assignments", "code"),
    [
        ([[1], [1]], Code.NONE),
        ([[1]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[1], [7]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[1], []], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[1], [1, 1]], Code.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_B01_partitions_with_a_bad_assignment_are_not_made(
    broker: LocalBroker, assignments: list[list[int]], code: Code
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        rows = [{"broker_ids": brokers} for brokers in assignments]
        asked = {"name": "t", "count": 3, "assignments": rows}
        [answer] = client.ask(Api.CREATE_PARTITIONS, 3, topics=[asked], timeout=1000).results
        assert answer.error_code == code
        assert broker.server.store.topic("t").partitions == (3 if code is Code.NONE else 1)
        placed = [{"partition_index": i, "broker_ids": each} for i, each in enumerate(assignments)]
        new = {"name": "new", "num_partitions": -1, "replication_factor": -1, "assignments": placed}
        [made] = client.ask(Api.CREATE_TOPICS, 7, topics=[new], timeout=1000).topics
        assert made.error_code == (Code.NONE if assignments == [[1]] else code)


# ── quotas, resources ────────────────────────────────────────────────────────────────────────────────────────


def test_B01_there_are_no_quotas_and_none_can_be_set(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        components = [{"entity_type": "user", "match_type": 2, "match": None}]
        found = client.ask(Api.DESCRIBE_CLIENT_QUOTAS, 1, components=components, strict=False)
        assert (found.error_code, found.entries) == (Code.NONE, [])

        def alter(remove: bool) -> tuple[int, str | None]:
            ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": remove}]
            entity = [{"entity_type": "user", "entity_name": "a"}]
            [entry] = client.ask(Api.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}]).entries
            assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("user", "a")]
            return entry.error_code, entry.error_message

        assert alter(remove=True) == (Code.NONE, None)
        assert alter(remove=False) == (Code.INVALID_REQUEST, "this broker has no quotas: nobody is throttled")


def test_B16_what_has_settings_is_listed(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)

        def listed(*kinds: int) -> list[tuple[int, str]]:
            answer = client.ask(Api.LIST_CONFIG_RESOURCES, 1, resource_types=list(kinds))
            assert answer.error_code == (Code.UNSUPPORTED_VERSION if 99 in kinds else Code.NONE)
            return [(each.resource_type, each.resource_name) for each in answer.config_resources]

        assert listed() == [(2, "t"), (4, "1")]
        assert (listed(2), listed(16), listed(99)) == ([(2, "t")], [], [])
        assert client.ask(Api.LIST_CONFIG_RESOURCES, 0).config_resources == []


def test_B16_a_group_has_the_times_that_its_broker_gives_to_all_of_them(start_broker: Start) -> None:
    broker = start_broker(MemoryStore(), group_consumer_session_timeout=20.0)

    def ask(name: str) -> tuple[int, dict[str, str]]:
        asked = [{"resource_type": 32, "resource_name": name, "configuration_keys": None}]
        with Wire(broker.port) as client:
            [row] = client.ask(Api.DESCRIBE_CONFIGS, 4, resources=asked).results
        assert all(each.read_only for each in row.configs)
        return row.error_code, {each.name: each.value for each in row.configs}

    times = {"consumer.heartbeat.interval.ms": "5000", "consumer.session.timeout.ms": "20000"}
    assert ask("g") == (Code.NONE, times)
    assert ask("") == (Code.INVALID_REQUEST, {})


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────


def list_offsets(client: Wire, timestamp: int, isolation: int = 0) -> tuple[int, int, int]:
    partitions = [{"partition_index": 0, "timestamp": timestamp}]
    answer = client.ask(
        Api.LIST_OFFSETS,
        11,
        isolation_level=isolation,
        topics=[{"name": "t", "partitions": partitions}],
        timeout=1000,
    )
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp


def test_B05_the_largest_timestamp_is_found_wherever_it_is(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert list_offsets(client, -3) == (Code.NONE, -1, -1)
        for stamp in (5_000, 9_000, 7_000):
            client.produce("t", batch(b"a", b"b", timestamp_ms=stamp))  # the second is a millisecond later
        assert list_offsets(client, -3) == (Code.NONE, 3, 9_001)
        client.produce("t", batch(b"the same", timestamp_ms=9_001))
        assert list_offsets(client, -3) == (Code.NONE, 3, 9_001), "the first of them"
        client.ask(
            Api.DELETE_RECORDS,
            2,
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 4}]}],
            timeout=1000,
        )
        assert list_offsets(client, -3) == (Code.NONE, 6, 9_001)
        assert list_offsets(client, -4) == (Code.NONE, 4, -1), "all of the log is as near as its first record"
        assert list_offsets(client, -5) == (Code.NONE, -1, -1)
        assert list_offsets(client, -6) == (Code.NONE, -1, -1)
        assert list_offsets(client, -7) == (Code.UNSUPPORTED_VERSION, -1, -1)


def test_B05_a_largest_timestamp_below_the_start_of_its_segment_does_not_count() -> None:
    """One segment of three batches, of which the first, with the largest time, is trimmed."""
    with logstore.open(MemoryStore(), flush_interval=3600.0) as store:
        log = store.create_topic("t").partition(0)
        for stamp in (9_000, 3_000, 4_000):
            log._internal.submit_batches(batch(b"a", timestamp_ms=stamp), ack="buffered").result(PATIENCE_S)
        assert latest_by_time(log) == (0, 9_000), "not in a segment yet"
        log.flush()
        assert len(log.segments()) == 1
        assert latest_by_time(log) == (0, 9_000)
        log.delete_before(1)
        assert latest_by_time(log) == (2, 4_000)
        log.delete_before(3)
        assert latest_by_time(log) is None


def test_B06_who_reads_committed_is_not_told_of_a_time_that_may_be_lost(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"a", timestamp_ms=5_000))
        assert list_offsets(client, -3) == (Code.NONE, 0, 5_000)
        assert list_offsets(client, -3, isolation=1) == (Code.NONE, -1, -1)


def test_B05_librdkafka_asks_for_the_largest_timestamp(broker: LocalBroker) -> None:
    Confluent().produce(broker.address, "t", [(b"k", b"%d" % number, []) for number in range(3)])
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    place = TopicPartition("t", 0)
    asked: Future[Any] = admin.list_offsets(
        {place: OffsetSpec.max_timestamp()}, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )[place]
    found = asked.result(PATIENCE_S)
    log = broker.log("t")
    stamps = [record.timestamp_ms or 0 for record in log.records()]
    assert (found.offset, found.timestamp) == (stamps.index(max(stamps)), max(stamps))
