"""B04–B06: who sees which record when, how long a fetch waits, and how much it brings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from broker_shim.handlers.records.fetch import COLD_READS_AT_ONCE, Fetch
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, list_offset, make_topic, owned, owned_buffered, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
READ_COMMITTED = 1


def test_B04_a_waiting_fetch_wakes_on_a_buffered_append(start_broker: Start) -> None:
    """Woken, not polled for: a few turns of the loop after the producer has its ack, nobody waits for that record."""
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    fetches = broker.server.broker._fetch
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        owned_buffered(client)
        for number in range(1, 30):
            waiting = reader.send_fetch("t", number, wait_ms=600_000)
            broker.until(lambda: len(fetches.waiting) == 1)
            client.produce("t", batch(b"%d" % number))
            broker.run(_turns(5))
            assert len(fetches.waiting) == 0
            assert values(reader.fetched(11, waiting)) == [(number, b"%d" % number)]


async def _turns(count: int) -> None:
    """Let the loop do what it can do now, and nothing that waits for a time."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_B04_a_record_that_comes_while_the_partition_is_being_read_is_not_missed(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition is new here, so a worker reads it and finds nothing; before it says so, a record is appended."""
    looked, appended = threading.Event(), threading.Event()
    real = Fetch._read

    def late(self: Fetch, *arguments: Any) -> Any:
        found = real(self, *arguments)
        looked.set()
        assert appended.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(Fetch, "_read", late)
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        make_topic(client)
        waiting = reader.send_fetch("t", 0, wait_ms=20_000)
        assert looked.wait(PATIENCE_S)
        client.produce("t", batch(b"news"))
        broker.run(_turns(5))
        appended.set()
        assert values(reader.fetched(11, waiting)) == [(0, b"news")]


def test_B04_min_bytes_is_honoured_across_partitions_and_answers_in_one_piece(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    one = batch(b"x" * 1000)
    with Wire(broker.port) as client, Wire(broker.port) as reader:
        make_topic(client, partitions=2)
        correlation = reader.send(Api.FETCH, 11, _partitions(2, min_bytes=2 * len(one), wait_ms=20_000))
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
        correlation = client.send(Api.FETCH, 11, _partitions(2, wait_ms=200))
        answer = client.answer(Api.FETCH, 11, correlation)
        assert time.monotonic() - began >= 0.2
        assert [p.error_code for p in answer.responses[0].partitions] == [0, 0]
        assert len(broker.server.broker._fetch.waiting) == 0


def _partitions(count: int, wait_ms: int, min_bytes: int = 1, max_bytes: int = 1 << 20) -> bytes:
    partitions = [
        {"partition": index, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for index in range(count)
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


def test_B04_sizes_are_whole_batches_and_at_least_one(start_broker: Start) -> None:
    """Out of the buffer: of segments an answer holds those that are in memory already, which may be fewer than would fit."""
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    one = batch(b"x" * 1000)
    with Wire(broker.port) as client:
        make_topic(client, partitions=2)
        for _ in range(3):
            client.produce("t", one, partition=0)
            client.produce("t", one, partition=1)
        assert len(client.fetch("t", 0, partition_bytes=10).records) == len(one)
        assert len(client.fetch("t", 0, partition_bytes=2 * len(one) + 5).records) == 2 * len(one)
        assert len(client.fetch("t", 0, max_bytes=2 * len(one)).records) == 2 * len(one)
        correlation = client.send(Api.FETCH, 11, _partitions(2, wait_ms=0, max_bytes=len(one) + 10))
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
        assert not hosted._watchers


def test_B05_latest_and_fetch_agree_for_each_isolation_level(start_broker: Start) -> None:
    broker = start_broker(flush_on_ack=False, flush_interval=3600.0)
    with Wire(broker.port) as client:
        owned_buffered(client)
        broker.log("t").flush(10)
        client.produce("t", batch(b"buffered", b"too"))
        for isolation, end in ((0, 3), (READ_COMMITTED, 1)):
            latest = list_offset(client, -1, isolation)
            found = client.fetch("t", 0, isolation=isolation)
            assert latest == end
            assert [offset for offset, _ in values(found)][-1] == end - 1
            assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert list_offset(client, -2, 0) == 0


def test_B05_by_timestamp_is_exact(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"a", b"b", b"c", timestamp_ms=1_000))  # 1000, 1001, 1002
        client.produce("t", batch(b"d", b"e", timestamp_ms=5_000))
        assert [list_offset(client, ms) for ms in (0, 1_001, 1_003, 5_001, 5_002)] == [0, 1, 3, 4, -1]


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


@pytest.mark.parametrize("version", range(4, 13))
def test_B01_every_fetch_version(broker: LocalBroker, version: int) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        assert values(client.fetch("t", 0, version=version)) == [(0, b"first")]
        assert client.fetch("nowhere", 0, version=version).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_B01_a_fetch_session_is_refused_and_full_fetches_go_on(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        owned(client, broker)
        request = {"session_id": 7, "session_epoch": 3, "min_bytes": 1, "max_bytes": 1, "rack_id": ""}
        correlation = client.send(Api.FETCH, 11, messages.encode_request(Api.FETCH, 11, request))
        answer = client.answer(Api.FETCH, 11, correlation)
        assert (answer.error_code, answer.responses) == (Code.FETCH_SESSION_ID_NOT_FOUND, [])
        assert values(client.fetch("t", 0)) == [(0, b"first")]


def test_B04_a_fetch_of_many_cold_partitions_is_answered_when_its_time_is_up(start_broker: Start) -> None:
    """Those being opened at that moment are waited for; the others come with the next fetch. On chains of their own: in a
    lane one look tells of all."""
    store = MemoryStore()
    with LocalBroker(store, lanes=0) as broker, Wire(broker.port) as client:
        make_topic(client, partitions=20)
        for index in range(20):
            assert client.produce("t", batch(b"%d" % index), partition=index).error_code == Code.NONE
    gated = GatedStore(store)
    broker = start_broker(gated)
    fetching = broker.server.broker._fetch
    first, second = range(COLD_READS_AT_ONCE), range(COLD_READS_AT_ONCE, 20)
    with Wire(broker.port) as client, ExitStack() as gates:
        incarnation = next(iter(gated.list("topics/t/"))).key.split("/")[2]
        held, later = (
            [
                gates.enter_context(gated.hold("*", prefix=f"topics/t/{incarnation}/{index}/"))
                for index in part
            ]
            for part in (first, second)
        )
        waiting = client.send(Api.FETCH, 11, _partitions(20, wait_ms=1))
        for gate in held:
            gate.wait_held()
        broker.until(lambda: len(fetching.deadlines) == 0)  # its time is up
        for gate in held:
            gate.open()
        answer = client.answer(Api.FETCH, 11, waiting)
        found = {each.partition_index: values(each) for each in answer.responses[0].partitions}
        assert found == {index: [(0, b"%d" % index)] if index in first else [] for index in range(20)}
        for gate in later:
            gate.open()
        seen: set[int] = set()
        while len(seen) < 20:
            answer = client.answer(Api.FETCH, 11, client.send(Api.FETCH, 11, _partitions(20, wait_ms=20_000)))
            for each in answer.responses[0].partitions:
                assert each.error_code == Code.NONE
                if each.records:
                    assert values(each) == [(0, b"%d" % each.partition_index)]
                    seen.add(each.partition_index)


def test_B01_questions_about_offsets_are_asked_side_by_side_and_answered_in_order(
    start_broker: Start,
) -> None:
    """As librdkafka asks: a request for each partition, none of which is open yet."""
    store = MemoryStore()
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        make_topic(client, partitions=4)
        for index in range(4):
            for _ in range(index + 1):
                assert client.produce("t", batch(b"x"), partition=index).error_code == Code.NONE
    gated = GatedStore(store)
    broker = start_broker(gated)
    broker.run(broker.server.broker.partitions.find("t"))  # Metadata would look at all of them
    with Wire(broker.port) as client, ExitStack() as gates:
        incarnation = next(iter(gated.list("lanes/born-"))).key.split("/")[1].removeprefix("born-")
        held = [
            gates.enter_context(gated.hold("*", prefix=f"topics/t/{incarnation}/{index}/"))
            for index in range(4)
        ]
        asked = [client.send(Api.LIST_OFFSETS, 5, _latest(index)) for index in range(4)]
        for gate in held:
            gate.wait_held()  # all four are being opened at once
        for gate in reversed(held):
            gate.open()
        answers = [client.answer(Api.LIST_OFFSETS, 5, each).topics[0].partitions[0] for each in asked]
        assert [(each.partition_index, each.offset) for each in answers] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_B01_a_question_about_offsets_that_is_not_understood_is_refused_and_not_taken_for_a_timestamp(
    broker: LocalBroker,
) -> None:
    """-3, the offset of the largest timestamp: librdkafka's admin client asks for it whatever the version."""
    with Wire(broker.port) as client:
        owned(client, broker)
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -3}]}]
        answer = client.ask(Api.LIST_OFFSETS, 6, replica_id=-1, topics=topics).topics[0].partitions[0]
        assert (answer.error_code, answer.offset) == (Code.UNSUPPORTED_VERSION, -1)


def _latest(index: int) -> bytes:
    topics = [{"name": "t", "partitions": [{"partition_index": index, "timestamp": -1}]}]
    return messages.encode_request(Api.LIST_OFFSETS, 5, {"replica_id": -1, "topics": topics})
