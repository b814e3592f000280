"""B01: the real clients, with their own defaults, against a real broker: what went in comes out, whoever
reads it.
"""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import kafka.codec
import pytest
from confluent_kafka.admin import AdminClient

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from broker_shim.wire.messages import Message
from logstore.format.batches.batch import BatchInfo, split
from tests.support.broker.clients import CLIENTS, AioKafka, Client, Confluent, Sent, kcat
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.patience import PATIENCE_S

needs_kcat = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed: apt install kcat"
)
each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)

RECORDS: list[Sent] = [
    (b"k1", b"plain", []),
    (None, b"no key", []),
    (b"k2", b"", []),
    (b"gone", None, []),
    (b"h", b"headers", [("a", b"1"), ("a", b"2"), ("empty", b""), ("ü", "ß".encode())]),
    (b"\x00\xff", bytes(range(256)) * 40, []),
]


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda client: f"read-by-{client.name}")
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: f"written-by-{client.name}")
def test_B01_every_client_reads_what_every_client_wrote(
    broker: LocalBroker, writer: Client, reader: Client
) -> None:
    writer.produce(broker.address, "cross", RECORDS)
    found = reader.consume(broker.address, "cross", len(RECORDS))
    assert [offset for offset, *_ in found] == list(range(len(RECORDS)))
    assert [(key, value) for _, key, value, _ in found] == [(key, value) for key, value, _ in RECORDS]
    assert [[tuple(h) for h in headers] for *_, headers in found] == [h for *_, h in RECORDS]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@each_client
def test_B01_all_codecs(broker: LocalBroker, client: Client, codec: str) -> None:
    if client.name == "kafka-python" and codec != "none" and not getattr(kafka.codec, f"has_{codec}")():
        pytest.skip(f"kafka-python has no library for {codec}: pip install python-snappy lz4 zstandard")
    records: list[Sent] = [(b"k", b"value %d " % i + b"x" * 200, []) for i in range(300)]
    setting = {"compression_type": None if codec == "none" and client.name != "confluent-kafka" else codec}
    client.produce(broker.address, "coded", records, **setting)
    other = Confluent() if client.name == "aiokafka" else AioKafka()
    assert [v for _, _, v, _ in other.consume(broker.address, "coded", 300)] == [v for _, v, _ in records]
    raw = broker.log("coded").read(0, 1 << 20).raw
    assert raw[22] & 7 == ["none", "gzip", "snappy", "lz4", "zstd"].index(codec), "stored as it was sent"


@pytest.mark.parametrize(
    ("client", "settings"),
    [(Confluent(), {"enable_idempotence": True}), (AioKafka(), {"enable_idempotence": True})],
    ids=lambda each: getattr(each, "name", ""),
)
def test_B01_idempotent_producers(broker: LocalBroker, client: Client, settings: dict[str, object]) -> None:
    records: list[Sent] = [(b"k", b"%d" % i, []) for i in range(500)]
    client.produce(broker.address, "once", records, **settings)
    found = client.consume(broker.address, "once", 500)
    assert [value for _, _, value, _ in found] == [value for _, value, _ in records]
    assert any(batch.producer_id >= 0 for batch in batches(broker, "once"))


def batches(broker: LocalBroker, topic: str) -> list[BatchInfo]:
    return split(broker.log(topic).read(0, 1 << 20).raw)


@each_client
def test_B01_a_group_resumes_where_it_committed(broker: LocalBroker, client: Client) -> None:
    records: list[Sent] = [(b"k", b"%d" % i, []) for i in range(20)]
    client.produce(broker.address, "resume", records[:12])
    assert [o for o, *_ in client.consume(broker.address, "resume", 12)] == list(range(12))
    client.produce(broker.address, "resume", records[12:])
    assert [o for o, *_ in client.consume(broker.address, "resume", 8)] == list(range(12, 20))


def test_B01_a_member_joining_and_leaving_moves_partitions_and_loses_nothing(broker: LocalBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([confluent_kafka.admin.NewTopic("shared", 4, 1)]).values():
        future.result(PATIENCE_S)
    options = {
        "bootstrap.servers": broker.address,
        "group.id": "team",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }
    first, second = (confluent_kafka.Consumer(options) for _ in range(2))
    seen: dict[tuple[int, int], bytes] = {}

    def poll(*consumers: confluent_kafka.Consumer, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline
            for consumer in consumers:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    seen[(message.partition(), message.offset())] = message.value()

    first.subscribe(["shared"])
    poll(first, until=lambda: len(first.assignment()) == 4)
    second.subscribe(["shared"])
    poll(first, second, until=lambda: len(first.assignment()) == len(second.assignment()) == 2)
    Confluent().produce(broker.address, "shared", [(b"%d" % i, b"v%d" % i, []) for i in range(200)])
    poll(first, second, until=lambda: len(seen) == 200)
    first.commit(asynchronous=False)
    first.close()
    poll(second, until=lambda: len(second.assignment()) == 4)
    Confluent().produce(broker.address, "shared", [(b"%d" % i, b"w%d" % i, []) for i in range(100)])
    poll(second, until=lambda: len(seen) == 300)
    second.close()
    assert set(seen.values()) == {b"v%d" % i for i in range(200)} | {b"w%d" % i for i in range(100)}


def test_B01_static_members_return_without_a_rebalance(broker: LocalBroker) -> None:
    Confluent().produce(broker.address, "static", [(b"k", b"v", [])])
    options = {
        "bootstrap.servers": broker.address,
        "group.id": "fixed",
        "auto.offset.reset": "earliest",
        "group.instance.id": "one",
        "enable.auto.commit": False,
    }

    def generation() -> int:
        found = [
            s.groups["fixed"]
            for s in broker.run(broker.server.broker.coordinator.all_shards())
            if "fixed" in s.groups
        ]
        return found[0].generation

    for _ in range(3):
        consumer = confluent_kafka.Consumer(options)
        consumer.subscribe(["static"])
        assert consumer.consume(1, 20), "the record is there each time: nothing was committed"
        consumer.unsubscribe()  # a static member does not leave
        consumer.close()
    assert broker.call(lambda: None) is None
    assert generation() == 1


@needs_kcat
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_B01_kcat_produces_consumes_and_lists(broker: LocalBroker, codec: str) -> None:
    lines = b"".join(b"k%d:value-%d\n" % (i, i) for i in range(100))
    kcat(broker.address, "-P", "-t", "cats", "-K:", "-z", codec, given=lines)
    out = kcat(broker.address, "-C", "-t", "cats", "-e", "-q", "-o", "beginning", "-f", "%o %k:%s\n")
    assert out == b"".join(b"%d k%d:value-%d\n" % (i, i, i) for i in range(100))
    assert b'topic "cats" with 1 partitions' in kcat(broker.address, "-L")


@needs_kcat
def test_B01_kcat_as_a_group_member(broker: LocalBroker) -> None:
    kcat(broker.address, "-P", "-t", "cats", given=b"one\ntwo\n")
    flags = ("-q", "-e", "-X", "auto.offset.reset=earliest", "-G", "herd", "cats")
    assert kcat(broker.address, *flags) == b"one\ntwo\n"
    kcat(broker.address, "-P", "-t", "cats", given=b"three\n")
    assert kcat(broker.address, *flags) == b"three\n"


def test_B01_clients_share_a_topic_while_it_grows(broker: LocalBroker) -> None:
    """Three writers and one reader at the same time: every record once, each writer's in its order."""
    count = 300
    writers = [
        threading.Thread(
            target=client.produce,
            args=(
                broker.address,
                "busy",
                [(None, b"%s %d" % (client.name.encode(), i), []) for i in range(count)],
            ),
        )
        for client in CLIENTS
    ]
    Confluent().produce(broker.address, "busy", [(None, b"first 0", [])])
    for writer in writers:
        writer.start()
    found = [v for _, _, v, _ in Confluent().consume(broker.address, "busy", 3 * count + 1)]
    for writer in writers:
        writer.join()
    for client in CLIENTS:
        mine = [v for v in found if v is not None and v.startswith(client.name.encode())]
        assert mine == [b"%s %d" % (client.name.encode(), i) for i in range(count)]


def test_B01_versions_that_were_run_are_those_the_documentation_names() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    for name, version in (
        ("confluent-kafka", confluent_kafka.__version__),
        ("kafka-python", kafka.__version__),
        ("aiokafka", aiokafka.__version__),
    ):
        assert f"{name} {version.rsplit('.', 1)[0]}" in page


def test_B01_a_member_that_falls_silent_loses_its_partitions_to_the_others(broker: LocalBroker) -> None:
    """One member joins on the wire, takes its share, and never sends a heartbeat; the real client gets everything."""
    with Wire(broker.port) as silent:
        make_topic(silent, "t", partitions=2)

        def join(member_id: str) -> Message:
            protocols = [{"name": "range", "metadata": subscription("t")}]
            return silent.ask(
                Api.JOIN_GROUP,
                5,
                group_id="g",
                session_timeout=3000,
                rebalance_timeout=5000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=protocols,
            )

        told = join("")
        assert told.error_code == Code.MEMBER_ID_REQUIRED
        joined = join(told.member_id)
        assert joined.leader == told.member_id
        share = [{"member_id": told.member_id, "assignment": b"everything"}]
        request = {"group_id": "g", "generation_id": joined.generation_id, "member_id": told.member_id}
        assert silent.ask(Api.SYNC_GROUP, 3, assignments=share, **request).assignment == b"everything"

        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "g",
                "partition.assignment.strategy": "range",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        deadline = time.monotonic() + PATIENCE_S
        while len(consumer.assignment()) < 2:
            consumer.poll(0.05)
            assert time.monotonic() < deadline
        consumer.close()
        late = silent.ask(Api.HEARTBEAT, 3, **request)
        assert late.error_code == Code.UNKNOWN_MEMBER_ID


def subscription(topic: str) -> bytes:
    """Version 0 of the consumers' own protocol: topics, and no user data."""
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)


def test_B10_refused_joins_leave_nothing_behind(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        for number in range(20):
            answer = client.ask(
                Api.JOIN_GROUP,
                3,
                group_id=f"junk-{number}",
                session_timeout=1,
                rebalance_timeout=1,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            assert answer.error_code == Code.INVALID_SESSION_TIMEOUT
        shards = broker.run(broker.server.broker.coordinator.all_shards())
        assert sum(len(shard.groups) for shard in shards) == 0
