"""C10: an idempotent producer's gap is never accepted, and nothing is reported delivered that is not stored."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.errors import KafkaError

import logstore
from broker_shim.partitions.producers import ProducerTable
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker import steps
from tests.support.broker.harness import BrokerProcess, LocalBroker, Wire
from tests.support.broker.idempotence import PID, batch, info_of, outcome
from tests.support.broker.steps import make_topic, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
NEVER = {"flush_interval": 3600.0}


def test_C10_whatever_a_table_has_lost_it_accepts_no_gap() -> None:
    """Every way to lose state, in every order of up to three; then every sequence and epoch around the next one."""

    def forget(table: ProducerTable) -> ProducerTable:
        return ProducerTable(complete=False)

    def lose(table: ProducerTable) -> ProducerTable:
        table.tail_was_lost()
        return table

    def reload(table: ProducerTable) -> ProducerTable:
        return ProducerTable.load(table.dump(100))[0]

    def store(table: ProducerTable) -> ProducerTable:
        known = table._producers.get(PID)
        following = known.batches[-1].last + 1 if known is not None else 0
        table.replay(b"", info_of(following, offset=following))
        return table

    accepted = 0
    for ways in itertools.product([forget, lose, reload, store], repeat=3):
        table = store(store(ProducerTable()))
        for way in ways:
            table = way(table)
        known = table._producers.get(PID)
        for sequence, epoch in itertools.product(range(8), range(2)):
            verdict = table.check(info_of(sequence, epoch=epoch))
            if verdict.code is not Code.NONE or verdict.duplicate is not None:
                continue
            accepted += 1
            if known is None or epoch > known.epoch:
                assert sequence == 0
            else:
                assert sequence == known.batches[-1].last + 1
    assert accepted


def lose_some_sent_without_acks(first: LocalBroker) -> None:
    """An acks=0 producer's record is in the buffer of a broker that never stores it."""
    with Wire(first.port) as client:
        client.produce("t", steps.batch(b"not waited for"), acks=0)
        first.until(lambda: first.log("t").buffered_high_watermark > first.log("t").durable_high_watermark)


def test_C10_an_overtaking_batch_is_refused_where_others_have_lost_records(start_broker: Start) -> None:
    """With durable acks a crash takes nothing that an idempotent producer was told of: what is missing is on its way."""
    store = MemoryStore()
    first = start_broker(store, **NEVER)
    with Wire(first.port) as client:
        make_topic(client)
        assert outcome(client, batch(0)) == (Code.NONE, 0)
        lose_some_sent_without_acks(first)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert outcome(client, batch(2)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert outcome(client, batch(1, pid=PID + 1)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert outcome(client, batch(0)) == (Code.NONE, 0)
        code, offset = outcome(client, batch(1))
        assert code == Code.NONE
        assert outcome(client, batch(2)) == (Code.NONE, offset + 1)
        assert values(client.fetch("t", offset)) == [(offset, b"v1"), (offset + 1, b"v2")]


@pytest.mark.parametrize("stored", [0, 1], ids=["nothing-stored", "some-stored"])
def test_C10_what_was_acked_in_the_buffer_and_lost_ends_the_epoch(start_broker: Start, stored: int) -> None:
    """The broker says so, stores nothing behind the gap, and the producer goes on in a new epoch."""
    store = MemoryStore()
    first = start_broker(store, flush_on_ack=False, **NEVER)
    with Wire(first.port) as client:
        make_topic(client)
        for sequence in range(4):
            assert outcome(client, batch(sequence)) == (Code.NONE, sequence)
            if sequence < stored:
                first.log("t").flush(PATIENCE_S)
    second = start_broker(store, flush_on_ack=False, node_id=2, **NEVER)
    with Wire(second.port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        for ahead in (4, 5, 6):
            assert outcome(client, batch(ahead)) == (Code.INVALID_PRODUCER_EPOCH, -1)
        if stored:
            assert outcome(client, batch(0)) == (Code.NONE, 0), "what is stored is known"
        again = client.ask(
            Api.INIT_PRODUCER_ID,
            4,
            transactional_id=None,
            transaction_timeout_ms=0,
            producer_id=PID,
            producer_epoch=0,
        )
        assert (again.error_code, again.producer_id, again.producer_epoch) == (Code.NONE, PID, 1)
        code, offset = outcome(client, batch(0, epoch=1))
        assert code == Code.NONE
        assert offset >= 4
        assert outcome(client, batch(0, epoch=1)) == (Code.NONE, offset)
        assert outcome(client, batch(1, epoch=1)) == (Code.NONE, offset + 1)
        assert outcome(client, batch(3, epoch=1)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_C10_the_start_of_the_log_comes_with_a_lost_producer(start_broker: Start) -> None:
    """Java's client would send the same again and again without it."""
    store = MemoryStore()
    with logstore.open(store) as service:
        service.create_topic("t")
        service.delete_topic("t")
        service.create_topic("t")
    with Wire(start_broker(store).port) as client:
        client.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        answer = client.produce("t", batch(3))
        assert (answer.error_code, answer.log_start_offset) == (Code.UNKNOWN_PRODUCER_ID, 0)


def test_C10_librdkafka_reports_nothing_that_is_not_stored_when_one_request_is_turned_back(
    start_broker: Start,
) -> None:
    """A waits while the partition is taken, and its time is up. B, behind it, is not: it finds the partition taken."""
    store = MemoryStore()
    first = start_broker(store, **NEVER)
    with Wire(first.port) as client:
        make_topic(client)
    lose_some_sent_without_acks(first)
    gated = GatedStore(store)
    second = start_broker(gated, node_id=2)
    delivered: list[bytes] = []
    failed: list[str] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            delivered.append(message.value())

    producer = librdkafka(second.address)
    with gated.hold("put", prefix="lanes/", suffix=".seg") as gate:
        producer.produce("t", b"A", on_delivery=report)
        gate.wait_held()
        hosted: Any = second.server.broker.partitions.hosted("t", 0)
        producer.produce("t", b"B", on_delivery=report)
        second.until(lambda: len(hosted._queue) == 2)
        second.call(lambda: hosted._queue._waiting.popleft().answer(Code.REQUEST_TIMED_OUT, -1))
        gate.open()
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []
    assert [record.value for record in second.log("t").records()] == delivered == [b"A", b"B"]


def librdkafka(address: str, **settings: Any) -> confluent_kafka.Producer:
    """One message a request, five of them in flight."""
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            "log_level": 0,
            **settings,
        }
    )


# ── real clients, a real process, kill -9 ───────────────────────────────────────────────────────────────────────────────


class Reports:
    """What a client was told of each message. `life`: which broker process was running then."""

    def __init__(self) -> None:
        self.delivered: dict[int, tuple[int, int]] = {}
        self.failed: dict[int, BaseException | str] = {}
        self.life = 0
        self._changed = threading.Condition()

    def tell(self, number: int, offset: int | None, error: BaseException | str | None = None) -> None:
        with self._changed:
            if offset is not None:
                self.delivered[number] = (offset, self.life)
            else:
                self.failed[number] = error or "failed"
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Until so many more are delivered by the process that runs now."""
        with self._changed:
            goal = len(self.delivered) + count
            in_time = self._changed.wait_for(lambda: len(self.delivered) >= goal, PATIENCE_S)
            assert in_time, f"no progress; the last failure: {list(self.failed.values())[-1:]}"


class Sender(Protocol):
    """A client that sends 0, 1, 2 … to `t` until it is stopped, and lets its reports know."""

    def __init__(self, address: str, reports: Reports) -> None: ...

    def run(self, stop: threading.Event) -> None: ...


class Librdkafka:
    def __init__(self, address: str, reports: Reports) -> None:
        self._producer = librdkafka(address)
        self._reports = reports

    def run(self, stop: threading.Event) -> None:
        for number in itertools.count():
            if stop.is_set():
                break
            self._producer.produce("t", b"%d" % number, on_delivery=self._report(number))
            while len(self._producer) > 200:
                self._producer.poll(0.01)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def _report(self, number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            # No offset: it was concluded from a later ack.
            offset = -1 if message.offset() is None else message.offset()
            self._reports.tell(number, None if error is not None else offset, str(error))

        return report


class KafkaPython:
    def __init__(self, address: str, reports: Reports) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, reconnect_backoff_ms=20, retry_backoff_ms=20
        )
        self._reports = reports

    def run(self, stop: threading.Event) -> None:
        under_way = threading.Semaphore(200)

        def ended(number: int, offset: int | None, error: BaseException | None = None) -> None:
            under_way.release()
            self._reports.tell(number, offset, error)

        for number in itertools.count():
            if stop.is_set():
                break
            assert under_way.acquire(timeout=PATIENCE_S)
            try:
                future = self._producer.send("t", b"%d" % number)
            except KafkaError as error:
                ended(number, None, error)
                continue
            future.add_callback(lambda done, n=number: ended(n, done.offset))
            future.add_errback(lambda error, n=number: ended(n, None, error))
        self._producer.flush(PATIENCE_S)
        self._producer.close()


class AioKafka:
    """It does not go on by itself after a lost epoch, with any broker: who uses it makes a new producer."""

    def __init__(self, address: str, reports: Reports) -> None:
        self._address = address
        self._reports = reports

    def run(self, stop: threading.Event) -> None:
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._address,
                enable_idempotence=True,
                retry_backoff_ms=20,
                request_timeout_ms=5_000,
            )
            try:
                await producer.start()
            except aiokafka.errors.KafkaError:
                continue
            try:
                is_good = True
                while is_good and not stop.is_set():
                    sent = [await producer.send("t", b"%d" % n) for n in range(number, number + 20)]
                    for each in await asyncio.gather(*sent, return_exceptions=True):
                        is_good &= not isinstance(each, BaseException)
                        if isinstance(each, BaseException):
                            self._reports.tell(number, None, each)
                        else:
                            self._reports.tell(number, each.offset)
                        number += 1
            finally:
                await producer.stop()


CLIENTS: list[type[Sender]] = [Librdkafka, KafkaPython, AioKafka]


@pytest.mark.parametrize("flush_on_ack", [True, False], ids=["durable", "buffered"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "kills",
    [1, pytest.param(25, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    ids=lambda k: f"{k}-kills",
)
def test_C10_kill_9_with_requests_in_flight(
    tmp_path: Path, client: type[Sender], flush_on_ack: bool, kills: int
) -> None:
    """An acks=0 producer uses the same partition, so there is always something in the buffer that a crash takes."""
    flags = ("--flush-on-ack", str(flush_on_ack).lower(), "--flush-interval", "0.5")
    store, log, rng = f"file://{tmp_path}/store", tmp_path / "log", random.Random(kills)
    broker = BrokerProcess(store, *flags, log=log).start()
    with Wire(broker.port) as wire:
        make_topic(wire)
    reports, stop = Reports(), threading.Event()
    sender = client(broker.address, reports)
    thread = threading.Thread(target=sender.run, args=[stop])
    thread.start()
    try:
        for _ in range(kills):
            reports.wait_for_more(rng.randrange(20, 400))
            with Wire(broker.port) as wire:
                wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
                wire.produce("t", steps.batch(b"other"), acks=0)
            reports.wait_for_more(rng.randrange(1, 20))
            broker.kill()
            reports.life += 1
            broker = BrokerProcess(store, *flags, port=broker.port, log=log).start()
        reports.wait_for_more(100)
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    finally:
        stop.set()
        assert broker.stop() == 0
    judge(store, reports, kills, flush_on_ack=flush_on_ack)


def judge(store: str, reports: Reports, last_life: int, *, flush_on_ack: bool) -> None:
    """Record by record. A buffered ack may be lost with its process: then its offset lies in a range that the log reports as
    lost. One without an offset was concluded from a later ack: what it says of the process that runs now must hold.
    """
    places: dict[int, int] = {}
    with logstore.open(store, writer="read_only") as opened:
        log = opened.topic("t").partition(0)
        lost = log.lost_ranges()
        for record in log.records():
            assert record.value is not None
            if record.value != b"other":
                number = int(record.value)
                assert number not in places, f"{number} is stored at {places[number]} and at {record.offset}"
                places[number] = record.offset  # type: ignore[assignment]
    assert list(places) == sorted(places), "stored in the order in which they were sent"
    for number, (offset, life) in reports.delivered.items():
        if number in places:
            assert offset in (-1, places[number])
            continue
        assert not flush_on_ack, f"{number}, reported at {offset}, is nowhere"
        if offset >= 0:
            assert any(each.start <= offset < each.end for each in lost), f"{number} was reported at {offset}"
        else:
            assert life < last_life, f"{number}, reported without an offset, is nowhere"
    assert any(life == last_life for _, life in reports.delivered.values())
