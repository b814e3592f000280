"""B02, B03: what an ack means, over the real wire and with the store held by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.broker.clients import Confluent
from tests.support.broker.harness import LocalBroker, Wire, produce_body
from tests.support.broker.steps import batch, make_topic, owned, owned_buffered, read_all, values
from tests.support.lanes.entries import entries

Start = Callable[..., LocalBroker]
READ_COMMITTED = 1


def test_B02_by_default_an_ack_waits_for_the_store(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client, Wire(broker.port) as other:
        owned(client, broker)
        with store.hold("put", suffix=".seg") as gate:
            correlation = client.send(*_produce(b"second"))
            gate.wait_held()
            assert values(other.fetch("t", 0)) == [(0, b"first")], "an unacked record is not shown"
            log = broker.log("t")
            assert (log.durable_high_watermark, log.buffered_high_watermark) == (1, 1)
            gate.release()
        answer = client.produced(9, correlation)
        assert (answer.error_code, answer.base_offset) == (Code.NONE, 1)
        assert log.durable_high_watermark == log.buffered_high_watermark == 2
        assert values(other.fetch("t", 1)) == [(1, b"second")]


def test_B02_acks_1_means_the_same_as_all(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client:
        owned(client, broker)
        with store.hold("put", suffix=".seg") as gate:
            correlation = client.send(*_produce(b"second", acks=1))
            gate.wait_held()
            client.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(10)
            gate.release()
        assert client.produced(9, correlation).base_offset == 1


def _produce(value: bytes, acks: int = -1, timeout: int = 10_000) -> tuple[Api, int, bytes]:
    return Api.PRODUCE, 9, produce_body("t", batch(value), 0, acks, 9, timeout)


def test_B03_read_after_ack_through_the_real_fetch_path_before_any_flush(start_broker: Start) -> None:
    """The seed's first end-to-end test: flush-on-ack off, every upload held, and the record is consumable."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store, flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        owned_buffered(client)
        broker.log("t").flush(10)
        with store.hold("put", suffix=".seg") as gate:
            answer = client.produce("t", batch(b"seen", b"at once"))
            assert (answer.error_code, answer.base_offset) == (Code.NONE, 1)
            found = client.fetch("t", 1)
            assert values(found) == [(1, b"seen"), (2, b"at once")]
            assert (found.high_watermark, found.last_stable_offset) == (3, 1)
            assert broker.log("t").durable_high_watermark == 1, "the durable high watermark is not touched"
            assert gate.held == (), "nor was an upload even tried"


def test_B03_contrast_without_the_raised_watermark_the_same_fetch_finds_nothing(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed's bug, put back: `read` would serve the buffer, and the fetch stops at a mark that only a flush moves."""
    monkeypatch.setattr(PartitionState, "advance_high_watermark", lambda self, end_offset: None)
    store = MemoryStore()
    broker = start_broker(store, flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce("t", batch(b"acked")).error_code == Code.NONE
        assert values(client.fetch("t", 0)) == []


def test_B03_in_the_default_path_raising_the_watermark_changes_nothing(broker: LocalBroker) -> None:
    """The seed's second test: with flush-on-ack the buffered high watermark is raised by the flush itself, to the
    same place."""
    with Wire(broker.port) as client:
        owned(client, broker)
        for number in range(5):
            answer = client.produce("t", batch(b"%d" % number))
            log = broker.log("t")
            assert log.buffered_high_watermark == log.durable_high_watermark == answer.base_offset + 1


def test_B03_acks_0_is_consumable_at_once(start_broker: Start) -> None:
    broker = start_broker(flush_interval=3600.0)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        owned(client, broker)
        waiting = reader.send_fetch("t", 1, wait_ms=20_000)
        client.produce("t", batch(b"fire and forget"), acks=0)
        found = reader.fetched(11, waiting)
        assert values(found) == [(1, b"fire and forget")]
        assert found.last_stable_offset == 1


def test_B03_a_real_client_reads_before_any_flush(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    Confluent().produce(broker.address, "quick", [(b"k", b"%d" % i, []) for i in range(100)])
    # librdkafka reads committed records unless told otherwise: for it, only what is in the object store.
    options = {"enable_auto_commit": False, "isolation_level": "read_uncommitted"}
    found = Confluent().consume(broker.address, "quick", 100, **options)
    assert [value for _, _, value, _ in found] == [b"%d" % i for i in range(100)]
    assert broker.log("quick").durable_high_watermark == 0


@pytest.mark.parametrize("version", range(3, 11))
def test_B01_every_produce_version(broker: LocalBroker, version: int) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        answer = client.produce("t", batch(b"one", b"two"), version=version)
        assert (answer.error_code, answer.base_offset) == (Code.NONE, 0)
        assert client.produce("nowhere", batch(b"x"), version=version).error_code == 3


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), Code.CORRUPT_MESSAGE),
        (lambda raw: raw[:-1], Code.CORRUPT_MESSAGE),
        (lambda raw: raw[:16] + b"\x01" + raw[17:], Code.CORRUPT_MESSAGE),
        (lambda raw: raw + b"junk", Code.CORRUPT_MESSAGE),
        (lambda raw: b"", Code.INVALID_RECORD),
    ],
)
def test_B10_a_bad_record_set_takes_no_offset_and_the_connection_lives_on(
    broker: LocalBroker, damage: Callable[[bytes], bytes], code: Code
) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        assert client.produce("t", damage(batch(b"bad"))).error_code == code
        assert client.produce("t", batch(b"good")).base_offset == 1


def test_B02_a_batch_that_is_too_large_is_refused_as_such(start_broker: Start) -> None:
    broker = start_broker(max_message_bytes=10_000)
    with Wire(broker.port) as client:
        owned(client, broker)
        assert client.produce("t", batch(b"x" * 20_000)).error_code == Code.MESSAGE_TOO_LARGE
        assert client.produce("t", batch(b"x" * 5_000)).base_offset == 1


def test_B02_several_batches_in_one_record_set_get_right_offsets(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce("t", batch(b"a", b"b") + batch(b"c") + batch(b"d", b"e")).base_offset == 0
        found = client.fetch("t", 0)
        assert values(found) == [(i, bytes([97 + i])) for i in range(5)]


def test_B02_a_store_that_is_down_gives_a_retriable_error_and_never_a_false_ack(start_broker: Start) -> None:
    store = FaultyStore(MemoryStore(), seed=1)
    broker = start_broker(store)
    with Wire(broker.port) as client, Wire(broker.port) as other:
        owned(client, broker)
        assert values(other.fetch("t", 0)) == [(0, b"first")], "so it is cached"
        store.down()
        answer = client.produce("t", batch(b"during"), timeout=100)
        assert answer.error_code == Code.REQUEST_TIMED_OUT
        assert values(other.fetch("t", 0)) == [(0, b"first")], (
            "cached and unacked: reads go on, nothing is shown"
        )
        store.heal()
        broker.until(lambda: broker.log("t").durable_high_watermark == 2)
        assert values(other.fetch("t", 1)) == [(1, b"during")], (
            "it was taken, in order, and said to be unknown"
        )


def test_B02_a_full_buffer_makes_producers_wait_and_not_fail(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store, max_buffered_bytes=40_000, max_message_bytes=20_000, flush_interval=0.01)
    with Wire(broker.port) as client:
        owned(client, broker)
        with store.hold("put", suffix=".seg") as gate:
            sent = [client.send(*_large(number)) for number in range(6)]
            gate.wait_held()
            health = broker.server.store.health()
            assert health["buffered_bytes"] <= 40_000
            gate.open()
        answers = [client.produced(9, correlation) for correlation in sent]
        assert [(a.error_code, a.base_offset) for a in answers] == [(0, i + 1) for i in range(6)]


def _large(number: int) -> tuple[Api, int, bytes]:
    return Api.PRODUCE, 9, produce_body("t", batch(b"%d" % number + b"x" * 15_000), 0, -1, 9, 20_000)


def test_B02_what_waits_for_room_past_its_timeout_is_not_stored_later(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store, max_buffered_bytes=20_000, max_message_bytes=20_000, flush_interval=0.01)
    with Wire(broker.port) as client, Wire(broker.port) as late:
        owned(client, broker)
        with store.hold("put", suffix=".seg") as gate:
            first = client.send(*_large(1))
            gate.wait_held()
            refused = late.produce("t", batch(b"x" * 15_000), timeout=50)
            assert refused.error_code == Code.REQUEST_TIMED_OUT
            gate.open()
        assert client.produced(9, first).base_offset == 1
        assert client.produce("t", batch(b"next")).base_offset == 2


def test_B02_partitions_of_one_request_wait_for_no_more_than_one_commit_of_another(
    start_broker: Start,
) -> None:
    """The first of them may be on its way before the others are there; those share the next one."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client:
        make_topic(client, partitions=3)
        for index in range(3):
            client.produce("t", batch(b"take"), partition=index)
        data = [{"index": index, "records": batch(b"%d" % index)} for index in range(3)]
        request = {"acks": -1, "timeout": 10_000, "topic_data": [{"name": "t", "partition_data": data}]}
        with store.hold("put", suffix=".seg") as gate:
            correlation = client.send(Api.PRODUCE, 9, messages.encode_request(Api.PRODUCE, 9, request))
            gate.wait_held()
            broker.until(lambda: all(_appended(broker, index) == 2 for index in range(3)))
            gate.open()
        answer = client.answer(Api.PRODUCE, 9, correlation)
        assert len(_segments(store)) <= 3 + 2
        rows = [(p.index, p.error_code, p.base_offset) for p in answer.responses[0].partition_responses]
        assert rows == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]


def test_B02_pipelined_requests_of_one_connection_share_uploads_and_are_answered_in_order(
    start_broker: Start,
) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client:
        owned(client, broker)
        commits = broker.log("t")._internal.epoch, len(_segments(store))
        with store.hold("put", suffix=".seg") as gate:
            sent = [client.send(*_produce(b"%d" % number)) for number in range(20)]
            gate.wait_held()
            gate.open()
        answers = [client.produced(9, correlation).base_offset for correlation in sent]
        assert answers == list(range(1, 21))
        assert len(_segments(store)) - commits[1] <= 5


def _appended(broker: LocalBroker, partition: int) -> int:
    """How many records have an offset."""
    writer = broker.log("t", partition)._internal._writer
    assert isinstance(writer, ExclusiveWriter)
    return writer.next_offset


def _segments(store: GatedStore) -> list[str]:
    """Of the broker's lane."""
    return entries(store)


def test_B02_room_that_another_partition_frees_is_found_too(start_broker: Start) -> None:
    """The buffer is full of one partition's records; a second one waits, and goes on when the first is stored."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store, max_buffered_bytes=20_000, max_message_bytes=20_000, flush_interval=0.01)
    with Wire(broker.port) as client, Wire(broker.port) as other:
        make_topic(client, partitions=2)
        for index in range(2):
            client.produce("t", batch(b"take"), partition=index)
        with store.hold("put", suffix=".seg") as gate:
            first = client.send(*_large(1))
            gate.wait_held()
            body = produce_body("t", batch(b"x" * 15_000), 1, -1, 9, 20_000)
            second = other.send(Api.PRODUCE, 9, body)
            gate.open()
        assert client.produced(9, first).base_offset == 1
        assert other.produced(9, second).base_offset == 1


def test_B08_a_broker_that_has_just_started_serves_topics_nobody_has_asked_it_about(
    start_broker: Start,
) -> None:
    """Clients keep their metadata across a restart: their next request is a produce or a fetch, not a question."""
    store = FaultyStore(MemoryStore(), seed=1)
    with LocalBroker(store) as first, Wire(first.port) as client:
        owned(client, first)
    broker = start_broker(store)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        sent = [client.send(*_produce(b"%d" % number)) for number in range(5)]
        assert [client.produced(9, correlation).base_offset for correlation in sent] == [1, 2, 3, 4, 5]
        assert [v for _, v in read_all(reader)] == [b"first", b"0", b"1", b"2", b"3", b"4"]
        client.produce("t", batch(b"quiet"), acks=0)
        assert client.produce("t", batch(b"after")).base_offset == 7
        store.forget_calls()
        for _ in range(5):
            assert client.produce("nowhere", batch(b"x")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
            assert client.fetch("nowhere", 0).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert len(store.calls) <= 2, "a topic that is not there is not looked for again and again"
