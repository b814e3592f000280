"""B07: retried batches are stored once, out-of-order sequences get the right error, and a restart forgets neither."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest

import logstore
from broker_shim.partitions import producer_recovery
from broker_shim.partitions.producers import ProducerTable
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches import sequences
from logstore.format.batches.batch import read_info
from logstore.format.batches.sequences import MODULUS
from logstore.layout.broker import PRODUCERS_PREFIX
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire, produce_body
from tests.support.broker.idempotence import PID, batch, info_of, outcome
from tests.support.broker.steps import make_topic, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]


def test_B07_a_retry_is_answered_with_the_first_offset_and_stored_once(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert outcome(client, batch(0, 3)) == (Code.NONE, 0)
        assert outcome(client, batch(3, 2)) == (Code.NONE, 3)
        assert outcome(client, batch(0, 3)) == (Code.NONE, 0)
        assert outcome(client, batch(3, 2)) == (Code.NONE, 3)
        assert [offset for offset, _ in values(client.fetch("t", 0))] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (batch(9), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(1, 2), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(0, 2), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(5, pid=PID + 1), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(3, epoch=2), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(0, 3, epoch=0), Code.INVALID_PRODUCER_EPOCH),
    ],
    ids=["gap", "overlap", "other-cut", "unknown-producer", "new-epoch-not-at-0", "old-epoch"],
)
def test_B07_wrong_sequences_get_the_right_error_and_take_no_offset(
    broker: LocalBroker, raw: bytes, code: Code
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert outcome(client, batch(0, 3, epoch=1)) == (Code.NONE, 0)
        info = read_info(raw)
        same = (
            info.producer_id == PID and info.producer_epoch == 0 and code is not Code.INVALID_PRODUCER_EPOCH
        )
        sent = batch(info.base_sequence, info.count, epoch=1) if same else raw
        assert outcome(client, sent) == (code, -1)
        assert outcome(client, batch(3, epoch=1)) == (Code.NONE, 3)


def test_B07_a_new_epoch_starts_again_at_0(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        outcome(client, batch(0, 3))
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, 3)
        assert outcome(client, batch(3)) == (Code.INVALID_PRODUCER_EPOCH, -1)


def test_B07_a_retry_while_the_first_attempt_is_in_flight_waits_for_it(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client, Wire(broker.port) as again:
        make_topic(client)
        outcome(client, batch(0))
        with store.hold("put", suffix=".seg") as gate:
            late = client.produce("t", batch(1, 2), timeout=50)
            assert late.error_code == Code.REQUEST_TIMED_OUT
            gate.wait_held()
            retry = again.send(Api.PRODUCE, 9, produce_body("t", batch(1, 2), 0, -1, 9, 20_000))
            following = again.send(Api.PRODUCE, 9, produce_body("t", batch(3), 0, -1, 9, 20_000))
            gate.open()
        assert again.produced(9, retry).base_offset == 1
        assert again.produced(9, following).base_offset == 3
        assert [v for _, v in values(client.fetch("t", 0))] == [b"v0", b"v1", b"v2", b"v3"]


def test_B07_five_in_flight_are_remembered(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        for sequence in range(8):
            assert outcome(client, batch(sequence)) == (Code.NONE, sequence)
        for sequence in range(3, 8):
            assert outcome(client, batch(sequence)) == (Code.NONE, sequence)
        assert outcome(client, batch(2)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_B07_state_is_rebuilt_from_the_log_after_a_restart(start_broker: Start) -> None:
    store = MemoryStore()
    first = start_broker(store)
    with Wire(first.port) as client:
        make_topic(client)
        outcome(client, batch(0, 3))
        outcome(client, batch(3, 2))
        outcome(client, batch(0, pid=PID + 5))
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(3, 2)) == (Code.NONE, 3)
        assert outcome(client, batch(9)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert outcome(client, batch(5)) == (Code.NONE, 6)
        assert outcome(client, batch(1, pid=PID + 5)) == (Code.NONE, 7)


def test_B07_a_snapshot_spares_reading_the_whole_log(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_recovery, "SNAPSHOT_EVERY_BYTES", 2_000)
    store = MemoryStore()
    first = start_broker(store)
    with Wire(first.port) as client:
        make_topic(client)
        for sequence in range(40):
            outcome(client, batch(sequence))
    first.until(lambda: any(True for _ in store.list(PRODUCERS_PREFIX)))
    [info] = store.list(PRODUCERS_PREFIX)
    table, offset = ProducerTable.load(store.get(info.key))
    assert 0 < offset <= 40
    assert len(table) == 1

    reads: list[int] = []
    from logstore.engine.partition.internal import Partition

    real = Partition.read

    def counted(self: Partition, start: int, *arguments: object, **named: object) -> object:
        reads.append(start)
        return real(self, start, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "read", counted)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(39)) == (Code.NONE, 39)
        assert outcome(client, batch(40)) == (Code.NONE, 40)
    assert min(reads, default=offset) >= offset


def test_B07_a_snapshot_knows_nothing_that_a_crash_could_take_back() -> None:
    table = ProducerTable()
    for sequence in range(4):
        table.replay(b"", info_of(sequence, offset=sequence))
    table.remember(info_of(4), None, pending=object())
    loaded, offset = ProducerTable.load(table.dump(2))
    assert offset == 2
    assert loaded.check(info_of(1)).duplicate is not None
    assert loaded.check(info_of(2)).duplicate is None, "offset 2 was not durable: a retry must be stored"
    assert loaded.check(info_of(2)).code is Code.NONE
    with pytest.raises(ValueError, match="not a table"):
        ProducerTable.load(b"[]")


def test_B07_sequences_wrap_around() -> None:
    table = ProducerTable(complete=False)
    table.replay(b"", info_of(MODULUS - 2, count=2))
    assert table.check(info_of(0)).code is Code.NONE
    assert table.check(info_of(1)).code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_B07_the_number_of_remembered_producers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MAX_PRODUCERS", 100)
    table = ProducerTable()
    for pid in range(110):
        table.replay(b"", info_of(0)._replace(producer_id=pid))
    assert len(table) == 100
    assert table.check(info_of(5)._replace(producer_id=3)).code is Code.UNKNOWN_PRODUCER_ID, "forgotten"
    assert table.check(info_of(0)._replace(producer_id=3)).code is Code.NONE
    assert table.check(info_of(5)._replace(producer_id=50)).code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_B07_a_snapshot_leaves_out_nothing_of_an_upload_that_is_being_acked(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches 2 and 3 share an upload. The snapshot is due at the ack of 2, when 3 is durable and not acked yet."""
    monkeypatch.setattr(producer_recovery, "SNAPSHOT_EVERY_BYTES", 3 * len(batch(0)))
    store = GatedStore(MemoryStore())
    first = start_broker(store)
    with Wire(first.port) as client:
        make_topic(client)
        assert outcome(client, batch(0)) == (Code.NONE, 0)
        with store.hold("put", suffix=".seg") as gate:
            sent = []
            for sequence in (1, 2, 3):
                body = produce_body("t", batch(sequence), 0, -1, 9, 20_000)
                sent.append(client.send(Api.PRODUCE, 9, body))
                gate.wait_held()
            first.until(lambda: first.server.broker.counters.requests[Api.PRODUCE] == 4)
            gate.open()
        assert [client.produced(9, each).base_offset for each in sent] == [1, 2, 3]
    first.until(lambda: any(True for _ in store.list(PRODUCERS_PREFIX)))
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(3)) == (Code.NONE, 3)
        assert outcome(client, batch(4)) == (Code.NONE, 4)
        assert [v for _, v in values(client.fetch("t", 0))] == [b"v0", b"v1", b"v2", b"v3", b"v4"]


def test_B07_a_snapshot_of_before_what_was_deleted_says_that_the_rest_is_lost(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the producer stored after the snapshot is gone: which sequence comes next is not known any more."""
    monkeypatch.setattr(producer_recovery, "SNAPSHOT_EVERY_BYTES", 2 * len(batch(0)))
    store = MemoryStore()
    first = start_broker(store)
    with Wire(first.port) as client:
        make_topic(client)
        for sequence in range(3):
            assert outcome(client, batch(sequence)) == (Code.NONE, sequence)
        first.until(lambda: any(True for _ in store.list(PRODUCERS_PREFIX)))
        asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
        deleted = client.ask(Api.DELETE_RECORDS, 2, topics=asked, timeout=10_000)
        assert deleted.topics[0].partitions[0].low_watermark == 3
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(3)) == (Code.UNKNOWN_PRODUCER_ID, -1)
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, 3)
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, 3)


def test_B07_a_snapshot_taken_while_five_are_in_flight_knows_the_one_before_them() -> None:
    """A crash takes those five. Their producer sends them again, and is known."""
    table = ProducerTable()
    for sequence in range(6):
        table.replay(b"", info_of(sequence, offset=sequence))
    for sequence in range(6, 11):
        table.remember(info_of(sequence), None, pending=object())
    loaded, _ = ProducerTable.load(table.dump(6))
    assert loaded.check(info_of(5)).duplicate is not None
    assert loaded.check(info_of(6)).code is Code.NONE
    assert loaded.check(info_of(7)).code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("by", ["client", "service"])
def test_B07_a_producer_goes_on_in_a_topic_that_was_recreated(start_broker: Start, by: str) -> None:
    """Its next sequence is not 0, and nothing of it is stored there: to librdkafka a refusal would be the end."""
    store = MemoryStore()
    broker = start_broker(store)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0}
    )
    failures: list[object] = []

    def send(number: int) -> None:
        producer.produce(
            "t", b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        assert producer.flush(PATIENCE_S) == 0

    with Wire(broker.port) as client:
        make_topic(client)
        send(0)
        send(1)
        if by == "client":
            client.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=10_000)
            make_topic(client)
        else:
            with logstore.open(store) as service:
                service.delete_topic("t")
                service.create_topic("t")
        send(2)
        send(3)
        assert failures == []
        assert values(client.fetch("t", 0)) == [(0, b"2"), (1, b"3")]


def test_B07_a_producer_goes_on_in_a_topic_that_was_recreated_while_no_broker_ran(
    start_broker: Start,
) -> None:
    store = MemoryStore()
    with LocalBroker(store) as first, Wire(first.port) as client:
        make_topic(client)
        assert [outcome(client, batch(sequence)) for sequence in range(2)] == [(Code.NONE, 0), (Code.NONE, 1)]
    with logstore.open(store) as service:
        service.delete_topic("t")
        service.create_topic("t")
    second = start_broker(store)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(2)) == (Code.UNKNOWN_PRODUCER_ID, -1)
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, 0)
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, 0), "a retry is not stored twice"
        assert outcome(client, batch(2)) == (Code.INVALID_PRODUCER_EPOCH, -1)
        assert outcome(client, batch(2, epoch=1)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
