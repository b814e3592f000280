"""Consumers that have nothing to read: CPU seconds of the broker for a round of fetches, by partitions and by kind of fetch.

A fixed number of rounds, not a time: every round, each consumer asks and is answered when its wait is over. With the
default of clients (`fetch.wait.max.ms` 500) each asks twice a second, which gives the share of a core.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.measure import Figures
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from tests.support.broker.harness import BrokerProcess, Wire

SUITE = "idle consumers"
CONSUMERS = 20
PARTITIONS = 1000
VERSION = 12
WAIT_MS = 50
A_SECOND = 2
"""Fetches of an idle consumer, with the defaults of clients."""


class Idle:
    """Consumers of one topic, at the end of each partition."""

    def __init__(
        self,
        port: int,
        topic: str,
        partitions: int,
        stack: ExitStack,
        *,
        sessions: bool,
        consumers: int = CONSUMERS,
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._wires = [stack.enter_context(Wire(port)) for _ in range(consumers)]
        answers = self._ask([self._body(0, 0 if sessions else -1, whole=True)] * consumers)
        self._ids = [int(answer.session_id) for answer in answers]
        assert all(self._ids) == sessions
        self._epoch = 0
        self.round()

    def _body(self, session: int, epoch: int, *, whole: bool) -> bytes:
        rows = [
            {"partition": i, "current_leader_epoch": -1, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
            for i in range(self._partitions if whole else 0)
        ]
        request = {
            "max_wait": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 25,
            "session_id": session,
            "session_epoch": epoch,
            "rack_id": "",
            "topics": [{"topic": self._topic, "partitions": rows}] if rows else [],
        }
        return messages.encode_request(Api.FETCH, VERSION, request)

    def round(self) -> None:
        self._epoch += 1
        whole = None if any(self._ids) else self._body(0, -1, whole=True)
        bodies = [whole or self._body(session, self._epoch, whole=False) for session in self._ids]
        for answer in self._ask(bodies):
            rows = [row for topic in answer.responses for row in topic.partitions]
            assert answer.error_code == 0
            assert len(rows) == (0 if whole is None else self._partitions)
            assert not any(row.error_code or row.records for row in rows)

    def is_durable(self) -> bool:
        answers = self._ask([self._body(0, -1, whole=True)] * len(self._wires))
        rows = [row for answer in answers for topic in answer.responses for row in topic.partitions]
        return all(row.last_stable_offset == row.high_watermark for row in rows)

    def _ask(self, bodies: list[bytes]) -> list[Any]:
        sent = [wire.send(Api.FETCH, VERSION, body) for wire, body in zip(self._wires, bodies, strict=True)]
        return [wire.answer(Api.FETCH, VERSION, each) for wire, each in zip(self._wires, sent, strict=True)]


def until_durable(port: int, topic: str, partitions: int) -> None:
    """Until nothing moves any more: a session tells of a last stable offset that grows."""
    with ExitStack() as stack:
        one = Idle(port, topic, partitions, stack, sessions=False, consumers=1)
        while not one.is_durable():
            pass


@pytest.mark.timeout(300)
def test_twenty_idle_consumers_of_a_thousand_partitions(figures: Figures, quick: bool) -> None:
    rounds, turns = (10, 3) if quick else (20, 4)
    raw, _ = encode_batch([Record(b"v", b"k")], now_ms=1, codec_id=0)
    used: dict[str, list[float]] = {"full": [], "session": [], "session of one": []}
    with BrokerProcess("memory://idle", "--flush-on-ack", "false") as broker, ExitStack() as stack:
        client = stack.enter_context(Wire(broker.port))
        for topic, partitions in (("wide", PARTITIONS), ("narrow", 1)):
            topics = [{"name": topic, "num_partitions": partitions, "replication_factor": 1}]
            client.ask(Api.CREATE_TOPICS, 5, topics=topics, timeout=10_000)
            for index in range(partitions):
                assert client.produce(topic, raw, partition=index).error_code == 0
            until_durable(broker.port, topic, partitions)
        kinds = {
            "full": Idle(broker.port, "wide", PARTITIONS, stack, sessions=False),
            "session": Idle(broker.port, "wide", PARTITIONS, stack, sessions=True),
            "session of one": Idle(broker.port, "narrow", 1, stack, sessions=True),
        }
        for _ in range(turns):
            for kind, idle in kinds.items():
                before = broker.cpu_seconds()
                for _ in range(rounds):
                    idle.round()
                used[kind].append((broker.cpu_seconds() - before) / (rounds * CONSUMERS))
    for kind, name in (("full", "full fetches"), ("session", "fetch sessions")):
        share = 100 * min(used[kind]) * CONSUMERS * A_SECOND
        figures.add(
            SUITE,
            f"idle, 20 consumers of 1,000 partitions, {name}",
            share,
            "% of a core",
            target=5,
            lower_is_better=True,
        )
    ratio = min(used["session"]) / min(used["session of one"])
    figures.add(
        SUITE,
        "idle fetch in a session, 1,000 partitions to one",
        ratio,
        "×",
        target=2,
        lower_is_better=True,
    )
