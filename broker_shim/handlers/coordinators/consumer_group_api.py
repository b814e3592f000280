"""The consumer protocol (KIP-848) over the wire: ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.groups.assignors import TopicInfo
from broker_shim.groups.consumer_group import JOINING, ConsumerGroup, ConsumerMember, Heartbeat, Held, Refused
from broker_shim.groups.coordinator import Coordinator
from broker_shim.groups.migration import topics_of
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.coordinators.group_api import shard_for
from broker_shim.net.fairness import few_at_once, yielding
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import by_topic
from logstore.errors import LogStoreError
from logstore.layout.broker import INTERNAL_TOPIC
from logstore.topic import Topic

LOOK_EVERY_S = 300.0
"""How often the store is asked what has become of a group's topics, beyond what this broker is told: as clients do."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class ConsumerGroupApi:
    def __init__(
        self, coordinator: Coordinator, partitions: PartitionRegistry, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._loop = loop

    # ── heartbeat ────────────────────────────────────────────────────────────────────────────────────────

    async def heartbeat(self, call: Call) -> Response:
        request = call.request
        try:
            return await self._heartbeat(call)
        except Refused as refusal:
            return {
                "error_code": refusal.code,
                "error_message": refusal.message,
                "member_id": request.member_id,
                "member_epoch": request.member_epoch,
            }

    async def _heartbeat(self, call: Call) -> Response:
        name = call.request.group_id
        shard = await shard_for(self._coordinator, call, name, Operation.READ)
        if isinstance(shard, Code):
            raise Refused(shard)
        said = _said(call)
        for topic in said.names or ():
            if not call.may(Operation.DESCRIBE, Resource.TOPIC, topic):
                raise Refused(Code.TOPIC_AUTHORIZATION_FAILED)
        classic = shard.groups.get(name)
        also = topics_of(classic) if classic is not None and said.epoch == JOINING else frozenset()
        topics = await self.topics(shard.consumers.groups.get(name), said, also)
        answer = await shard.heartbeat(name, said, topics)
        assignment = None
        if answer.assignment is not None:
            rows = by_topic(answer.assignment).items()
            assignment = {
                "topic_partitions": [{"topic_id": each, "partitions": indexes} for each, indexes in rows]
            }
        return {
            "error_code": Code.NONE,
            "member_id": answer.member_id,
            "member_epoch": answer.epoch,
            "heartbeat_interval": round(shard.consumers.limits.heartbeat_interval_s * 1000),
            "assignment": assignment,
        }

    async def topics(
        self, group: ConsumerGroup | None, said: Heartbeat, also: frozenset[str] = frozenset()
    ) -> dict[str, TopicInfo]:
        """What the group may be about, as this broker knows it, and what others are `also` about. The store is asked about
        what is not known, and about everything when somebody joins, and once in a while.
        """
        names = also.union(said.names or (), group.subscribed if group is not None else ())
        has_regex = bool(said.regex) or (group is not None and group.has_regex)
        now = self._loop.time()
        try:
            if said.epoch == JOINING or (group is not None and now >= group.looked_at + LOOK_EVERY_S):
                if has_regex and not await self._partitions.list_all():
                    raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "the topics cannot be listed now")
                await few_at_once(self._partitions.find, sorted(names))
                if group is not None:
                    group.looked_at = now
            else:
                # An error is no absence: who takes one for the other takes partitions from everybody.
                await few_at_once(self._partitions.find, self._partitions.missing(names))
        except (LogStoreError, OSError) as error:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if has_regex:
            names = names.union(name for name in self._partitions.names() if name != INTERNAL_TOPIC)
        return _infos(found for name in names if (found := self._partitions.topic(name)) is not None)

    # ── describe ─────────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, call: Call) -> Response:
        names = call.request.group_ids or ()
        return {"groups": [await self._describe(call, name) async for name in yielding(names)]}

    async def _describe(self, call: Call, name: str) -> dict[str, Any]:
        shard = await shard_for(self._coordinator, call, name, Operation.DESCRIBE)
        if isinstance(shard, Code):
            return {"error_code": shard, "group_id": name}
        group = shard.consumers.groups.get(name)
        if group is None:
            why = f"{name} is no group of the consumer protocol"
            return {"error_code": Code.GROUP_ID_NOT_FOUND, "error_message": why, "group_id": name}
        await shard.log.settled()  # what is said here is in the log
        topics = {info.topic_id: topic for topic, info in (group.topics or {}).items()}
        for topic_id in {each for m in group.members.values() for each, _ in m.holds} - set(topics):
            topics[topic_id] = self._partitions.name_of(topic_id) or ""

        def rows(held: Held) -> dict[str, Any]:
            return {
                "topic_partitions": [
                    {"topic_id": topic_id, "topic_name": topics.get(topic_id, ""), "partitions": indexes}
                    for topic_id, indexes in by_topic(held).items()
                ]
            }

        def member(each: ConsumerMember) -> dict[str, Any]:
            return {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "rack_id": each.rack,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": f"/{each.client_host}",
                "subscribed_topic_names": sorted(each.names),
                "subscribed_topic_regex": each.regex,
                "assignment": rows(each.assigned),
                "target_assignment": rows(group.target.get(each.member_id, frozenset())),
                "member_type": CONSUMER_MEMBER if each.classic is None else CLASSIC_MEMBER,
            }

        return {
            "error_code": Code.NONE,
            "group_id": name,
            "group_state": group.phase.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.assignor,
            "members": [member(each) for each in group.members.values()],
        }


def _said(call: Call) -> Heartbeat:
    request = call.request
    member_id = request.member_id
    if not member_id and call.version == 0 and request.member_epoch == JOINING:
        member_id = str(uuid.uuid4())
    if not member_id:
        raise Refused(Code.INVALID_REQUEST, "a member has an id")
    owned = request.topic_partitions
    names = request.subscribed_topic_names
    return Heartbeat(
        member_id,
        request.member_epoch,
        request.instance_id or None,
        request.rack_id,
        request.rebalance_timeout / 1000 if request.rebalance_timeout >= 0 else None,
        None if names is None else frozenset(names),
        request.get("subscribed_topic_regex"),
        request.server_assignor,
        None if owned is None else frozenset((t.topic_id, i) for t in owned for i in t.partitions or ()),
        call.client_id,
        call.host,
    )


def _infos(topics: Iterable[Topic]) -> dict[str, TopicInfo]:
    return {topic.name: TopicInfo(topic._internal.descriptor.topic_id, topic.partitions) for topic in topics}
