"""Questions about a partition's offsets: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_shim import codes
from broker_shim.acls import Operation, Resource
from broker_shim.call import Call, Response
from broker_shim.codes import Code
from broker_shim.epochs import epoch_end
from broker_shim.fetch_codec import READ_COMMITTED
from broker_shim.hosted import Hosted
from broker_shim.partitions import Partitions
from broker_shim.topics import INTERNAL_TOPIC
from logstore.errors import LogStoreError

LATEST, EARLIEST = -1, -2
NONE_FOUND = -1


class LogApi:
    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def list_offsets(self, call: Call) -> Response:
        committed = call.request.get("isolation_level", 0) == READ_COMMITTED
        answers = []
        for topic in call.request.topics or ():
            allowed = call.may(Operation.DESCRIBE, Resource.TOPIC, topic.name)
            rows = [self._list(topic.name, each, committed, allowed) for each in topic.partitions or ()]
            answers.append({"name": topic.name, "partitions": list(await asyncio.gather(*rows))})
        return {"topics": answers}

    async def _list(self, topic: str, asked: Any, committed: bool, allowed: bool) -> dict[str, Any]:
        index = asked.partition_index
        try:
            hosted = await self._open(topic, index, allowed)
            if isinstance(hosted, Code):
                return {"partition_index": index, "error_code": hosted}
            if asked.timestamp < EARLIEST:  # the largest timestamp, and others of later versions
                return {"partition_index": index, "error_code": Code.UNSUPPORTED_VERSION}
            code = _check_epoch(hosted, asked.get("current_leader_epoch", -1))
            if code is not Code.NONE:
                return {"partition_index": index, "error_code": code}
            offset, timestamp = await self._find(hosted, asked.timestamp, committed)
        except (LogStoreError, OSError) as error:
            return {"partition_index": index, "error_code": codes.of_read(error)}
        epoch = hosted.log.epoch
        return {
            "partition_index": index,
            "error_code": Code.NONE,
            "timestamp": timestamp,
            "offset": offset,
            "leader_epoch": epoch,
        }

    async def _find(self, hosted: Hosted, timestamp: int, committed: bool) -> tuple[int, int]:
        """The offset asked for, and the timestamp of its record where that is part of the question."""
        log = hosted.log
        if timestamp == EARLIEST:
            return hosted.low_watermark, -1
        if not hosted.is_owned:
            await self._partitions.run(log.refresh)
        high = log.durable_high_watermark if committed else log.buffered_high_watermark
        if timestamp == LATEST:
            return high, -1
        found = await self._partitions.run(log.offset_for_timestamp, timestamp)
        if found is None or found >= high:
            return NONE_FOUND, -1
        return found, await self._partitions.run(_timestamp_at, hosted, found)

    async def _open(self, topic: str, index: int, allowed: bool) -> Hosted | Code:
        if not allowed:
            return Code.TOPIC_AUTHORIZATION_FAILED
        await self._partitions.find(topic)
        found = self._partitions.get(topic, index)
        if isinstance(found, Hosted):
            await found.open()
        return found

    async def offset_for_leader_epoch(self, call: Call) -> Response:
        answers = []
        for topic in call.request.topics or ():
            allowed = call.may(Operation.DESCRIBE, Resource.TOPIC, topic.topic)
            rows = [self._epoch_end(topic.topic, each, allowed) for each in topic.partitions or ()]
            answers.append({"topic": topic.topic, "partitions": list(await asyncio.gather(*rows))})
        return {"topics": answers}

    async def _epoch_end(self, topic: str, asked: Any, allowed: bool) -> dict[str, Any]:
        """Where an epoch ended. No log of ours is ever truncated, so a consumer of any epoch may go on.

        The current epoch ends at the high watermark; an earlier one ended where its successor began.
        """
        answer = {"partition": asked.partition, "error_code": Code.NONE}
        try:
            hosted = await self._open(topic, asked.partition, allowed)
            if isinstance(hosted, Code):
                return {**answer, "error_code": hosted}
            code = _check_epoch(hosted, asked.get("current_leader_epoch", -1))
            if code is not Code.NONE:
                return {**answer, "error_code": code}
            if asked.leader_epoch > hosted.log.epoch:
                return answer
            epoch, end = await self._partitions.run(epoch_end, hosted.log, asked.leader_epoch)
        except (LogStoreError, OSError) as error:
            return {**answer, "error_code": codes.of_read(error)}
        return {**answer, "leader_epoch": epoch, "end_offset": end}

    async def delete_records(self, call: Call) -> Response:
        answers = []
        for topic in call.request.topics or ():
            allowed = call.may(Operation.DELETE, Resource.TOPIC, topic.name)
            rows = [await self._delete(topic.name, each, allowed) for each in topic.partitions or ()]
            answers.append({"name": topic.name, "partitions": rows})
        return {"topics": answers}

    async def _delete(self, topic: str, asked: Any, allowed: bool) -> dict[str, Any]:
        answer = {"partition_index": asked.partition_index, "low_watermark": -1}
        if topic == INTERNAL_TOPIC and allowed:
            return {**answer, "error_code": Code.INVALID_TOPIC_EXCEPTION}
        try:
            hosted = await self._open(topic, asked.partition_index, allowed)
            if isinstance(hosted, Code):
                return {**answer, "error_code": hosted}
            low = await hosted.trim(
                hosted.log.buffered_high_watermark if asked.offset == LATEST else asked.offset
            )
        except (LogStoreError, OSError) as error:
            return {**answer, "error_code": codes.of_admin(error)}
        return {**answer, "low_watermark": low, "error_code": Code.NONE}


def _check_epoch(hosted: Hosted, asked: int) -> Code:
    """As for a fetch: an older epoch does no harm, a later one means that we are not the leader any more."""
    return Code.NONE if asked <= hosted.log.epoch else Code.UNKNOWN_LEADER_EPOCH


def _timestamp_at(hosted: Hosted, offset: int) -> int:
    for record in hosted.log.read(offset, 0).records():
        return record.timestamp_ms if record.timestamp_ms is not None else -1
    return -1
