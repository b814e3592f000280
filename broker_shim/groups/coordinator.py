"""The group coordinator: finds the shard of a group, loads it when this broker takes it, lets it go when it
is lost.

A group lives in one partition of the internal topic; the broker that leads that partition coordinates the
group, as in Kafka. Loading fences the former coordinator first, so two brokers never both accept commits of
one group.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from functools import lru_cache

from broker_shim.groups.group_shard import Shard
from broker_shim.groups.member import Limits
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import Hosted
from broker_shim.partitions.partition_registry import Partitions
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError
from logstore.layout.broker import INTERNAL_TOPIC

log = logging.getLogger(__name__)
LOAD_PATIENCE_S = 5.0
EXPIRE_EVERY_S = 600.0


class Coordinator:
    def __init__(
        self,
        partitions: Partitions,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        shards: int,
        offsets_retention_s: float,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._loop = loop
        self._limits = limits
        self._count = shards
        self._retention_ms = int(offsets_retention_s * 1000)
        self.now_ms = now_ms
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, asyncio.Task[Shard]] = {}
        self._expiry = loop.call_later(EXPIRE_EVERY_S, self._expire)

    async def place(self, group: str) -> int:
        """The partition of the internal topic that a group lives in. Creates the topic if there is none."""
        topic = await self._partitions.ensure(INTERNAL_TOPIC, self._count)
        return java_hash(group) % topic.partitions

    async def shard(self, group: str) -> Shard | Code:
        """The loaded shard of a group, or why there is none here."""
        if not group:
            return Code.INVALID_GROUP_ID
        try:
            index = await self.place(group)
            if not self._cluster.leads(INTERNAL_TOPIC, index):
                return Code.NOT_COORDINATOR
            known = self._shards.get(index)
            if known is not None:
                return known
            return await asyncio.wait_for(asyncio.shield(self._load(index)), LOAD_PATIENCE_S)
        except TimeoutError:
            return Code.COORDINATOR_LOAD_IN_PROGRESS
        except (LogStoreError, OSError) as error:
            log.warning("group %s: %s", group, error)
            return Code.COORDINATOR_NOT_AVAILABLE

    async def all_shards(self) -> list[Shard]:
        """Every shard that this broker leads, loaded: what ListGroups speaks of."""
        topic = await self._partitions.ensure(INTERNAL_TOPIC, self._count)
        led = [index for index in range(topic.partitions) if self._cluster.leads(INTERNAL_TOPIC, index)]
        loading = [self._load(index) for index in led if index not in self._shards]
        if loading:
            loaded, late = await asyncio.wait(loading, timeout=LOAD_PATIENCE_S)
            if late:
                raise TimeoutError(f"{len(late)} partitions of {INTERNAL_TOPIC} are not loaded yet")
            for task in loaded:
                task.result()
        return [self._shards[index] for index in led if index in self._shards]

    def _load(self, index: int) -> asyncio.Task[Shard]:
        task = self._loading.get(index)
        if task is None:
            task = self._loading[index] = self._loop.create_task(self._loaded(index))
            task.add_done_callback(lambda done: self._loading.pop(index, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _loaded(self, index: int) -> Shard:
        found = self._partitions.get(INTERNAL_TOPIC, index)
        if isinstance(found, Code):
            raise LogStoreError(f"{INTERNAL_TOPIC}/{index}: {found.name}")
        await found.take()
        shard = Shard(found, self._limits, new_member_id, self.now_ms, self._loop)
        await self._partitions.run(shard.load)
        if not found.is_owned:
            raise LogStoreError(f"{found} was taken away while it was read")
        shard.restore()
        self._shards[index] = shard
        log.info("%s: %d groups, %d with offsets", found, len(shard.groups), len(shard.offsets))
        return shard

    def lost(self, partition: Hosted) -> None:
        """The log of a shard is no longer ours: its groups have another coordinator."""
        if partition.topic == INTERNAL_TOPIC:
            self._drop(partition.index)

    def release_unled(self) -> None:
        """The view has changed: give up the shards that others lead now."""
        for index in list(self._shards):
            if self._cluster.leader(INTERNAL_TOPIC, index) != self._cluster.me.node_id:
                self._drop(index)

    def _drop(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close(Code.NOT_COORDINATOR)

    def forget_topic(self, incarnation: str) -> None:
        """What was committed for a topic that is deleted goes too. What other brokers, and shards that nobody asked
        for yet, still hold of it is not answered any more: it was committed for another topic of that name.
        """
        for shard in self._shards.values():
            shard.forget_topic(incarnation)

    def _expire(self) -> None:
        for shard in self._shards.values():
            shard.expire(self._retention_ms)
        self._expiry = self._loop.call_later(EXPIRE_EVERY_S, self._expire)

    def end_all(self) -> None:
        """The broker stops: whoever waits for a group is sent to look for its next coordinator. Commits are still taken."""
        for shard in self._shards.values():
            shard.close(Code.NOT_COORDINATOR)

    def close(self) -> None:
        self._expiry.cancel()
        for index in list(self._shards):
            self._drop(index)


def new_member_id(prefix: str) -> str:
    return f"{prefix or 'consumer'}-{uuid.uuid4()}"


@lru_cache(maxsize=10_000)
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`: how Kafka finds a group's partition."""
    value = 0
    units = text.encode("utf-16-be")
    for place in range(0, len(units), 2):
        value = (31 * value + (units[place] << 8 | units[place + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)
