"""The transaction coordinator: the shards of `__transaction_state`, and the question that partitions ask it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from broker_shim.groups.coordinator import Coordinator
from broker_shim.net.peers import Peers
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.partitions.shards import Shards, java_hash
from broker_shim.partitions.transaction_gate import Companion
from broker_shim.transactions.marker_sender import MarkerSender
from broker_shim.transactions.transaction_shard import TransactionShard
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError
from logstore.layout.broker import TRANSACTION_TOPIC
from logstore.objects import RetryPolicy

EXPIRE_EVERY_S = 600.0
LOAD_RETRIES = RetryPolicy(None, base_s=0.2, cap_s=5.0)
log = logging.getLogger(__name__)
ASK_PATIENCE_S = 5.0
ASK_AGAIN = Code.NOT_ENOUGH_REPLICAS
"""What a producer is told while its coordinator cannot be asked: clients send the batch again."""


class TransactionCoordinator:
    def __init__(
        self,
        partitions: PartitionRegistry,
        groups: Coordinator,
        cluster: Cluster,
        peers: Peers,
        loop: asyncio.AbstractEventLoop,
        *,
        shards: int,
        id_expiration_s: float,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._peers = peers
        self._loop = loop
        self._expiration_ms = int(id_expiration_s * 1000)
        self.now_ms = now_ms
        self.markers = MarkerSender(partitions, groups, cluster, peers)
        self.shards = Shards(TRANSACTION_TOPIC, shards, self._shard_of, partitions, cluster, loop)
        self._expiry = loop.call_later(EXPIRE_EVERY_S, self._expire)
        self._loading: asyncio.Task[None] | None = None
        partitions.on_open_transactions = self.load_soon

    def _shard_of(self, hosted: HostedPartition) -> TransactionShard:
        return TransactionShard(hosted, lambda: self.now_ms(), self._loop, self.markers)

    async def shard(self, transactional_id: str) -> TransactionShard | Code:
        """The loaded shard of a transactional id, or why there is none here."""
        return await self.shards.of(transactional_id) if transactional_id else Code.INVALID_REQUEST

    def verify(
        self, transactional_id: str, topic: str, index: int, producer_id: int, epoch: int
    ) -> Code | Companion | Coroutine[Any, Any, Code]:
        """Is the partition part of the transaction that this producer has open? At once, if it is coordinated here; with a
        companion, if that is in memory only."""
        known = self._partitions.topic(TRANSACTION_TOPIC)
        if known is not None:
            shard = self.shards.loaded(java_hash(transactional_id) % known.partitions)
            if shard is not None:
                return shard.verify(transactional_id, producer_id, epoch, (topic, index))
        return self._ask(transactional_id, topic, index, producer_id, epoch)

    async def _ask(self, transactional_id: str, topic: str, index: int, producer_id: int, epoch: int) -> Code:
        place = await self.shards.place(transactional_id)
        leader = self._cluster.leader(TRANSACTION_TOPIC, place)
        if leader == self._cluster.me.node_id:
            shard = await self.shards.at(place)
            if isinstance(shard, Code):
                return ASK_AGAIN
            return await shard.verified(transactional_id, producer_id, epoch, (topic, index))
        node = self._cluster.node(leader)
        if node is None:
            return ASK_AGAIN
        asked = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "verify_only": True,
            "topics": [{"name": topic, "partitions": [index]}],
        }
        try:
            answer = await asyncio.wait_for(
                self._peers.ask(
                    (node.host, node.port), Api.ADD_PARTITIONS_TO_TXN, 4, {"transactions": [asked]}
                ),
                ASK_PATIENCE_S,
            )
        except (OSError, TimeoutError, EOFError, ValueError):
            return ASK_AGAIN
        if answer.error_code != Code.NONE:
            return ASK_AGAIN
        code = Code(
            answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code
        )
        final = (Code.NONE, Code.INVALID_TXN_STATE, Code.INVALID_PRODUCER_EPOCH, Code.UNKNOWN_PRODUCER_ID)
        return code if code in final else ASK_AGAIN

    def load_soon(self) -> None:
        """Load every shard that this broker leads, if there are any: what is decided is told to its partitions, what goes
        on times out, also if no producer ever comes back. Costs one request where there are no transactions.
        """
        if self._loading is None:
            self._loading = self._loop.create_task(self._load_all())

    async def _load_all(self) -> None:
        try:
            for failures in count(1):
                try:
                    if await self._partitions.find(TRANSACTION_TOPIC) is not None:
                        await self.shards.all()
                    return
                except (LogStoreError, OSError, TimeoutError) as error:
                    log.warning("transactions are not loaded yet: %s", error)
                await asyncio.sleep(LOAD_RETRIES.limit_s(failures))
        finally:
            self._loading = None

    def _expire(self) -> None:
        for shard in self.shards:
            shard.expire(self._expiration_ms)
        self._expiry = self._loop.call_later(EXPIRE_EVERY_S, self._expire)

    def close(self) -> None:
        self._expiry.cancel()
        if self._loading is not None:
            self._loading.cancel()
        self.shards.close()
        self._peers.close()
