"""B08: the broker is killed, again and again, under load: nothing acked is lost, no offset is given twice, groups resume."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logstore
from broker_shim.groups.group_records import decode_committed
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire, produce_body
from tests.support.broker.load import PARTITIONS, Load, check_log, commit, committed
from tests.support.broker.steps import batch, make_topic, values
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port


@pytest.mark.parametrize(
    "kills",
    [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
    ids=lambda k: f"{k}-kills",
)
def test_B08_kill_9_under_idempotent_load(tmp_path: Path, kills: int) -> None:
    store = f"file://{tmp_path}/store"
    rng = random.Random(kills)
    broker = BrokerProcess(store, log=tmp_path / "broker.log").start()
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("load", PARTITIONS, 1)])["load"].result(PATIENCE_S)
    load = Load(broker.address)
    load.start()
    try:
        for _ in range(kills):
            load.wait_for_more(rng.randrange(50, 400))
            broker.kill()
            broker = BrokerProcess(store, port=broker.port, log=tmp_path / "broker.log").start()
        load.wait_for_more(200)
        load.finish()
    finally:
        load._stop.set()
        broker.stop()
    assert load.failed == []
    check_log(store, load.acked)


def test_B08_a_group_resumes_after_a_kill(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    broker = BrokerProcess(store, "--group-initial-rebalance-delay", "0.05", log=tmp_path / "log").start()
    Confluent().produce(broker.address, "t", [(b"k", b"%d" % i, []) for i in range(10)])
    assert len(Confluent().consume(broker.address, "t", 10)) == 10
    broker.kill()
    with BrokerProcess(
        store, "--group-initial-rebalance-delay", "0.05", port=broker.port, log=tmp_path / "log"
    ) as again:
        Confluent().produce(again.address, "t", [(b"k", b"next", [])])
        assert Confluent().consume(again.address, "t", 1) == [(10, b"k", b"next", [])]


def test_B08_members_go_on_across_a_restart_without_a_rebalance(tmp_path: Path) -> None:
    """The group itself is in the log too: a consumer that lives keeps its partitions and its generation."""
    store, port = f"file://{tmp_path}/store", free_port()
    flags = ("--group-initial-rebalance-delay", "0.05")
    broker = BrokerProcess(store, *flags, port=port, log=tmp_path / "log").start()
    Confluent().produce(broker.address, "t", [(b"k", b"before", [])])
    rebalances: list[int] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"], on_assign=lambda _, partitions: rebalances.append(len(partitions)))
    assert read_one(consumer) == b"before"
    broker.kill()
    with BrokerProcess(store, *flags, port=port, log=tmp_path / "log") as again:
        Confluent().produce(again.address, "t", [(b"k", b"after", [])])
        assert read_one(consumer) == b"after"
        consumer.close()
    assert rebalances == [1]


def read_one(consumer: confluent_kafka.Consumer) -> bytes | None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            return message.value()  # type: ignore[no-any-return]
    raise AssertionError("nothing came")


def test_B08_offsets_that_consumers_have_seen_are_never_given_to_other_records(tmp_path: Path) -> None:
    """Acked in the buffer, read by a consumer, lost with the process: the consumer goes on behind the gap."""
    store = f"file://{tmp_path}/store"
    flags = ("--flush-on-ack", "false", "--flush-interval", "3600")
    broker = BrokerProcess(store, *flags, log=tmp_path / "log").start()
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"seen", b"and lost"))
        assert values(client.fetch("t", 0)) == [(0, b"seen"), (1, b"and lost")]
    broker.kill()
    with BrokerProcess(store, *flags, log=tmp_path / "log") as again, Wire(again.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        waiting = client.fetch("t", 2, wait_ms=0)
        assert waiting.error_code == Code.NONE, "the consumer's place is still valid"
        asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}]
        ends = client.ask(Api.OFFSET_FOR_LEADER_EPOCH, 3, topics=[{"topic": "t", "partitions": asked}])
        assert ends.topics[0].partitions[0].end_offset >= 2, "and a client that asks learns of no truncation"
        answer = client.produce("t", batch(b"new"))
        assert answer.base_offset >= 2
        assert values(client.fetch("t", 2)) == [(answer.base_offset, b"new")]


def test_B08_sigterm_finishes_flushes_and_exits_cleanly(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    broker = BrokerProcess(
        store, "--flush-on-ack", "false", "--flush-interval", "3600", log=tmp_path / "log"
    ).start()
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        make_topic(client)
        client.produce("t", batch(b"only", b"buffered"))
        waiting = reader.send_fetch("t", 2, wait_ms=60_000)
        assert broker.process is not None
        broker.process.terminate()
        assert values(reader.fetched(11, waiting)) == [], "who waits gets an answer, not a reset"
    assert broker.process.wait(PATIENCE_S) == 0
    with logstore.open(store, writer="read_only") as opened:
        assert [r.value for r in opened.topic("t").partition(0).records()] == [b"only", b"buffered"]


def test_B08_the_internal_topic_is_compacted(
    start_broker: Callable[..., LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of commits of one group: a restart reads a handful of records and finds the last commit."""
    from broker_shim.partitions import state_log

    monkeypatch.setattr(state_log, "COMPACT_FROM_RECORDS", 50)
    store = MemoryStore()
    first = start_broker(store, offsets_partitions=1)
    with Wire(first.port) as client:
        make_topic(client)
        for offset in range(500):
            assert commit(client, "g", offset) == Code.NONE
        log = first.log("__consumer_offsets")
        first.until(
            lambda: first.server.broker.partitions.hosted("__consumer_offsets", 0).low_watermark > 300  # type: ignore[union-attr]
        )
        assert log.durable_high_watermark >= 500
    second = start_broker(store, offsets_partitions=1, node_id=2)
    with Wire(second.port) as client:
        assert committed(client, "g") == 499
    low = second.log("__consumer_offsets").low_watermark
    assert second.log("__consumer_offsets").durable_high_watermark - low < 200


def test_B01_commits_wait_for_room_in_order_while_producers_fill_the_buffer(
    start_broker: Callable[..., LocalBroker],
) -> None:
    """The data path has taken all memory: a commit is delayed, not refused, and a later one never overtakes it."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store, max_buffered_bytes=16_000, max_message_bytes=16_000, offsets_partitions=1)
    clients = [Wire(broker.port) for _ in range(3)]
    try:
        make_topic(clients[0])
        clients[0].produce("t", batch(b"take"))
        assert commit(clients[0], "g", 0) == Code.NONE
        with store.hold("put", prefix="lanes/", suffix=".seg") as gate:
            records = batch(
                b"x" * (16_000 - 20 - len(batch(b"")) - 4)
            )  # less room is left than a commit takes
            body = produce_body("t", records, 0, -1, 9, 20_000)
            full = clients[0].send(Api.PRODUCE, 9, body)
            gate.wait_held()
            sent = [clients[n].send(Api.OFFSET_COMMIT, 7, commit_body("g", n)) for n in (1, 2)]
            [group_shard] = broker.server.broker.coordinator.shards
            broker.until(lambda: len(group_shard.log._backlog) == 2)
            gate.open()
        assert clients[0].produced(9, full).error_code == Code.NONE
        for number, correlation in zip((1, 2), sent, strict=True):
            answer = clients[number].answer(Api.OFFSET_COMMIT, 7, correlation)
            assert answer.topics[0].partitions[0].error_code == Code.NONE
        last = broker.call(lambda: group_shard.offsets["g"][("t", 0)].offset)
        keys = [r for r in broker.log("__consumer_offsets").records() if r.key is not None]
        newest = keys[-1].value
        assert newest is not None
        assert decode_committed(newest).offset == last, "memory and log agree on which came last"
    finally:
        for client in clients:
            client.socket.close()


def commit_body(group: str, offset: int) -> bytes:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    return messages.encode_request(Api.OFFSET_COMMIT, 7, values)
