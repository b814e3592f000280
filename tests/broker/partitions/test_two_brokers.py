"""B09: two brokers on one store. The second takes over by fencing, the first says so, clients move by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire
from tests.support.broker.load import Load, check_log, commit, committed
from tests.support.broker.steps import batch, make_topic, read_all, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
# Who leaves says so: nobody waits for the timeout.
CLUSTER: dict[str, Any] = {"heartbeat_interval": 0.05, "heartbeat_timeout": 60.0}
FLAGS = ("--heartbeat-interval", "0.1", "--heartbeat-timeout", "2")


def leader(client: Wire, topic: str = "t") -> int:
    answer = client.ask(Api.METADATA, 9, topics=[{"name": topic}])
    return int(answer.topics[0].partitions[0].leader_id)


def test_B09_the_second_takes_over_by_fencing_and_the_first_points_to_it(start_broker: Start) -> None:
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as old:
        make_topic(old)
        assert old.produce("t", batch(b"by one")).base_offset == 0
        second = start_broker(store, node_id=2)
        with Wire(second.port) as new:
            assert leader(new) == 2
            assert new.produce("t", batch(b"by two")).base_offset == 1
            assert old.produce("t", batch(b"too late")).error_code == Code.NOT_LEADER_OR_FOLLOWER
            first.until(lambda: first.server.broker.cluster.leader("t", 0) == 2)
            assert leader(old) == 2
            assert old.fetch("t", 0).error_code == Code.NOT_LEADER_OR_FOLLOWER
            assert old.produce("t", batch(b"still")).error_code == Code.NOT_LEADER_OR_FOLLOWER
            assert read_all(new) == [(0, b"by one"), (1, b"by two")]


def test_B09_a_real_client_follows_the_fence_by_itself(start_broker: Start) -> None:
    """The producer knows the first broker only; its partition moves under it; every record arrives once."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": first.address,
            "enable.idempotence": True,
            "log_level": 0,
            "retry.backoff.ms": 20,
        }
    )
    places: list[tuple[bytes, int]] = []

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None
        places.append((message.value(), message.offset()))

    for number in range(50):
        producer.produce("t", b"%d" % number, on_delivery=delivered)
    assert producer.flush(20) == 0
    second = start_broker(store, node_id=2)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert new.produce("t", batch(b"taken")).base_offset == 50
        for number in range(50, 100):
            producer.produce("t", b"%d" % number, on_delivery=delivered)
        assert producer.flush(30) == 0
        assert places == [(b"%d" % n, n if n < 50 else n + 1) for n in range(100)]
        assert [offset for offset, _ in read_all(new)] == list(range(101))


def spread(one: LocalBroker, two: LocalBroker, topic: str, count: int) -> tuple[set[int], set[int]]:
    clusters = one.server.broker.cluster, two.server.broker.cluster
    led = tuple({i for i in range(count) if cluster.leads(topic, i)} for cluster in clusters)
    return led[0], led[1]


def test_B09_brokers_of_one_process_do_not_receive_into_each_others_buffers(start_broker: Start) -> None:
    """Each has a loop of its own in a thread of its own: a read of one may happen in the middle of a read of the other."""
    one, two = start_broker(MemoryStore(), node_id=1), start_broker(MemoryStore(), node_id=2)
    with Wire(one.port) as first, Wire(two.port) as second:
        for client in (first, second):
            client.ask(Api.METADATA, 9, topics=[])
        ours, theirs = (next(iter(broker.server._connections)) for broker in (one, two))
        theirs.get_buffer(-1)[:4] = b"mine"
        ours.get_buffer(-1)[:4] = b"only"
        assert bytes(theirs.get_buffer(-1)[:4]) == b"mine"


def test_B09_several_brokers_share_the_partitions_and_agree(start_broker: Start) -> None:
    store = MemoryStore()
    one = start_broker(store, node_id=1, **CLUSTER)
    two = start_broker(store, node_id=2, **CLUSTER)
    with Wire(one.port) as first, Wire(two.port) as second:
        make_topic(first, partitions=8)
        one.until(lambda: all(spread(one, two, "t", 8)) and sum(map(len, spread(one, two, "t", 8))) == 8)
        mine, theirs = spread(one, two, "t", 8)
        assert mine
        assert theirs
        assert not mine & theirs
        second.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        for index in range(8):
            right, wrong = (first, second) if index in mine else (second, first)
            assert right.produce("t", batch(b"v"), partition=index).base_offset == 0
            refused = wrong.produce("t", batch(b"v"), partition=index)
            assert refused.error_code == Code.NOT_LEADER_OR_FOLLOWER
    Confluent().produce(one.address, "t", [(b"%d" % i, b"x", []) for i in range(200)])
    found = Confluent().consume(two.address, "t", 208)
    assert sorted(value for _, _, value, _ in found) == [b"v"] * 8 + [b"x"] * 200  # type: ignore[type-var]


def test_B09_what_moves_to_a_newcomer_is_flushed_before_it_is_fenced(start_broker: Start) -> None:
    """Buffered acks and a planned move: nothing is lost, because the newcomer waits and the owner flushes."""
    store = MemoryStore()
    # The newcomer waits for two intervals: long enough for the owner to flush on a busy machine too.
    buffered = {"flush_on_ack": False, "flush_interval": 3600.0, **CLUSTER, "heartbeat_interval": 1.0}
    one = start_broker(store, node_id=1, **buffered)
    with Wire(one.port) as first:
        make_topic(first, partitions=8)
        for index in range(8):
            first.produce("t", batch(b"acked in the buffer"), partition=index)
        two = start_broker(store, node_id=2, **buffered)
        one.until(
            lambda: bool(spread(one, two, "t", 8)[1]) and len(set.union(*spread(one, two, "t", 8))) == 8
        )
        with Wire(two.port) as second:
            second.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            for index in spread(one, two, "t", 8)[1]:
                assert values(second.fetch("t", 0, partition=index)) == [(0, b"acked in the buffer")]
                answer = second.produce("t", batch(b"goes on"), partition=index)
                found = read_all(second, partition=index)
                assert found == [(0, b"acked in the buffer"), (answer.base_offset, b"goes on")]


def test_B09_groups_move_with_their_log(start_broker: Start) -> None:
    store = MemoryStore()
    one = start_broker(store, node_id=1, offsets_partitions=1)
    with Wire(one.port) as first:
        make_topic(first)
        assert commit(first, "g", 41) == Code.NONE
        two = start_broker(store, node_id=2, offsets_partitions=1)
        with Wire(two.port) as second:
            assert committed(second, "g") == 41
            assert commit(second, "g", 42) == Code.NONE
            assert commit(first, "g", 7) == Code.NOT_COORDINATOR, (
                "two coordinators never both accept a commit"
            )
            one.until(lambda: one.server.broker.cluster.leader("__consumer_offsets", 0) == 2)
            found = first.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
            assert (found.node_id, found.port) == (2, two.port)
            assert committed(second, "g") == 42


@pytest.mark.timeout(180)
def test_B09_when_one_dies_the_other_takes_over_and_clients_lose_nothing(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    one = BrokerProcess(store, "--node-id", "1", *FLAGS, log=tmp_path / "one.log").start()
    two = BrokerProcess(store, "--node-id", "2", *FLAGS, log=tmp_path / "two.log").start()
    try:
        with Wire(one.port) as client:
            make_topic(client, "load", partitions=3)
        load = Load(f"{one.address},{two.address}")
        load.start()
        load.wait_for_more(200)
        one.kill()
        load.wait_for_more(400)
        load.finish()
        assert load.failed == []
    finally:
        for each in (one, two):
            if each.process is not None and each.process.poll() is None:
                each.stop()
    check_log(store, load.acked)


def test_B09_a_partition_comes_back_when_its_second_owner_dies(start_broker: Start) -> None:
    """A → B → A: the first owner was fenced, goes on at the second one's end when that is gone."""
    store = MemoryStore()
    one = start_broker(store, node_id=1, **CLUSTER)
    with Wire(one.port) as first:
        make_topic(first, partitions=8)
        for index in range(8):
            first.produce("t", batch(b"one"), partition=index)
        with LocalBroker(store, node_id=2, **CLUSTER) as two:
            one.until(lambda: bool(spread(one, two, "t", 8)[1]))
            moved = min(spread(one, two, "t", 8)[1])
            with Wire(two.port) as second:
                second.ask(Api.METADATA, 9, topics=[{"name": "t"}])
                assert second.produce("t", batch(b"two"), partition=moved).base_offset == 1
        one.until(lambda: one.server.broker.cluster.leads("t", moved))
        deadline = time.monotonic() + PATIENCE_S
        while (answer := first.produce("t", batch(b"three"), partition=moved)).error_code:
            assert answer.error_code == Code.NOT_LEADER_OR_FOLLOWER
            assert time.monotonic() < deadline
        assert answer.base_offset == 2
        found = read_all(first, partition=moved)
        assert found == [(0, b"one"), (1, b"two"), (2, b"three")]


def test_B09_the_other_broker_may_come_and_go_again_and_again(start_broker: Start) -> None:
    """Each round a share moves away and comes back; the one who stays reads what the other stored, then writes on."""
    store = MemoryStore()
    one = start_broker(store, node_id=1, **CLUSTER)
    cluster = one.server.broker.cluster
    expected: list[tuple[int, bytes | None]] = [(0, b"start")]
    with Wire(one.port) as first:
        make_topic(first, partitions=8)
        for index in range(8):
            first.produce("t", batch(b"start"), partition=index)
        for number in range(3):
            with LocalBroker(store, node_id=2, **CLUSTER) as two:
                one.until(lambda: len(spread(one, two, "t", 8)[1]) >= 1)
                moved = min(spread(one, two, "t", 8)[1])
                with Wire(two.port) as second:
                    added = second.produce("t", batch(b"two-%d" % number), partition=moved)
                    expected.append((added.base_offset, b"two-%d" % number))
            one.until(partial(cluster.leads, "t", moved))
            assert read_all(first, partition=moved) == expected, (
                "before it writes, and so without a fence of its own"
            )
            added = first.produce("t", batch(b"one-%d" % number), partition=moved)
            assert added.error_code == Code.NONE
            expected.append((added.base_offset, b"one-%d" % number))
            assert read_all(first, partition=moved) == expected
        assert [offset for offset, _ in expected] == list(range(7))
        held = [each for each in one.server.store.health()["partitions"] if each["topic"] == "t"]
        assert len(held) == 8, "what was reopened is held once"
