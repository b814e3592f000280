"""B15: topics have ids: the same over restarts and on every broker, another for each incarnation."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.layout.catalog import topic_id_of
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.clients import CLIENTS, Client
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
NOBODYS = UUID(int=77)


def ids(client: Wire, *names: str) -> list[UUID]:
    answer = client.ask(Api.METADATA, 12, topics=[{"name": name} for name in names])
    assert [topic.error_code for topic in answer.topics] == [Code.NONE] * len(names)
    return [topic.topic_id for topic in answer.topics]


def by_id(client: Wire, topic_id: UUID, name: str | None = None) -> tuple[int, str | None]:
    [topic] = client.ask(Api.METADATA, 12, topics=[{"topic_id": topic_id, "name": name}]).topics
    assert topic.topic_id == topic_id
    return topic.error_code, topic.name


def create(client: Wire, name: str) -> UUID:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    [made] = client.ask(Api.CREATE_TOPICS, 7, topics=[topic], timeout=10_000).topics
    assert made.error_code == Code.NONE
    found: UUID = made.topic_id
    return found


def delete(client: Wire, **which: Any) -> Any:
    [answer] = client.ask(Api.DELETE_TOPICS, 6, topics=[which], timeout=10_000).responses
    return answer


def test_B15_an_id_is_the_same_on_every_broker_and_new_with_each_incarnation(start_broker: Start) -> None:
    store = MemoryStore()
    with Wire(start_broker(store).port) as client:
        first, other = create(client, "t"), create(client, "u")
        assert ids(client, "t", "u") == [first, other]
        assert first != other
    with Wire(start_broker(store, node_id=2).port) as client:
        assert by_id(client, other) == (Code.NONE, "u"), (
            "by the id alone, which this broker has never heard of"
        )
        assert ids(client, "t") == [first]
        assert delete(client, name="t").topic_id == first
        again = create(client, "t")
        assert again not in (first, other)
        assert by_id(client, first) == (Code.UNKNOWN_TOPIC_ID, None)
        assert by_id(client, again) == (Code.NONE, "t")
        assert by_id(client, NOBODYS) == (Code.UNKNOWN_TOPIC_ID, None)


def test_B15_a_topic_is_described_by_its_id_beside_an_empty_name(broker: LocalBroker) -> None:
    """As Java's client asks."""
    with Wire(broker.port) as client:
        assert by_id(client, create(client, "t"), name="") == (Code.NONE, "t")
        assert by_id(client, NOBODYS, name="") == (Code.UNKNOWN_TOPIC_ID, None)


def test_B15_who_deletes_by_id_does_not_delete_the_next_of_the_name(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        old = create(client, "t")
        done = delete(client, topic_id=old)
        assert (done.error_code, done.name, done.topic_id) == (Code.NONE, "t", old)
        new = create(client, "t")
        assert delete(client, topic_id=old).error_code == Code.UNKNOWN_TOPIC_ID
        assert delete(client, name="t", topic_id=new).error_code == Code.INVALID_REQUEST
        assert delete(client, name=None).error_code == Code.INVALID_REQUEST
        assert ids(client, "t") == [new]


def test_B15_another_broker_that_recreated_a_topic_is_found_out_before_it_is_deleted_by_id(
    start_broker: Start,
) -> None:
    """This one still holds the topic of before for a fresh one."""
    store = MemoryStore()
    first, second = start_broker(store), start_broker(store, node_id=2)
    with Wire(first.port) as client, Wire(second.port) as elsewhere:
        old = create(client, "t")
        second.server.store.delete_topic("t")
        new = create(elsewhere, "t")
        assert delete(client, topic_id=old).error_code in (
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.UNKNOWN_TOPIC_ID,
        )
        assert ids(elsewhere, "t") == [new]


def test_B15_offsets_are_committed_and_fetched_by_id(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        topic_id = create(client, "t")

        def commit(meant: UUID, offset: int) -> int:
            place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
            [answer] = client.ask(
                Api.OFFSET_COMMIT,
                10,
                group_id="g",
                generation_id_or_member_epoch=-1,
                topics=[{"topic_id": meant, "partitions": [place]}],
            ).topics
            assert answer.topic_id == meant
            return int(answer.partitions[0].error_code)

        def fetch(*meant: UUID) -> list[tuple[UUID, int, int]]:
            topics = [{"topic_id": each, "partition_indexes": [0]} for each in meant] or None
            asked = {"group_id": "g", "topics": topics}
            [group] = client.ask(Api.OFFSET_FETCH, 10, groups=[asked]).groups
            rows = [(topic.topic_id, topic.partitions[0]) for topic in group.topics]
            return [(each, row.committed_offset, row.error_code) for each, row in rows]

        assert commit(topic_id, 7) == Code.NONE
        assert commit(NOBODYS, 7) == Code.UNKNOWN_TOPIC_ID
        assert fetch() == [(topic_id, 7, Code.NONE)]
        assert fetch(NOBODYS, topic_id) == [
            (NOBODYS, -1, Code.UNKNOWN_TOPIC_ID),
            (topic_id, 7, Code.NONE),
        ]
        delete(client, topic_id=topic_id)
        new = create(client, "t")
        assert commit(topic_id, 9) == Code.UNKNOWN_TOPIC_ID
        assert fetch(topic_id, new) == [(topic_id, -1, Code.UNKNOWN_TOPIC_ID), (new, -1, Code.NONE)]


def fetch(
    client: Wire,
    topic_id: UUID,
    offset: int = 0,
    *,
    session: tuple[int, int] = (0, -1),
    version: int = 18,
    **more: Any,
) -> Any:
    place = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    values = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": session[0],
        "session_epoch": session[1],
        "rack_id": "",
        "topics": [{"topic_id": topic_id, "topic": "t", "partitions": [place]}],
        **more,
    }
    return client.ask(Api.FETCH, version, **values)


def test_B15_records_are_fetched_by_id_and_never_of_the_next_topic_of_the_name(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        old = create(client, "t")
        client.produce("t", batch(b"old"))
        for version in range(13, 19):
            [topic] = fetch(client, old, version=version).responses
            assert (topic.topic_id, values(topic.partitions[0])) == (old, [(0, b"old")])
        delete(client, name="t")
        new = create(client, "t")
        client.produce("t", batch(b"new"))
        for _ in range(2):  # the second is the same request once more
            [topic] = fetch(client, old).responses
            assert (topic.topic_id, topic.partitions[0].error_code) == (old, Code.UNKNOWN_TOPIC_ID)
            assert not topic.partitions[0].records
        [topic] = fetch(client, new).responses
        assert values(topic.partitions[0]) == [(0, b"new")]


def test_B15_a_broker_that_has_just_started_finds_a_topic_by_its_id_alone(start_broker: Start) -> None:
    store = MemoryStore()
    with Wire(start_broker(store).port) as client:
        topic_id = create(client, "t")
        client.produce("t", batch(b"kept"))
    with Wire(start_broker(store, node_id=2).port) as client:
        [topic] = fetch(client, topic_id).responses
        assert values(topic.partitions[0]) == [(0, b"kept")]
        [topic] = fetch(client, NOBODYS).responses
        assert topic.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID


def test_B15_a_session_goes_on_with_ids_and_ends_with_a_recreated_topic(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        topic_id = create(client, "t")
        client.produce("t", batch(b"first"))
        began = fetch(client, topic_id, session=(0, 0))
        assert began.session_id > 0
        client.produce("t", batch(b"second"))
        more = fetch(client, topic_id, 1, session=(began.session_id, 1))
        assert values(more.responses[0].partitions[0]) == [(1, b"second")]
        delete(client, name="t")
        create(client, "t")
        gone = fetch(client, topic_id, 2, session=(began.session_id, 2), topics=[])
        assert [(t.topic_id, t.partitions[0].error_code) for t in gone.responses] == [
            (topic_id, Code.UNKNOWN_TOPIC_ID)
        ]
        forgotten = [{"topic_id": topic_id, "partitions": [0]}]
        left = fetch(
            client, topic_id, session=(began.session_id, 3), topics=[], forgotten_topics_data=forgotten
        )
        assert (left.error_code, left.responses) == (Code.NONE, [])


def test_B15_a_session_does_not_change_between_names_and_ids(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        topic_id = create(client, "t")
        began = fetch(client, topic_id, session=(0, 0), version=12)
        later = fetch(client, topic_id, session=(began.session_id, 1), version=13)
        assert (later.error_code, later.responses) == (Code.FETCH_SESSION_TOPIC_ID_ERROR, [])


def test_B15_unknown_ids_cost_one_listing_and_not_one_each(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        asked = [{"topic_id": UUID(int=number), "name": None} for number in range(10, 510)]
        client.ask(Api.METADATA, 12, topics=asked[:1])
        before = broker.server.store.metrics()["list"].requests
        answer = client.ask(Api.METADATA, 12, topics=asked)
        assert {topic.error_code for topic in answer.topics} == {Code.UNKNOWN_TOPIC_ID}
        # A second may pass on a slow machine, and another: far fewer than there are ids.
        assert broker.server.store.metrics()["list"].requests - before <= 50


def test_B15_no_id_looks_like_an_option() -> None:
    texts = [urlsafe_b64encode(topic_id_of("t", f"{number:016x}").bytes) for number in range(5000)]
    assert not [text for text in texts if text.startswith(b"-")]
    assert len(set(texts)) == 5000


def test_B15_partitions_are_described_a_part_at_a_time(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        for name, partitions in (("a", 3), ("b", 2), ("c", 2)):
            make_topic(client, name, partitions)
        found: list[tuple[str, int]] = []
        cursor, calls = None, 0
        while cursor is not None or not calls:
            calls += 1
            answer = client.ask(
                Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2, cursor=cursor
            )
            found += [
                (topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions
            ]
            assert all(topic.topic_authorized_operations == 0b110111111000 for topic in answer.topics)
            rows = [each for topic in answer.topics for each in topic.partitions]
            # Not null: Java's describeTopics falls over that.
            assert all((each.eligible_leader_replicas, each.last_known_elr) == ([], []) for each in rows)
            cursor = answer.next_cursor and vars(answer.next_cursor)
        assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0), ("c", 1)]
        assert calls == 4
        answer = client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": "nope"}, {"name": "a"}],
            response_partition_limit=2000,
        )
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("a", Code.NONE),
            ("nope", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ]


def test_B15_librdkafkas_admin_sees_ids_and_all_operations(broker: LocalBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
    described: Future[Any] = admin.describe_topics(
        confluent_kafka.TopicCollection(["t"]), include_authorized_operations=True
    )["t"]
    topic = described.result(PATIENCE_S)
    assert len(topic.authorized_operations) == 8
    with Wire(broker.port) as client:
        [topic_id] = ids(client, "t")
    # librdkafka spells base64 as mail does, Java as addresses do.
    assert str(topic.topic_id) == b64encode(topic_id.bytes).decode().rstrip("=")
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    assert len(cluster.authorized_operations) == 7
    group = admin.describe_consumer_groups(["g"], include_authorized_operations=True)["g"].result(PATIENCE_S)
    assert len(group.authorized_operations) == 3


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_B15_a_recreated_topic_is_another_one_to_every_client(broker: LocalBroker, client: Client) -> None:
    client.produce(broker.address, "t", [(b"k", b"old", [])])
    assert client.consume(broker.address, "t", 1) == [(0, b"k", b"old", [])]
    with Wire(broker.port) as wire:
        [topic_id] = ids(wire, "t")
        assert delete(wire, topic_id=topic_id).error_code == Code.NONE
        create(wire, "t")
        assert wire.produce("t", batch(b"new")).error_code == Code.NONE
    assert client.consume(broker.address, "t", 1) == [(0, b"k", b"new", [])]
