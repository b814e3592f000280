"""A coordinator's shards: one for each partition of its internal topic, loaded when this broker takes it, let go when it
is lost.

What is asked about by a name lives in the partition that the name hashes to; the broker that leads that partition answers,
as in Kafka. Loading fences the former owner first, so two brokers never both accept changes of one name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError

log = logging.getLogger(__name__)
LOAD_PATIENCE_S = 5.0


class Shard(Protocol):
    def load(self) -> None:
        """Read the log. In a worker thread, before anybody else sees this shard."""

    def restore(self) -> None:
        """On the loop, after `load`."""

    def close(self, error: Code) -> None:
        """Somebody else coordinates from now on, or the broker stops: nobody is left waiting."""


S = TypeVar("S", bound=Shard)


@dataclass(eq=False)
class Shards(Generic[S]):
    """`_count`: how many partitions the topic gets if there is none yet."""

    topic: str
    _count: int
    _make: Callable[[HostedPartition], S]
    _partitions: PartitionRegistry
    _cluster: Cluster
    _loop: asyncio.AbstractEventLoop
    _shards: dict[int, S] = field(default_factory=dict, init=False)
    _loading: dict[int, asyncio.Task[S]] = field(default_factory=dict, init=False)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._shards.values()))

    async def place(self, name: str) -> int:
        """The partition that a name lives in. Creates the topic if there is none."""
        topic = await self._partitions.ensure(self.topic, self._count)
        return java_hash(name) % topic.partitions

    async def of(self, name: str) -> S | Code:
        """The loaded shard of a name, or why there is none here."""
        try:
            return await self.at(await self.place(name))
        except (LogStoreError, OSError) as error:
            log.warning("%s of %s: %s", name, self.topic, error)
            return Code.COORDINATOR_NOT_AVAILABLE

    async def at(self, index: int) -> S | Code:
        """The loaded shard of a partition. The topic is looked up: a broker that has just started does not know it."""
        try:
            await self._partitions.ensure(self.topic, self._count)
            if not self._cluster.leads(self.topic, index):
                return Code.NOT_COORDINATOR
            known = self._shards.get(index)
            if known is not None:
                return known
            return await asyncio.wait_for(asyncio.shield(self._load(index)), LOAD_PATIENCE_S)
        except TimeoutError:
            return Code.COORDINATOR_LOAD_IN_PROGRESS
        except (LogStoreError, OSError) as error:
            log.warning("%s/%d: %s", self.topic, index, error)
            return Code.COORDINATOR_NOT_AVAILABLE

    def loaded(self, index: int) -> S | None:
        """The shard, if it is here and ours."""
        return self._shards.get(index) if self._cluster.leads(self.topic, index) else None

    async def all(self) -> list[S]:
        """Every shard that this broker leads, loaded."""
        topic = await self._partitions.ensure(self.topic, self._count)
        led = [index for index in range(topic.partitions) if self._cluster.leads(self.topic, index)]
        loading = [self._load(index) for index in led if index not in self._shards]
        if loading:
            loaded, late = await asyncio.wait(loading, timeout=LOAD_PATIENCE_S)
            if late:
                raise TimeoutError(f"{len(late)} partitions of {self.topic} are not loaded yet")
            for task in loaded:
                task.result()
        return [self._shards[index] for index in led if index in self._shards]

    def _load(self, index: int) -> asyncio.Task[S]:
        task = self._loading.get(index)
        if task is None:
            task = self._loading[index] = self._loop.create_task(self._loaded(index))
            task.add_done_callback(lambda done: self._loading.pop(index, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _loaded(self, index: int) -> S:
        found = self._partitions.get(self.topic, index)
        if isinstance(found, Code):
            raise LogStoreError(f"{self.topic}/{index}: {found.name}")
        await found.take()
        shard = self._make(found)
        await self._partitions.run(shard.load)
        if not found.is_owned:
            raise LogStoreError(f"{found} was taken away while it was read")
        shard.restore()
        self._shards[index] = shard
        log.info("%s: loaded", found)
        return shard

    def lost(self, partition: HostedPartition) -> None:
        """The log of a shard is no longer ours: what lives there has another coordinator."""
        if partition.topic == self.topic:
            self._drop(partition.index)

    def release_unled(self) -> None:
        """The view has changed: give up the shards that others lead now."""
        for index in list(self._shards):
            if self._cluster.leader(self.topic, index) != self._cluster.me.node_id:
                self._drop(index)

    def _drop(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close(Code.NOT_COORDINATOR)

    def end_all(self) -> None:
        """The broker stops: whoever waits is sent to look for the next coordinator. Changes are still taken."""
        for shard in self:
            shard.close(Code.NOT_COORDINATOR)

    def close(self) -> None:
        for index in list(self._shards):
            self._drop(index)


@lru_cache(maxsize=10_000)
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`: how Kafka finds the partition of a group or a transactional id."""
    value = 0
    units = text.encode("utf-16-be")
    for place in range(0, len(units), 2):
        value = (31 * value + (units[place] << 8 | units[place + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)
