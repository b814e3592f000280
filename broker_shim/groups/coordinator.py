"""The group coordinator: the shards of `__consumer_offsets`, and what they have in common."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from broker_shim.groups.consumer_group import ConsumerLimits
from broker_shim.groups.group_shard import GroupShard
from broker_shim.groups.member import Limits
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.partitions.shards import Shards
from broker_shim.wire.codes import Code
from logstore.layout.broker import INTERNAL_TOPIC

EXPIRE_EVERY_S = 600.0


class Coordinator:
    def __init__(
        self,
        partitions: PartitionRegistry,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        consumer_limits: ConsumerLimits,
        *,
        shards: int,
        offsets_retention_s: float,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._loop = loop
        self._limits = limits
        self.consumer_limits = consumer_limits
        self._retention_ms = int(offsets_retention_s * 1000)
        self.now_ms = now_ms
        self.shards = Shards(INTERNAL_TOPIC, shards, self._shard_of, partitions, cluster, loop)
        self._expiry = loop.call_later(EXPIRE_EVERY_S, self._expire)

    def _shard_of(self, hosted: HostedPartition) -> GroupShard:
        return GroupShard(hosted, self._limits, new_member_id, self.now_ms, self._loop, self.consumer_limits)

    async def place(self, group: str) -> int:
        """The partition of the internal topic that a group lives in. Creates the topic if there is none."""
        return await self.shards.place(group)

    async def shard(self, group: str) -> GroupShard | Code:
        """The loaded shard of a group, or why there is none here."""
        return await self.shards.of(group) if group else Code.INVALID_GROUP_ID

    async def all_shards(self) -> list[GroupShard]:
        """Every shard that this broker leads, loaded: what ListGroups speaks of."""
        return await self.shards.all()

    def forget_topic(self, incarnation: str) -> None:
        """What was committed for a topic that is deleted goes too. What other brokers, and shards that nobody asked
        for yet, still hold of it is not answered any more: it was committed for another topic of that name.
        """
        for shard in self.shards:
            shard.forget_topic(incarnation)

    def _expire(self) -> None:
        for shard in self.shards:
            shard.expire(self._retention_ms)
        self._expiry = self._loop.call_later(EXPIRE_EVERY_S, self._expire)

    def close(self) -> None:
        self._expiry.cancel()
        self.shards.close()


def new_member_id(prefix: str) -> str:
    return f"{prefix or 'consumer'}-{uuid.uuid4()}"
