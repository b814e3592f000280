"""Questions about a partition's offsets: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.handlers.call import Call, Response
from broker_shim.net.fairness import few_at_once
from broker_shim.partitions.hosted_partition import HostedPartition, without_transactions
from broker_shim.partitions.latest_time import latest_by_time
from broker_shim.partitions.leader_epochs import look_at_hosted
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire import codes
from broker_shim.wire.apis import NEVER
from broker_shim.wire.codes import Code
from broker_shim.wire.fetch_codec import READ_COMMITTED
from logstore.errors import LogStoreError
from logstore.layout.broker import INTERNAL_TOPICS

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_KNOWN_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""Which version of ListOffsets is the first that may ask for it."""
NONE_FOUND = -1
LISTED_FROM = 16
"""A LIST costs as much as a dozen GETs."""
Answer = Callable[[HostedPartition | Code, Any], Awaitable[dict[str, Any]]]


class LogApi:
    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions

    async def list_offsets(self, call: Call) -> Response:
        committed = call.request.get("isolation_level", 0) == READ_COMMITTED
        since = await self._look_at_all(call, committed)
        listed = partial(self._list, call.version, committed, since)
        return await self._each_topic(call, Operation.DESCRIBE, listed)

    async def _look_at_all(self, call: Call, committed: bool) -> float | None:
        """A look at all partitions of others that are asked about: those of a lane cost about as much as one. The moment
        since when they need no other; None if there are none to speak of."""
        found: list[HostedPartition] = []
        for topic in call.request.topics or ():
            if not call.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
                continue
            with suppress(LogStoreError, OSError):
                await self._partitions.find(topic.name)
            for index in {each.partition_index for each in topic.partitions or ()}:
                hosted = self._partitions.get(topic.name, index)
                if isinstance(hosted, HostedPartition) and not hosted.is_owned:
                    found.append(hosted)
        since = await self._partitions.run(look_at_hosted, found) if len(found) > 1 else None
        unknown = [each for each in found if committed and not each.has_learned]
        if len(unknown) >= LISTED_FROM:
            with suppress(LogStoreError, OSError):
                for hosted, end in await self._partitions.run(without_transactions, unknown):
                    hosted.had_none(end)
        return since

    async def _each_topic(
        self,
        call: Call,
        operation: Operation,
        answer: Answer,
        name: str = "name",
        index: str = "partition_index",
    ) -> Response:
        """What `answer` says about each partition of the request. `name` and `index`: what this API calls them."""
        topics = []
        for topic in call.request.topics or ():
            asked = [(getattr(each, index), each) for each in topic.partitions or ()]
            rows = await self._each(call, operation, getattr(topic, name), asked, answer)
            topics.append({name: getattr(topic, name), "partitions": rows})
        return {"topics": topics}

    async def _each(
        self, call: Call, operation: Operation, topic: str, asked: list[tuple[int, Any]], answer: Answer
    ) -> list[dict[str, Any]]:
        """What `answer` says about each of a topic's partitions, or about the reason why it cannot be asked."""
        refusal: Code | None = Code.TOPIC_AUTHORIZATION_FAILED
        if call.may(operation, Resource.TOPIC, topic):
            try:
                await self._partitions.find(topic)
                refusal = None
            except (LogStoreError, OSError) as error:
                refusal = codes.of_read(error)
        times = Counter(index for index, _ in asked)

        async def one(each: tuple[int, Any]) -> dict[str, Any]:
            index, question = each
            if refusal is not None:
                return await answer(refusal, question)
            # As Kafka does: one request may name a partition once. A hundred thousand times the same is no question.
            found = Code.INVALID_REQUEST if times[index] > 1 else self._partitions.get(topic, index)
            return await answer(found, question)

        return await few_at_once(one, asked)

    async def _list(
        self, version: int, committed: bool, since: float | None, hosted: HostedPartition | Code, asked: Any
    ) -> dict[str, Any]:
        index = asked.partition_index
        try:
            if isinstance(hosted, Code):
                return {"partition_index": index, "error_code": hosted}
            await hosted.open(since)
            if asked.timestamp < 0 and version < _KNOWN_FROM.get(asked.timestamp, NEVER):
                return {"partition_index": index, "error_code": Code.UNSUPPORTED_VERSION}
            code = await self._check_epoch(hosted, asked.get("current_leader_epoch", -1))
            if code is not Code.NONE:
                return {"partition_index": index, "error_code": code}
            offset, timestamp = await self._find(hosted, asked.timestamp, committed, since)
        except (LogStoreError, OSError) as error:
            return {"partition_index": index, "error_code": codes.of_read(error)}
        return {
            "partition_index": index,
            "error_code": Code.NONE,
            "timestamp": timestamp,
            "offset": offset,
            "leader_epoch": hosted.log._internal.epoch,
        }

    async def _find(
        self, hosted: HostedPartition, timestamp: int, committed: bool, since: float | None
    ) -> tuple[int, int]:
        """The offset asked for, and the timestamp of its record where that is part of the question."""
        log = hosted.log
        # Every record is as near as any other: what is local begins where the log does, and nothing is anywhere else.
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return hosted.low_watermark, -1
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NONE_FOUND, -1
        if not hosted.is_owned:
            await self._partitions.run(hosted.look, since)
        high = (await hosted.learn_stable()).end if committed else log.buffered_high_watermark
        if timestamp == LATEST:
            return high, -1
        if timestamp == MAX_TIMESTAMP:
            latest = await self._partitions.run(latest_by_time, log)
            return (NONE_FOUND, -1) if latest is None or latest[0] >= high else latest
        found = await self._partitions.run(log.offset_for_timestamp, timestamp)
        if found is None or found >= high:
            return NONE_FOUND, -1
        return found, await self._partitions.run(_timestamp_at, hosted, found)

    async def _check_epoch(self, hosted: HostedPartition, asked: int) -> Code:
        """As for a fetch: an older epoch does no harm, a later one means that we are not the leader any more."""
        if hosted.knows_epoch(asked):
            return Code.NONE
        await self._partitions.run(hosted.log.refresh)
        return Code.NONE if hosted.knows_epoch(asked) or hosted.is_recreated else Code.UNKNOWN_LEADER_EPOCH

    async def offset_for_leader_epoch(self, call: Call) -> Response:
        return await self._each_topic(call, Operation.DESCRIBE, self._epoch_end, "topic", "partition")

    async def _epoch_end(self, hosted: HostedPartition | Code, asked: Any) -> dict[str, Any]:
        """Where an epoch ended: no log of ours is ever truncated, so a consumer of any epoch may go on, and each ends where
        the log does.

        Not where its successor began: a fetch with an older epoch is served here, and a consumer's place may be further than
        the epoch it names. franz-go passes aborted batches without a look at theirs, and calls a smaller end data loss.
        """
        answer = {"partition": asked.partition, "error_code": Code.NONE}
        try:
            if isinstance(hosted, Code):
                return {**answer, "error_code": hosted}
            await hosted.open()
            code = await self._check_epoch(hosted, asked.get("current_leader_epoch", -1))
            if code is not Code.NONE:
                return {**answer, "error_code": code}
            if not hosted.is_owned:
                await self._partitions.run(hosted.log.refresh)
            known = hosted.log._internal
            if not 0 <= asked.leader_epoch <= known.epoch:
                return answer
        except (LogStoreError, OSError) as error:
            return {**answer, "error_code": codes.of_read(error)}
        return {**answer, "leader_epoch": asked.leader_epoch, "end_offset": known.reserved_end}

    async def delete_records(self, call: Call) -> Response:
        return await self._each_topic(call, Operation.DELETE, self._delete)

    async def _delete(self, hosted: HostedPartition | Code, asked: Any) -> dict[str, Any]:
        answer = {"partition_index": asked.partition_index, "low_watermark": -1}
        if isinstance(hosted, HostedPartition) and hosted.topic in INTERNAL_TOPICS:
            hosted = Code.INVALID_TOPIC_EXCEPTION
        try:
            if isinstance(hosted, Code):
                return {**answer, "error_code": hosted}
            await hosted.open()
            low = await hosted.trim(
                hosted.log.buffered_high_watermark if asked.offset == LATEST else asked.offset
            )
        except (LogStoreError, OSError) as error:
            return {**answer, "error_code": codes.of_admin(error)}
        return {**answer, "low_watermark": low, "error_code": Code.NONE}


def _timestamp_at(hosted: HostedPartition, offset: int) -> int:
    for record in hosted.log.read(offset, 0).records():
        return record.timestamp_ms if record.timestamp_ms is not None else -1
    return -1
