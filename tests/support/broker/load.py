"""Producers and a group under load while brokers die, and what must be true of the log afterwards."""

from __future__ import annotations

import threading
from collections import defaultdict

import confluent_kafka

import logstore
from broker_shim.wire.apis import Api
from tests.support.broker.harness import Wire
from tests.support.patience import PATIENCE_S

PARTITIONS = 3
KEYS = 12


class Load:
    """An idempotent librdkafka producer that never rests. `acked[(key, number)]` is where the broker said it is."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "queue.buffering.max.messages": 2000,  # enough to be always at work, not what piles up in an outage
                "message.timeout.ms": 240_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.acked: dict[tuple[int, int], tuple[int, int]] = {}
        self.failed: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.grew = threading.Condition()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for key in range(KEYS):
                self._send(key, number)
            number += 1
            self._producer.poll(0.002)

    def _send(self, key: int, number: int) -> None:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.failed.append(error)
                return
            with self.grew:
                self.acked[(key, number)] = (message.partition(), message.offset())
                self.grew.notify_all()

        while True:
            try:
                self._producer.produce("load", b"%d:%d" % (key, number), b"%d" % key, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.05)

    def start(self) -> None:
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        with self.grew:
            goal = len(self.acked) + count
            assert self.grew.wait_for(lambda: len(self.acked) >= goal or self.failed, PATIENCE_S), (
                "no progress"
            )

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0


def check_log(store: str, acked: dict[tuple[int, int], tuple[int, int]]) -> None:
    """Read with the library, not with the broker: each acked record once, where the ack said, in order for each key."""
    order: dict[bytes, list[int]] = defaultdict(list)
    places: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    with logstore.open(store, writer="read_only") as opened:
        for index in range(PARTITIONS):
            log = opened.topic("load").partition(index)
            assert log.lost_ranges() == []
            for expected, record in enumerate(log.records()):
                assert record.offset == expected, "durable acks leave no gap"
                assert record.value is not None
                assert record.key is not None
                key, number = map(int, record.value.split(b":"))
                places[(key, number)].append((index, record.offset))
                order[record.key].append(number)
    for what, where in acked.items():
        assert places[what] == [where]
    for numbers in order.values():
        assert numbers == list(range(len(numbers)))


def commit(client: Wire, group: str, offset: int) -> int:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    answer = client.ask(
        Api.OFFSET_COMMIT,
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": partitions}],
    )
    return int(answer.topics[0].partitions[0].error_code)


def committed(client: Wire, group: str) -> int:
    answer = client.ask(Api.OFFSET_FETCH, 5, group_id=group, topics=[{"name": "t", "partition_indexes": [0]}])
    return int(answer.topics[0].partitions[0].committed_offset)
