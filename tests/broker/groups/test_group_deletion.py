"""Groups and offsets that are deleted while others commit and join; who may delete and list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_shim.auth.acl_store import AclStore
from broker_shim.auth.acls import CLUSTER_NAME, Operation, Resource
from broker_shim.partitions import shards as shards_module
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.access import acl
from tests.support.broker.group_steps import GROUP, join_body, stable_member
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.load import commit, committed
from tests.support.broker.steps import make_topic

Start = Callable[..., LocalBroker]
LOG = "lanes/"  # the only one that is written to here


def send_commit(client: Wire, partition: int, offset: int) -> int:
    row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
    asked = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": "t", "partitions": [row]}]
    body = messages.encode_request(Api.OFFSET_COMMIT, 7, {**asked, "topics": topics})
    return client.send(Api.OFFSET_COMMIT, 7, body)


def all_committed(client: Wire) -> list[tuple[int, int]]:
    answer = client.ask(Api.OFFSET_FETCH, 5, group_id=GROUP, topics=None)
    return [(row.partition_index, row.committed_offset) for t in answer.topics for row in t.partitions]


def send_delete(client: Wire) -> int:
    body = messages.encode_request(Api.DELETE_GROUPS, 2, {"groups_names": [GROUP]})
    return client.send(Api.DELETE_GROUPS, 2, body)


def test_B08_a_deleted_group_takes_the_commits_along_that_were_on_their_way(start_broker: Start) -> None:
    """Gone from memory alone, they came back with the next coordinator."""
    store = GatedStore(MemoryStore())
    with LocalBroker(store) as broker, Wire(broker.port) as one, Wire(broker.port) as two:
        make_topic(one, partitions=2)
        assert commit(one, GROUP, 5) == Code.NONE
        with store.hold("put", prefix=LOG) as gate:
            committing = send_commit(one, 1, 7)
            gate.wait_held()
            [shard] = broker.server.broker.coordinator.shards
            before = shard.log._records_in_log
            deleting = send_delete(two)
            broker.until(lambda: shard.log._records_in_log > before)
            gate.open()
            one.answer(Api.OFFSET_COMMIT, 7, committing)
            assert two.answer(Api.DELETE_GROUPS, 2, deleting).results[0].error_code == Code.NONE
        assert all_committed(one) == []
    again = start_broker(store)
    with Wire(again.port) as client:
        assert all_committed(client) == []


def test_B08_who_joins_a_group_that_is_being_deleted_keeps_it(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        member_id, _ = stable_member(client)
        client.ask(Api.LEAVE_GROUP, 1, group_id=GROUP, member_id=member_id)
        member_id = client.ask(Api.JOIN_GROUP, 5, **join_body()).member_id
        shard: Any
        [shard] = broker.server.broker.coordinator.shards
        outcome: list[Code] = []
        broker.call(lambda: _delete_and_hold(shard, outcome))
        joined = client.ask(Api.JOIN_GROUP, 5, **join_body(member_id))
        assert joined.error_code == Code.NONE
        broker.call(lambda: shard.release())
        broker.until(lambda: outcome == [Code.NONE])
        beat = client.ask(
            Api.HEARTBEAT, 3, group_id=GROUP, generation_id=joined.generation_id, member_id=member_id
        )
        assert beat.error_code == Code.NONE


def _delete_and_hold(shard: Any, outcome: list[Code]) -> None:
    """Delete the group; that it is written is heard when the test says so."""
    write = shard.log.write

    def held(changes: Any, done: Any) -> None:
        shard.log.write = write
        write(list(changes), lambda code: setattr(shard, "release", lambda: done(code)))

    shard.log.write = held
    shard.release = lambda: None
    shard.delete_group(GROUP, outcome.append)


def test_B08_offsets_that_are_being_committed_do_not_expire(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store, offsets_retention=3600.0)
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, GROUP, 5) == Code.NONE
        coordinator = broker.server.broker.coordinator
        [shard] = coordinator.shards
        with store.hold("put", prefix=LOG) as gate:
            committing = send_commit(client, 0, 6)
            gate.wait_held()
            later = coordinator.now_ms() + 7_200_000
            shard._now_ms = lambda: later
            broker.call(coordinator._expire)
            gate.open()
            answer = client.answer(Api.OFFSET_COMMIT, 7, committing)
            assert answer.topics[0].partitions[0].error_code == Code.NONE
        assert committed(client, GROUP) == 6


def test_L28_a_list_of_groups_is_not_waited_for_while_the_store_hangs(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "LOAD_PATIENCE_S", 0.05)
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client:
        client.ask(Api.FIND_COORDINATOR, 2, key=GROUP, key_type=0)
        with store.hold("put"):  # also the fence of who opens it
            assert client.ask(Api.LIST_GROUPS, 4).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS


def test_B11_offsets_are_deleted_of_topics_that_one_may_read(start_broker: Start) -> None:
    store = MemoryStore()
    with LocalBroker(store) as setup, Wire(setup.port) as client:
        make_topic(client)
        assert commit(client, GROUP, 5) == Code.NONE
    everything = acl(Operation.ALL, name=GROUP, principal="User:ANONYMOUS", resource=Resource.GROUP)
    see = acl(Operation.DESCRIBE, name="t", principal="User:ANONYMOUS")
    AclStore(store).change(lambda known: known | {everything, see})
    broker = start_broker(store, acls=True)
    with Wire(broker.port) as client:
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = client.ask(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
        assert answer.topics[0].partitions[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert committed(client, GROUP) == 5


@pytest.mark.parametrize(
    ("metadata", "codes"),
    [
        (
            b"\0\1\0\0\0\1\0\4used\xff\xff\xff\xff\0\0\0\0",
            {"t": Code.NONE, "used": Code.GROUP_SUBSCRIBED_TO_TOPIC},
        ),
        (
            b"something else",
            {"t": Code.GROUP_SUBSCRIBED_TO_TOPIC, "used": Code.GROUP_SUBSCRIBED_TO_TOPIC},
        ),
    ],
    ids=["subscribed", "not-told"],
)
def test_B01_a_group_that_is_in_use_keeps_the_offsets_of_what_it_subscribes_to(
    broker: LocalBroker, metadata: bytes, codes: dict[str, Code]
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        make_topic(client, "used")
        assert commit(client, GROUP, 5) == Code.NONE
        stable_member(client, metadata=metadata)
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in codes]
        answer = client.ask(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
        assert answer.error_code == Code.NONE
        assert {each.name: each.partitions[0].error_code for each in answer.topics} == codes
        assert committed(client, GROUP) == (-1 if codes["t"] is Code.NONE else 5)


def test_B01_a_group_in_use_that_is_none_of_consumers_keeps_all_its_offsets(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, GROUP, 5) == Code.NONE
        stable_member(client, protocol_type="connect")
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = client.ask(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
        assert answer.error_code == Code.NON_EMPTY_GROUP
        assert committed(client, GROUP) == 5


def test_B11_who_may_describe_the_cluster_sees_every_group(start_broker: Start) -> None:
    store = MemoryStore()
    with LocalBroker(store) as setup, Wire(setup.port) as client:
        make_topic(client)
        assert commit(client, GROUP, 5) == Code.NONE
    broker = start_broker(store, acls=True)
    with Wire(broker.port) as client:
        assert list(client.ask(Api.LIST_GROUPS, 4).groups) == []
    rule = acl(Operation.DESCRIBE, name=CLUSTER_NAME, principal="User:ANONYMOUS", resource=Resource.CLUSTER)
    AclStore(store).change(lambda known: known | {rule})
    again = start_broker(store, acls=True, node_id=2)
    with Wire(again.port) as client:
        assert [each.group_id for each in client.ask(Api.LIST_GROUPS, 4).groups] == [GROUP]
