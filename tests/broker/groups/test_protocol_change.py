"""B15: a group changes its protocol while its members read on, over the wire and with librdkafka (KIP-848, both ways)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from broker_shim.groups.subscription import read_assignment
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
    subscription,
)
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch

Start = Callable[..., LocalBroker]
NOBODY = frozenset[Any]()


def join(client: Wire, member: str = "", kind: str = "consumer", **said: Any) -> Any:
    metadata = subscription(NOBODY) if kind == "consumer" else b"something else"
    base = {
        "group_id": GROUP,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": kind,
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    answer = client.ask(Api.JOIN_GROUP, 5, **{**base, **said})
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        return join(client, answer.member_id, kind, **said)
    return answer


def sync(client: Wire, joined: Any, assignments: dict[str, bytes] | None = None) -> Any:
    return client.ask(
        Api.SYNC_GROUP,
        5,
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": k, "assignment": v} for k, v in (assignments or {}).items()],
    )


def heartbeat(client: Wire, joined: Any) -> int:
    who = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    return int(client.ask(Api.HEARTBEAT, 4, **who).error_code)


def reads(synced: Any) -> set[int]:
    assert synced.error_code == Code.NONE
    return {index for _, index in read_assignment(synced.assignment)}


def kinds(client: Wire) -> list[tuple[str, str]]:
    return [(each.group_type, each.group_state) for each in client.ask(Api.LIST_GROUPS, 5).groups]


ALL_FOUR = b"\0\0\0\0\0\1\0\1t\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3\xff\xff\xff\xff"


def test_B15_a_classic_group_goes_up_when_a_consumer_joins_and_down_when_it_leaves(
    start_broker: Start,
) -> None:
    """And each coordinator that takes over in between knows what it was."""
    store = MemoryStore()
    broker = start_broker(store, node_id=1, **QUICK)
    with Wire(broker.port) as client:
        filled(client)
        old = join(client)
        assert reads(sync(client, old, {old.member_id: ALL_FOUR})) == {0, 1, 2, 3}
        assert kinds(client) == [("classic", "Stable")]
        new = beat(client, "new", 0)
        assert (new.error_code, given(new)) == (Code.NONE, set()), "what the other reads is not free yet"
        assert kinds(client) == [("consumer", "Reconciling")]
        assert commit(client, old.member_id, old.generation_id) == Code.NONE, "it may commit until it is told"
        assert heartbeat(client, old) == Code.REBALANCE_IN_PROGRESS
        [group] = client.ask(Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[GROUP]).groups
        assert {each.member_id: each.member_type for each in group.members} == {old.member_id: 0, "new": 1}
    broker = start_broker(store, node_id=2, **QUICK)
    with Wire(broker.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert heartbeat(client, old) == Code.REBALANCE_IN_PROGRESS
        again = join(client, old.member_id)
        assert (again.error_code, again.member_id, again.leader) == (Code.NONE, old.member_id, "")
        assert again.generation_id == new.member_epoch
        mine = reads(sync(client, again))
        assert len(mine) == 2
        assert heartbeat(client, old) == Code.ILLEGAL_GENERATION
        assert commit(client, old.member_id, old.generation_id) == Code.ILLEGAL_GENERATION
        assert heartbeat(client, again) == Code.NONE
        new = beat(client, "new", new.member_epoch, topic_partitions=[])
        assert given(new) == {0, 1, 2, 3} - mine
        assert kinds(client) == [("consumer", "Stable")]
        assert join(client, kind="connect").error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert beat(client, "new", -1).error_code == Code.NONE
        assert kinds(client) == [("classic", "PreparingRebalance")]
        assert heartbeat(client, again) == Code.REBALANCE_IN_PROGRESS
        last = join(client, old.member_id)
        assert (last.leader, last.generation_id) == (old.member_id, again.generation_id + 1)
        assert reads(sync(client, last, {old.member_id: ALL_FOUR})) == {0, 1, 2, 3}
    broker = start_broker(store, node_id=3, **QUICK)
    with Wire(broker.port) as client:
        assert heartbeat(client, last) == Code.NONE
        assert kinds(client) == [("classic", "Stable")]


def test_B15_a_group_that_went_down_and_lost_its_coordinator_before_it_had_rebalanced(
    start_broker: Start,
) -> None:
    """A member that had a part of its share only must not be told that all is well."""
    store = MemoryStore()
    broker = start_broker(store, node_id=1, **QUICK)
    with Wire(broker.port) as client:
        filled(client)
        assert beat(client, "new", 0).error_code == Code.NONE
        old = join(client)
        assert reads(sync(client, old)) == set(), "it waits for what the other reads"
        assert beat(client, "new", -1).error_code == Code.NONE
    broker = start_broker(store, node_id=2, **QUICK)
    with Wire(broker.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert heartbeat(client, old) == Code.UNKNOWN_MEMBER_ID
        again = join(client)
        assert reads(sync(client, again, {again.member_id: ALL_FOUR})) == {0, 1, 2, 3}


def test_B15_a_group_that_is_no_consumers_is_left_as_it_is(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
        worker = join(client, kind="connect")
        assert worker.error_code == Code.NONE
        assert beat(client, "new", 0).error_code == Code.GROUP_ID_NOT_FOUND
        who = {"generation_id": worker.generation_id, "member_id": worker.member_id}
        assert client.ask(Api.HEARTBEAT, 4, group_id=GROUP, **who).error_code == Code.NONE


def test_B15_who_is_refused_does_not_change_the_group(start_broker: Start) -> None:
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
        old = join(client)
        assert reads(sync(client, old, {old.member_id: ALL_FOUR})) == {0, 1, 2, 3}
        refused = beat(client, "new", 0, server_assignor="no such")
        assert refused.error_code == Code.UNSUPPORTED_ASSIGNOR
        assert beat(client, "new", 7).error_code == Code.GROUP_ID_NOT_FOUND, "it does not join"
        assert kinds(client) == [("classic", "Stable")]
        assert heartbeat(client, old) == Code.NONE


def test_B15_a_static_member_comes_back_with_the_other_protocol(start_broker: Start) -> None:
    """Classic static members do not say that they leave: who has the name now takes the place, and the former is fenced."""
    broker = start_broker(**QUICK)
    with Wire(broker.port) as client:
        filled(client)
        old = join(client, group_instance_id="one")
        assert reads(sync(client, old, {old.member_id: ALL_FOUR})) == {0, 1, 2, 3}
        new = beat(client, "new", 0, instance_id="one")
        assert (new.error_code, given(new)) == (Code.NONE, {0, 1, 2, 3})
        who = {"generation_id": old.generation_id, "member_id": old.member_id, "group_instance_id": "one"}
        assert client.ask(Api.HEARTBEAT, 4, group_id=GROUP, **who).error_code == Code.FENCED_INSTANCE_ID
        back = join(client, group_instance_id="one")
        assert back.error_code == Code.NONE
        assert [kind for kind, _ in kinds(client)] == ["classic"], "nobody else is there"


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_B15_librdkafka_members_change_their_protocol_one_by_one_and_back(
    start_broker: Start, strategy: str
) -> None:
    """A rolling upgrade and a rolling downgrade of three members; what is written meanwhile is read, all of it."""
    broker = start_broker(**QUICK)
    classic = {"group.protocol": "classic", "partition.assignment.strategy": strategy}
    classic |= {"heartbeat.interval.ms": "100"}
    found: list[Any] = []
    with Wire(broker.port) as client:
        filled(client, partitions=6)
        wrote = 1

        def rolled(members: list[confluent_kafka.Consumer], kind: str) -> None:
            """Everybody has its share, and what is written now is read."""
            nonlocal wrote
            for index in range(6):
                value = b"%d" % wrote
                assert client.produce("t", batch(value), partition=index).error_code == Code.NONE
            wrote += 1
            everything = {(index, offset) for index in range(6) for offset in range(wrote)}
            poll_until(
                members,
                lambda: (
                    sorted(map(len, shares(members))) == [2, 2, 2]
                    and {each[:2] for each in found} == everything
                ),
                found,
            )
            assert set.union(*shares(members)) == set(range(6))
            [(told, _)] = kinds(client)
            assert told == kind

        members: list[confluent_kafka.Consumer] = []
        try:
            for kind, protocol in (("consumer", {}), ("classic", classic)):
                other = "classic" if kind == "consumer" else "consumer"
                while len(members) < 3:
                    members.append(consumer(broker.address, **{"enable.auto.commit": True, **classic}))
                    members[-1].subscribe(["t"])
                rolled(members, other)
                for place in range(3):
                    members[place].close()
                    members[place] = consumer(broker.address, **{"enable.auto.commit": True, **protocol})
                    members[place].subscribe(["t"])
                    is_last = place == 2
                    rolled(members, "consumer" if kind == "consumer" or not is_last else "classic")
        finally:
            for each in members:
                each.close()
