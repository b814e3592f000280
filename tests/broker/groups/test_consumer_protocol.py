"""B15: the new group protocol (`group.protocol=consumer`) over the wire, with librdkafka and by hand, and the classic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.consumer_groups import (
    GROUP,
    QUICK,
    beat,
    commit,
    consumer,
    filled,
    given,
    poll_until,
    shares,
)
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]


def test_B15_librdkafka_shares_partitions_commits_and_resumes(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
    found: list[Any] = []
    first, second = consumer(broker.address), consumer(broker.address)
    try:
        first.subscribe(["t"])
        poll_until([first], lambda: len(found) == 4, found)
        assert sorted(found) == [(index, 0, b"first") for index in range(4)]
        first.commit(asynchronous=False)
        second.subscribe(["t"])
        poll_until([first, second], lambda: [len(each) for each in shares([first, second])] == [2, 2], found)
        assert set.union(*shares([first, second])) == {0, 1, 2, 3}
        first.close()
        poll_until([second], lambda: shares([second]) == [{0, 1, 2, 3}], found)
        assert len(found) == 4, "what was committed is not read again"
    finally:
        second.close()


def test_B15_members_and_epochs_survive_a_kill_of_the_broker(tmp_path: Path) -> None:
    """Kill -9: the next one knows members, epochs and assignments; nobody is fenced, nobody has to join again."""
    flags = ("--group-consumer-heartbeat-interval", "0.1", "--offsets-partitions", "1")
    broker = BrokerProcess(f"file://{tmp_path}/store", *flags, log=tmp_path / "log").start()
    with Wire(broker.port) as client:
        filled(client)
        assert given(beat(client, "a", 0)) == {0, 1, 2, 3}
        assert (beat(client, "b", 0).member_epoch, commit(client, "b", 2, offset=7)) == (2, Code.NONE)
        told = beat(client, "a", 1)
        kept = told.assignment.topic_partitions
        assert (told.member_epoch, len(given(told) or ())) == (1, 2)
    broker.kill()
    with BrokerProcess(f"file://{tmp_path}/store", *flags, port=broker.port, log=tmp_path / "log"):
        with Wire(broker.port) as client:
            assert given(beat(client, "b", 2, topic_partitions=[])) == set(), "a has not let go yet"
            owned = [{"topic_id": each.topic_id, "partitions": each.partitions} for each in kept]
            assert beat(client, "a", 1, topic_partitions=owned).member_epoch == 2
            assert len(given(beat(client, "b", 2)) or ()) == 2
            assert commit(client, "a", 1) == Code.STALE_MEMBER_EPOCH
            assert commit(client, "a", 2) == Code.NONE


def test_B15_librdkafka_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    flags = ("--group-consumer-heartbeat-interval", "0.1", "--offsets-partitions", "1")
    store = f"file://{tmp_path}/store"
    broker = BrokerProcess(store, *flags, log=tmp_path / "log").start()
    with Wire(broker.port) as client:
        filled(client)
    found: list[Any] = []
    lost: list[Any] = []
    one = consumer(broker.address, **{"reconnect.backoff.max.ms": 200})
    try:
        one.subscribe(["t"], on_lost=lambda who, partitions: lost.append(partitions))
        poll_until([one], lambda: len(found) == 4, found)
        broker.kill()
        broker = BrokerProcess(store, *flags, port=broker.port, log=tmp_path / "log").start()
        with Wire(broker.port) as client:
            client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            for index in range(4):
                assert client.produce("t", batch(b"second"), partition=index).error_code == Code.NONE
        poll_until([one], lambda: len(found) == 8, found)
        assert sorted(each[2] for each in found[4:]) == [b"second"] * 4
        assert lost == [], "it kept its partitions"
    finally:
        one.close()
        broker.stop()


def test_B15_another_broker_takes_the_groups_over(start_broker: Start) -> None:
    store = MemoryStore()
    first = start_broker(store, **QUICK)
    with Wire(first.port) as client:
        filled(client)
        assert given(beat(client, "a", 0)) == {0, 1, 2, 3}
    second = start_broker(store, node_id=2, **QUICK)
    with Wire(second.port) as client:
        answer = beat(client, "a", 1)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (Code.NONE, 1, None)
        assert beat(client, "b", 0).member_epoch == 2
    gone = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
    with Wire(first.port) as client:
        assert commit(client, "a", 1) in gone, (
            "the first thing that it would write shows it that it is fenced"
        )
        assert beat(client, "a", 1).error_code in gone


def test_B15_fences(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
        assert beat(client, "a", 3).error_code == Code.UNKNOWN_MEMBER_ID
        assert beat(client, "", 0).error_code == Code.INVALID_REQUEST
        assert len(beat(client, "", 0, version=0).member_id) == 36, "version 0: the broker finds an id"
        assert beat(client, "a", 0, server_assignor="sticky").error_code == Code.UNSUPPORTED_ASSIGNOR
        epoch = beat(client, "a", 0, server_assignor="range").member_epoch
        assert beat(client, "a", epoch + 1).error_code == Code.FENCED_MEMBER_EPOCH
        assert commit(client, "a", epoch + 1) == Code.STALE_MEMBER_EPOCH
        assert commit(client, "nobody", epoch) == Code.UNKNOWN_MEMBER_ID
        assert commit(client, "a", epoch, version=8) == Code.UNSUPPORTED_VERSION
        assert commit(client, "a", epoch) == Code.NONE
        asked = [{"name": "t", "partition_indexes": [0]}]
        for member_epoch, code in ((epoch, Code.NONE), (epoch + 1, Code.STALE_MEMBER_EPOCH)):
            group = {"group_id": GROUP, "member_id": "a", "member_epoch": member_epoch, "topics": asked}
            answer = client.ask(Api.OFFSET_FETCH, 9, groups=[group])
            assert answer.groups[0].error_code == code
        assert beat(client, "a", -1).member_epoch == -1
        assert beat(client, "a", epoch).error_code == Code.UNKNOWN_MEMBER_ID
        assert commit(client, "a", epoch) == Code.UNKNOWN_MEMBER_ID


def test_B15_who_is_silent_for_its_session_is_out(start_broker: Start) -> None:
    broker = start_broker(
        group_consumer_session_timeout=0.3, group_consumer_heartbeat_interval=0.1, offsets_partitions=1
    )
    with Wire(broker.port) as client:
        filled(client)
        assert beat(client, "a", 0).error_code == Code.NONE
        [shard] = broker.server.broker.coordinator.shards
        broker.until(lambda: not shard.consumers.groups[GROUP].members)
        assert beat(client, "a", 1).error_code == Code.UNKNOWN_MEMBER_ID
        assert client.ask(Api.DELETE_GROUPS, 2, groups_names=[GROUP]).results[0].error_code == Code.NONE
        assert client.ask(Api.LIST_GROUPS, 5).groups == []


def test_B15_static_members_of_librdkafka_come_back_to_their_partitions(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
    names = [{"group.instance.id": f"i{number}"} for number in range(2)]
    both = [consumer(broker.address, **name) for name in names]
    try:
        for each in both:
            each.subscribe(["t"])
        poll_until(both, lambda: [len(each) for each in shares(both)] == [2, 2])
        before = shares(both)
        [shard] = broker.server.broker.coordinator.shards
        epoch = broker.call(lambda: shard.consumers.groups[GROUP].epoch)
        both[0].close()
        both[0] = consumer(broker.address, **names[0])
        both[0].subscribe(["t"])
        poll_until(both, lambda: shares(both) == before)
        assert broker.call(lambda: shard.consumers.groups[GROUP].epoch) == epoch, "no rebalance"
    finally:
        for each in both:
            each.close()


def test_B15_librdkafka_subscribes_by_expression_and_to_what_grows(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        for name in ("t-1", "t-x", "other"):
            make_topic(client, name)
        one = consumer(broker.address)
        try:
            one.subscribe(["^t-[0-9]+"])
            poll_until([one], lambda: {each.topic for each in one.assignment()} == {"t-1"})
            client.ask(Api.CREATE_PARTITIONS, 3, topics=[{"name": "t-1", "count": 3}], timeout=10_000)
            poll_until([one], lambda: shares([one]) == [{0, 1, 2}])
            make_topic(client, "t-22")
            poll_until([one], lambda: {each.topic for each in one.assignment()} == {"t-1", "t-22"})
        finally:
            one.close()
        bad = beat(client, "a", 0, subscribed_topic_names=None, subscribed_topic_regex="(a)\\1")
        assert bad.error_code == Code.INVALID_REGULAR_EXPRESSION


def test_B15_groups_are_listed_and_described(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
        beat(client, "a", 0, instance_id="i")
        beat(client, "b", 0, group="other", subscribed_topic_names=["t", "not yet"])
        assert commit_as_nobody(client, "classic") == Code.NONE
        listed = client.ask(Api.LIST_GROUPS, 5).groups
        assert {(each.group_id, each.group_type) for each in listed} == {
            (GROUP, "consumer"),
            ("other", "consumer"),
            ("classic", "classic"),
        }
        only = client.ask(Api.LIST_GROUPS, 5, types_filter=["Classic"]).groups
        assert [each.group_id for each in only] == ["classic"]
        names = [GROUP, "nowhere"]
        mine, nowhere = client.ask(Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=names).groups
        assert nowhere.error_code == Code.GROUP_ID_NOT_FOUND
        assert (mine.group_state, mine.group_epoch, mine.assignor_name) == ("Stable", 1, "uniform")
        [member] = mine.members
        assert (member.member_id, member.instance_id, member.member_epoch) == ("a", "i", 1)
        [row] = member.assignment.topic_partitions
        assert (row.topic_name, row.partitions) == ("t", [0, 1, 2, 3])
        assert client.ask(Api.DESCRIBE_GROUPS, 5, groups=[GROUP]).groups[0].group_state == "Dead"
        assert client.ask(Api.DELETE_GROUPS, 2, groups_names=[GROUP]).results[0].error_code == 68
    admin = AdminClient({"bootstrap.servers": broker.address})
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
    assert [each.member_id for each in described.members] == ["a"]
    assert len(described.members[0].assignment.topic_partitions) == 4


def commit_as_nobody(client: Wire, group: str) -> int:
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    answer = client.ask(
        Api.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": rows}],
    )
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("upgrade", [True, False], ids=["to the consumer protocol", "to the classic one"])
def test_B15_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    start_broker: Start, upgrade: bool
) -> None:
    store = MemoryStore()
    broker = start_broker(store, **QUICK)
    with Wire(broker.port) as client:
        filled(client)
    protocols = ["classic", "consumer"] if upgrade else ["consumer", "classic"]
    assert read_as(broker, protocols[0], 4) == [(index, 0, b"first") for index in range(4)]
    assert read_as(broker, protocols[1], 0) == []
    again = start_broker(store, node_id=2, **QUICK)
    with Wire(again.port) as client:
        kind = "consumer" if upgrade else "classic"
        assert [each.group_type for each in client.ask(Api.LIST_GROUPS, 5).groups] == [kind]


def read_as(broker: LocalBroker, protocol: str, count: int) -> list[Any]:
    """Read so much and commit."""
    found: list[Any] = []
    one = consumer(broker.address, **{"group.protocol": protocol})
    try:
        one.subscribe(["t"])
        poll_until([one], lambda: shares([one]) == [{0, 1, 2, 3}] and len(found) >= count, found)
        if count:
            one.commit(asynchronous=False)
        assert [each.offset for each in one.committed(one.assignment(), PATIENCE_S)] == [1] * 4
        if protocol == "consumer":
            with Wire(broker.port) as client:
                answer = client.ask(Api.JOIN_GROUP, 5, **classic_join())
                assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL, "its metadata are no consumer's"
    finally:
        one.close()
    return sorted(found)


def classic_join() -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
