"""B02–B06: what an ack means and who sees which record when, over the real wire and with the store held by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from broker.clients import Confluent
from broker.harness import LocalBroker, Wire, produce_body
from broker_shim.apis import Api
from broker_shim.codes import Code
from logstore.engine.tiers import Tiers
from logstore.format.batch import encode_batch, split
from logstore.format.record import Record
from logstore.format.records import decode_records
from logstore.objects.memory import MemoryStore
from logstore.testing import FaultyStore, GatedStore

Start = Callable[..., LocalBroker]
READ_COMMITTED = 1


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    records = [Record(value, b"k", (), timestamp_ms + i) for i, value in enumerate(values)]
    return encode_batch(records, now_ms=timestamp_ms, codec_id=0)[0]


def values(answer: Any) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record in a fetch answer."""
    raw = bytes(answer.records or b"")
    return [(r.offset, r.value) for info in split(raw) for r in decode_records(raw, info)]


def read_all(client: Wire, topic: str = "t", **options: Any) -> list[tuple[int, bytes | None]]:
    """Everything up to the high watermark. One fetch may stop where the next segment is not in memory."""
    found: list[tuple[int, bytes | None]] = []
    while True:
        answer = client.fetch(topic, found[-1][0] + 1 if found else 0, **options)
        assert answer.error_code == Code.NONE
        found += values(answer)
        if not answer.records:
            return found


def make_topic(client: Wire, name: str = "t", partitions: int = 1) -> None:
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
    made = client.ask(Api.CREATE_TOPICS, 5, topics=topics, timeout=10_000)
    assert made.topics[0].error_code == Code.NONE
    client.ask(Api.METADATA, 9, topics=[{"name": name}])


def owned(client: Wire, broker: LocalBroker) -> None:
    """A topic `t` whose partition is taken already, with one durable record at offset 0."""
    make_topic(client)
    assert client.produce("t", batch(b"first")).base_offset == 0
    assert broker.log("t").durable_high_watermark == 1


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
            assert broker.log("t").durable_high_watermark == 1, "the durable mark is not touched"
            assert gate.held == (), "nor was an upload even tried"


def test_B03_contrast_without_the_raised_watermark_the_same_fetch_finds_nothing(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed's bug, put back: `read` would serve the buffer, and the fetch stops at a mark that only a flush moves."""
    monkeypatch.setattr(Tiers, "expose", lambda self, end_offset: None)
    store = MemoryStore()
    broker = start_broker(store, flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce("t", batch(b"acked")).error_code == Code.NONE
        assert values(client.fetch("t", 0)) == []


def test_B03_in_the_default_path_raising_the_watermark_changes_nothing(broker: LocalBroker) -> None:
    """The seed's second test: with flush-on-ack the buffered mark is raised by the flush itself, to the same place."""
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


def test_B04_a_waiting_fetch_wakes_on_a_buffered_append(start_broker: Start) -> None:
    """Five milliseconds is the promise on a quiet machine; the bound here only tells waking from polling."""
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        owned_buffered(client)
        delays = []
        for number in range(1, 30):
            waiting = reader.send_fetch("t", number, wait_ms=20_000)
            broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
            began = time.perf_counter()
            client.produce("t", batch(b"%d" % number))
            assert values(reader.fetched(11, waiting)) == [(number, b"%d" % number)]
            delays.append(time.perf_counter() - began)
        assert sorted(delays)[len(delays) // 2] < 0.1


def owned_buffered(client: Wire) -> None:
    make_topic(client)
    assert client.produce("t", batch(b"first")).base_offset == 0


def test_B04_min_bytes_is_honoured_across_partitions_and_answers_in_one_piece(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    one = batch(b"x" * 1000)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        make_topic(client, partitions=2)
        correlation = reader.send(Api.FETCH, 11, _two_partitions(min_bytes=2 * len(one), wait_ms=20_000))
        client.produce("t", one, partition=0)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        client.produce("t", one, partition=1)
        answer = reader.answer(Api.FETCH, 11, correlation)
        sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
        assert sizes == [len(one), len(one)]


def test_B04_one_max_wait_for_all_partitions(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client, partitions=2)
        began = time.monotonic()
        correlation = client.send(Api.FETCH, 11, _two_partitions(min_bytes=1, wait_ms=200))
        answer = client.answer(Api.FETCH, 11, correlation)
        assert time.monotonic() - began >= 0.2
        assert [p.error_code for p in answer.responses[0].partitions] == [0, 0]
        assert len(broker.server.broker._fetch.waiting) == 0


def _two_partitions(min_bytes: int, wait_ms: int, max_bytes: int = 1 << 20) -> bytes:
    from broker_shim import messages

    partitions = [
        {"partition": index, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for index in range(2)
    ]
    request = {
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_epoch": -1,
        "rack_id": "",
        "topics": [{"topic": "t", "partitions": partitions}],
    }
    return messages.encode_request(Api.FETCH, 11, request)


def test_B04_sizes_are_whole_batches_and_at_least_one(broker: LocalBroker) -> None:
    one = batch(b"x" * 1000)
    with Wire(broker.port) as client:
        make_topic(client, partitions=2)
        for _ in range(3):
            client.produce("t", one, partition=0)
            client.produce("t", one, partition=1)
        assert len(client.fetch("t", 0, partition_bytes=10).records) == len(one)
        assert len(client.fetch("t", 0, partition_bytes=2 * len(one) + 5).records) == 2 * len(one)
        assert len(client.fetch("t", 0, max_bytes=2 * len(one)).records) == 2 * len(one)
        correlation = client.send(Api.FETCH, 11, _two_partitions(1, 0, max_bytes=len(one) + 10))
        answer = client.answer(Api.FETCH, 11, correlation)
        sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
        assert sizes == [len(one), 0], "a full answer leaves the second partition for the next fetch"


def test_B04_a_fetch_of_a_client_that_has_gone_is_forgotten(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        with Wire(broker.port) as reader:
            reader.send_fetch("t", 1, wait_ms=3_600_000)
            broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 0)
        hosted = broker.server.broker.partitions.hosted("t", 0)
        assert hosted is not None
        assert hosted.watchers == 0


def test_B05_latest_and_fetch_agree_for_each_isolation_level(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        owned_buffered(client)
        broker.log("t").flush(10)
        client.produce("t", batch(b"buffered", b"too"))
        for isolation, end in ((0, 3), (READ_COMMITTED, 1)):
            latest = _list(client, -1, isolation)
            found = client.fetch("t", 0, isolation=isolation)
            assert latest == end
            assert [offset for offset, _ in values(found)][-1] == end - 1
            assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert _list(client, -2, 0) == 0


def _list(client: Wire, timestamp: int, isolation: int = 0) -> int:
    partitions = [{"partition_index": 0, "timestamp": timestamp}]
    answer = client.ask(
        Api.LIST_OFFSETS,
        5,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": "t", "partitions": partitions}],
    )
    found = answer.topics[0].partitions[0]
    assert found.error_code == Code.NONE
    return int(found.offset)


def test_B05_by_timestamp_is_exact(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"a", b"b", b"c", timestamp_ms=1_000))  # 1000, 1001, 1002
        client.produce("t", batch(b"d", b"e", timestamp_ms=5_000))
        assert [_list(client, ms) for ms in (0, 1_001, 1_003, 5_001, 5_002)] == [0, 1, 3, 4, -1]


def test_B05_a_group_without_a_commit_gets_minus_one(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        topics = [{"name": "t", "partition_indexes": [0]}]
        answer = client.ask(Api.OFFSET_FETCH, 5, group_id="nobody", topics=topics)
        assert answer.error_code == Code.NONE
        found = answer.topics[0].partitions[0]
        assert (found.committed_offset, found.error_code) == (-1, Code.NONE)


def test_B06_read_committed_never_sees_what_a_crash_could_take_back(start_broker: Start) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store, flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        owned_buffered(client)
        broker.log("t").flush(10)
        client.produce("t", batch(b"second"))
        assert values(reader.fetch("t", 1, isolation=READ_COMMITTED)) == []
        assert values(reader.fetch("t", 1)) == [(1, b"second")]
        ahead = reader.fetch("t", 2, isolation=READ_COMMITTED)
        assert ahead.error_code == Code.NONE, "between the two marks is not out of range"
        waiting = reader.send_fetch("t", 1, isolation=READ_COMMITTED, wait_ms=20_000)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        broker.log("t").flush(10)
        assert values(reader.fetched(11, waiting)) == [(1, b"second")], "woken when it became durable"


def test_B06_offsets_outside_the_log_are_an_error_that_names_both_ends(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        found = client.fetch("t", 2)
        assert (found.error_code, found.high_watermark, found.log_start_offset) == (1, 1, 0)
        assert client.fetch("t", -5).error_code == Code.OFFSET_OUT_OF_RANGE
        assert client.fetch("t", 1).error_code == Code.NONE


@pytest.mark.parametrize("version", range(3, 11))
def test_B01_every_produce_version(broker: LocalBroker, version: int) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        answer = client.produce("t", batch(b"one", b"two"), version=version)
        assert (answer.error_code, answer.base_offset) == (Code.NONE, 0)
        assert client.produce("nowhere", batch(b"x"), version=version).error_code == 3


@pytest.mark.parametrize("version", range(4, 13))
def test_B01_every_fetch_version(broker: LocalBroker, version: int) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        assert values(client.fetch("t", 0, version=version)) == [(0, b"first")]
        assert client.fetch("nowhere", 0, version=version).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_B01_a_fetch_session_is_refused_and_full_fetches_go_on(broker: LocalBroker) -> None:
    from broker_shim import messages

    with Wire(broker.port) as client:
        owned(client, broker)
        request = {"session_id": 7, "session_epoch": 3, "min_bytes": 1, "max_bytes": 1, "rack_id": ""}
        correlation = client.send(Api.FETCH, 11, messages.encode_request(Api.FETCH, 11, request))
        answer = client.answer(Api.FETCH, 11, correlation)
        assert (answer.error_code, answer.responses) == (Code.FETCH_SESSION_ID_NOT_FOUND, [])
        assert values(client.fetch("t", 0)) == [(0, b"first")]


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


def test_B02_partitions_of_one_request_commit_side_by_side(start_broker: Start) -> None:
    from broker_shim import messages

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
            gate.wait_held(count=3)
            gate.open()
        answer = client.answer(Api.PRODUCE, 9, correlation)
        rows = [(p.index, p.error_code, p.base_offset) for p in answer.responses[0].partition_responses]
        assert rows == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]


def test_B02_pipelined_requests_of_one_connection_share_uploads_and_are_answered_in_order(
    start_broker: Start,
) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as client:
        owned(client, broker)
        commits = broker.log("t").epoch, len(_segments(store))
        with store.hold("put", suffix=".seg") as gate:
            sent = [client.send(*_produce(b"%d" % number)) for number in range(20)]
            gate.wait_held()
            gate.open()
        answers = [client.produced(9, correlation).base_offset for correlation in sent]
        assert answers == list(range(1, 21))
        assert len(_segments(store)) - commits[1] <= 5


def _segments(store: GatedStore) -> list[str]:
    return [info.key for info in store.list("topics/t/") if info.key.endswith(".seg")]


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
