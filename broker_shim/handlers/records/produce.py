"""Produce: every partition of a request is appended side by side; the answer goes out when the last one is
acked.

* `flush_on_ack` (the default): acks=1 and acks=all are answered when the object store has the records.
* without it, and for acks=0: the records are in the write buffer and consumers see them; the store gets them
  soon.
* `timeout.ms` passes: REQUEST_TIMED_OUT for what is still open. The log keeps what it has taken, and a retry
  of an idempotent producer is answered with the first attempt's offset.

Nothing is ever acked that is not as durable as the setting says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker_shim.metrics import Counters
from broker_shim.net.connection import Connection, Parts
from broker_shim.partitions.append import Append
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.partitions.transaction_gate import Companion, Verify
from broker_shim.wire import produce_codec
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import RequestHeader
from broker_shim.wire.produce_codec import PartitionAnswer, PartitionData, ProduceRequest
from logstore.config import Ack
from logstore.layout.broker import INTERNAL_TOPICS

MAX_TIMEOUT_MS = 300_000
NO_KEY = "a compacted topic takes no record without a key; nothing of the batch was stored"
_START_WHERE_LOST = {Code.UNKNOWN_PRODUCER_ID: 0}
"""The start of the log that goes with a refusal. Without one the Java client sends the same again until it gives up, and
with one above its last ack kafka-python does: with 0 both go on in a new epoch.
"""
MayWrite = Callable[[Connection, str], bool]
VerifyAt = Callable[[str, str, int, int, int], Code | Companion | Coroutine[Any, Any, Code]]
"""Is a partition (transactional id, topic, partition) part of the transaction that a producer (id, epoch) has open?"""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request some of whose partitions are not answered yet."""

    version: int
    started: float
    answers: list[tuple[str, list[PartitionAnswer]]] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    left: int = 0
    future: asyncio.Future[Parts] | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class ProduceHandler:
    """`_may_write_as`: under this transactional id."""

    _partitions: PartitionRegistry
    _counters: Counters
    _loop: asyncio.AbstractEventLoop
    _may_write: MayWrite
    _may_write_as: MayWrite
    _verify: VerifyAt
    ack: Ack = field(kw_only=True)

    def handle(
        self, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts | asyncio.Future[Parts] | None:
        request = produce_codec.read(frame, header.body, header.version)
        self._counters.bytes_in += len(frame)
        unknown = self._partitions.missing(topic for topic, _ in request.topics)
        if unknown:
            return self._loop.create_task(self._look_up_first(connection, header, request, unknown))
        return self._begin_all(connection, header, request)

    async def _look_up_first(
        self, connection: Connection, header: RequestHeader, request: ProduceRequest, unknown: list[str]
    ) -> Parts:
        """A topic that this broker has not served yet, perhaps because it has just started or taken over."""
        await self._partitions.look_up(unknown)
        answer = self._begin_all(connection, header, request)
        if answer is None:
            return ()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _begin_all(
        self, connection: Connection, header: RequestHeader, request: ProduceRequest
    ) -> Parts | asyncio.Future[Parts] | None:
        pending = _Pending(header.version, self._loop.time())
        refusal = _refuse(request.acks)
        if request.transactional_id is not None and not self._may_write_as(
            connection, request.transactional_id
        ):
            refusal = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ack: Ack = "buffered" if request.acks == 0 else self.ack
        for topic, partitions in request.topics:
            allowed = refusal or self._allowed(connection, topic)
            answers: list[PartitionAnswer] = []
            pending.answers.append((topic, answers))
            for data in partitions:
                verify = None
                if request.transactional_id is not None:
                    verify = partial(self._verify, request.transactional_id, topic, data.partition)
                self._begin(pending, answers, topic, data, ack, allowed, verify)
        if request.acks == 0:
            self._drop_if_failed(connection, pending)
            return None
        if not pending.left:
            return self._finish(pending)
        pending.future = self._loop.create_future()
        timeout_ms = min(max(request.timeout_ms, 0), MAX_TIMEOUT_MS)
        pending.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, pending)
        return pending.future

    def _allowed(self, connection: Connection, topic: str) -> Code | None:
        if topic in INTERNAL_TOPICS:
            return Code.INVALID_TOPIC_EXCEPTION
        return None if self._may_write(connection, topic) else Code.TOPIC_AUTHORIZATION_FAILED

    def _begin(
        self,
        pending: _Pending,
        answers: list[PartitionAnswer],
        topic: str,
        data: PartitionData,
        ack: Ack,
        refusal: Code | None,
        verify: Verify | None,
    ) -> None:
        place = len(answers)
        found = refusal if refusal is not None else self._partitions.get(topic, data.partition)
        if isinstance(found, Code):
            answers.append(PartitionAnswer(data.partition, found))
            return
        if not data.records:
            answers.append(PartitionAnswer(data.partition, Code.INVALID_RECORD, message="no records"))
            return
        hosted: HostedPartition = found
        answers.append(PartitionAnswer(data.partition, Code.REQUEST_TIMED_OUT))
        pending.left += 1
        answered = False

        def answer(code: Code, offset: int, append_ms: int = -1, wrong: tuple[int, ...] = ()) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            low = _START_WHERE_LOST.get(code, -1) if code is not Code.NONE else hosted.low_watermark
            message = NO_KEY if wrong else None
            answers[place] = PartitionAnswer(data.partition, code, offset, low, message, append_ms, wrong)
            pending.left -= 1
            if not pending.left and pending.future is not None:
                self._complete(pending)

        append = hosted.append(data.records, ack, answer, verify)
        if append is not None and not answered:
            pending.appends.append(append)

    def _time_out(self, pending: _Pending) -> None:
        """Unanswered partitions keep REQUEST_TIMED_OUT; what the log has not taken yet it shall not take any
        more.
        """
        for append in pending.appends:
            append.abandoned = True
        self._complete(pending)

    def _complete(self, pending: _Pending) -> None:
        assert pending.future is not None
        if pending.timer is not None:
            pending.timer.cancel()
        if not pending.future.done():
            pending.future.set_result(self._finish(pending))

    def _finish(self, pending: _Pending) -> Parts:
        self._counters.produced(self._loop.time() - pending.started)
        for _, answers in pending.answers:
            for answer in answers:
                if answer.code is not Code.NONE:
                    self._counters.errors[answer.code.name] += 1
        return (produce_codec.write(pending.version, pending.answers),)

    def _drop_if_failed(self, connection: Connection, pending: _Pending) -> None:
        """With acks=0 there is no answer to put an error in: as in Kafka, the connection says it."""
        wrong = {a.code for _, answers in pending.answers for a in answers}
        wrong -= {Code.NONE, Code.REQUEST_TIMED_OUT}
        if wrong:
            connection.close(f"acks=0 and {', '.join(code.name for code in wrong)}")


def _refuse(acks: int) -> Code | None:
    return None if acks in (-1, 0, 1) else Code.INVALID_REQUIRED_ACKS
