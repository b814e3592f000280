"""Members of the classic protocol in groups of the consumer protocol: what JoinGroup and its like do there.

A group is looked for again behind each wait: the last member of the consumer protocol may have gone meanwhile, and the group
is a classic one. Who asked is then told to join again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker_shim.groups import classic_members
from broker_shim.groups.assignors import TopicInfo
from broker_shim.groups.classic_members import Protocol
from broker_shim.groups.consumer_group import JOINING, ConsumerGroup, Heartbeat, Held, Refused
from broker_shim.groups.group_shard import GroupShard
from broker_shim.groups.member import Joined, JoinRequest, Synced
from broker_shim.groups.subscription import of_protocols
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code

TopicsFor = Callable[[ConsumerGroup, Heartbeat], Awaitable[dict[str, TopicInfo]]]


class ClassicMemberApi:
    def __init__(
        self, topics: TopicsFor, partitions: PartitionRegistry, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`topics`: what the store has of those that a group, and somebody who joins it, are about."""
        self._topics = topics
        self._partitions = partitions
        self._loop = loop

    async def join(self, shard: GroupShard, name: str, request: JoinRequest) -> Joined:
        said = of_protocols(request.protocols)
        wanted = said.topics if said is not None else frozenset[str]()
        try:
            topics = await self._topics(
                self._group(shard, name), Heartbeat(request.member_id, JOINING, names=wanted)
            )
            group = self._group(shard, name)
            now = self._loop.time()
            answer = classic_members.join(group, request, topics, shard.limits, shard.new_id, now)
            return await shard.consumers.changed(group, answer)
        except Refused as refusal:
            return Joined(refusal.code, request.member_id)

    async def sync(
        self,
        shard: GroupShard,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: Protocol,
    ) -> Synced:
        try:
            group, now = self._group(shard, name), self._loop.time()
            answer = classic_members.sync(
                group, member_id, instance_id, generation, protocol, self._named, now
            )
            return await shard.consumers.changed(group, answer)
        except Refused as refusal:
            return Synced(refusal.code)

    def _named(self, held: Held) -> list[tuple[str, int]]:
        """Without those of topics that are gone."""
        found = ((self._partitions.name_of(topic_id), index) for topic_id, index in held)
        return [(name, index) for name, index in found if name is not None]

    async def heartbeat(
        self, shard: GroupShard, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> Code:
        try:
            group, now = self._group(shard, name), self._loop.time()
            code = classic_members.heartbeat(group, member_id, instance_id, generation, now)
            return await shard.consumers.changed(group, code)
        except Refused as refusal:
            return refusal.code

    async def leave(self, shard: GroupShard, name: str, member_id: str, instance_id: str | None) -> Code:
        try:
            group = self._group(shard, name)
            classic_members.leave(group, member_id, instance_id)
            return await shard.consumers.changed(group, Code.NONE)
        except Refused as refusal:
            return refusal.code

    @staticmethod
    def _group(shard: GroupShard, name: str) -> ConsumerGroup:
        group = shard.mixed(name)
        if group is None:
            raise Refused(Code.REBALANCE_IN_PROGRESS)
        return group
