"""Telling every partition of a transaction how it ended: each is asked again, with backoff, until its marker is stored.

A partition that this broker leads gets its marker here; one of another broker by a request to that one (WriteTxnMarkers, as
in Kafka). Partitions of `__consumer_offsets` hold offsets: those are committed, or forgotten, by the group's coordinator.
A topic that is deleted has no partition to tell.

If this broker leads all of them, and the coordinator's log and they are in one lane, they are told and the decision is
recorded with one append, all or none (`at_once`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count

from broker_shim.groups.coordinator import Coordinator
from broker_shim.net.peers import Peers
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.partitions.state_log import StateLog, outcome
from broker_shim.partitions.together import Part, append_together, in_one_lane
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError
from logstore.format.batches.markers import Marker
from logstore.layout.broker import INTERNAL_TOPIC
from logstore.objects import RetryPolicy

log = logging.getLogger(__name__)
Place = tuple[str, int]
RETRIES = RetryPolicy(None, base_s=0.02, cap_s=1.0)
ASK_PATIENCE_S = 20.0
DONE = (Code.NONE, Code.TRANSACTION_COORDINATOR_FENCED)
"""It is stored, or somebody who came after us has put it there."""


@dataclass(eq=False)
class MarkerSender:
    _partitions: PartitionRegistry
    _groups: Coordinator
    _cluster: Cluster
    _peers: Peers

    def is_one_lane(self, state: StateLog, places: Iterable[Place]) -> bool:
        """Whether this broker leads all of these partitions, and commits them together with the coordinator's log."""
        logs = [state.hosted.log]
        if not in_one_lane(logs):
            return False
        for topic, index in places:
            hosted = self._partitions.get(topic, index)
            if not isinstance(hosted, HostedPartition):
                return False
            logs.append(hosted.log)
        return in_one_lane(logs)

    def taken_at(self, topic: str, index: int) -> float:
        """Since when this broker writes to the partition, by the loop's clock."""
        hosted = self._partitions.hosted(topic, index)
        return 0.0 if hosted is None else hosted.taken_at

    def at_once(self, state: Part, marker: Marker, places: Iterable[Place]) -> bool:
        """Store what the coordinator's log is to say together with the marker in every partition. False if that cannot be
        done now: then nothing has happened."""
        if not in_one_lane([state.log]):
            return False
        parts: list[Part] = []
        for topic, index in places:
            part = self._part_of_end(marker, topic, index)
            if part is None:
                return False
            if isinstance(part, Part):
                parts.append(part)
        try:
            append_together(
                [*parts, state]
            )  # last: whoever is told that it is done may look at the partitions
        except LogStoreError as error:
            log.info("a transaction is ended in two steps: %s", error)
            return False
        return True

    def _part_of_end(self, marker: Marker, topic: str, index: int) -> Part | Code | None:
        hosted = self._partitions.get(topic, index)
        if not isinstance(hosted, HostedPartition):
            return None
        if topic == INTERNAL_TOPIC:
            shard = self._groups.shards.loaded(index)
            return None if shard is None else shard.transactional.part_of_end(marker)
        return hosted.part_of_end(marker)

    async def send(self, marker: Marker, places: frozenset[tuple[str, int]]) -> None:
        """Returns when the marker is stored in every partition."""
        await asyncio.gather(
            *(self._until_it_stands(marker, topic, index) for topic, index in sorted(places))
        )

    async def _until_it_stands(self, marker: Marker, topic: str, index: int) -> None:
        for failures in count(1):
            try:
                code = await asyncio.wait_for(self._send(marker, topic, index), ASK_PATIENCE_S)
            except Exception as error:
                # Whatever it is: a decision is carried out, and somebody may mend what is in its way.
                log.warning("%s/%d: a marker could not be written: %r", topic, index, error)
                code = Code.UNKNOWN_SERVER_ERROR
            if code in DONE:
                return
            await asyncio.sleep(RETRIES.limit_s(failures))

    async def _send(self, marker: Marker, topic: str, index: int) -> Code:
        leader = self._cluster.leader(topic, index)
        if leader == self._cluster.me.node_id:
            return await self.write_here(marker, topic, index)
        node = self._cluster.node(leader)
        if node is None:
            return Code.NOT_LEADER_OR_FOLLOWER
        values = {
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "transaction_result": marker.is_commit,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "coordinator_epoch": marker.coordinator_epoch,
            "started_ms": marker.started_ms,
        }
        answer = await self._peers.ask(
            (node.host, node.port), Api.WRITE_TXN_MARKERS, 1, {"markers": [values]}
        )
        return Code(answer.markers[0].topics[0].partitions[0].error_code)

    async def write_here(self, marker: Marker, topic: str, index: int) -> Code:
        """A partition that this broker leads."""
        if topic == INTERNAL_TOPIC:
            shard = await self._groups.shards.at(index)
            if isinstance(shard, Code):
                return shard
            return await outcome(partial(shard.transactional.end, marker))
        found = await self._partitions.find(topic)
        if found is None or index >= found.partitions:
            return Code.NONE  # it was deleted, and with it what was written
        hosted = self._partitions.get(topic, index)
        if not isinstance(hosted, HostedPartition):
            return hosted
        return await outcome(lambda done: hosted.end_transaction(marker, lambda code, *_: done(code)))
