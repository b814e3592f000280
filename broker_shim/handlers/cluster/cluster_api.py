"""Questions that Kafka's tools ask about replicas, disks and quotas, answered as it is here: the object store replicates,
brokers agree among themselves on who leads, there is one place for everything, and nobody is throttled.

DescribeLogDirs, ElectLeaders, ListPartitionReassignments, AlterPartitionReassignments, DescribeClientQuotas,
AlterClientQuotas.
"""

from __future__ import annotations

from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.cluster.broker_configs import place
from broker_shim.net.fairness import few_at_once, yielding
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError

NOT_MOVED = (
    "records are in the object store, and brokers agree among themselves on who leads: nothing can be moved"
)
NO_QUOTAS = "this broker has no quotas: nobody is throttled"


class ClusterApi:
    def __init__(self, partitions: PartitionRegistry, cluster: Cluster, config: BrokerConfig) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._config = config

    # ── sizes ────────────────────────────────────────────────────────────────────────────────────────────

    async def describe_log_dirs(self, call: Call) -> Response:
        """What is stored of the partitions that this broker leads. One that is not open is looked at in the store."""
        if not call.may(Operation.DESCRIBE, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "results": []}
        asked = call.request.topics
        if asked is None:
            names = await self._partitions.find_all()
            chosen: list[tuple[str, list[int] | None]] = [(name, None) for name in names]
        else:
            chosen = [(topic.topic, list(dict.fromkeys(topic.partitions or ()))) for topic in asked]
        topics = []
        async for name, indexes in yielding(chosen):
            rows = await self._sizes(name, indexes)
            if rows:
                topics.append({"name": name, "partitions": rows})
        result = {"error_code": Code.NONE, "log_dir": place(self._config.store), "topics": topics}
        return {"error_code": Code.NONE, "results": [result]}

    async def _sizes(self, name: str, indexes: list[int] | None) -> list[dict[str, Any]]:
        try:
            topic = await self._partitions.find(name)
        except (LogStoreError, OSError):
            return []
        if topic is None:
            return []
        chosen = range(topic.partitions) if indexes is None else indexes
        rows = await few_at_once(lambda index: self._size(name, index), chosen)
        return [row for row in rows if row is not None]

    async def _size(self, name: str, index: int) -> dict[str, Any] | None:
        """None if it is another broker's, or cannot be looked at now: a wrong size is worse than none."""
        hosted = self._partitions.get(name, index)
        if not isinstance(hosted, HostedPartition):
            return None
        try:
            await hosted.open()
        except (LogStoreError, OSError):
            return None
        size = await self._partitions.run(hosted.stored_bytes)
        return {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}

    # ── leaders and replicas ─────────────────────────────────────────────────────────────────────────────

    async def elect_leaders(self, call: Call) -> Response:
        if not call.may(Operation.ALTER, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "replica_election_results": []}
        results = []
        async for topic in yielding(call.request.topic_partitions or ()):
            exists = await self._count(topic.topic)
            rows = []
            for index in topic.partitions or ():
                known = 0 <= index < exists
                code = Code.ELECTION_NOT_NEEDED if known else Code.UNKNOWN_TOPIC_OR_PARTITION
                why = "the leader is the one that brokers have agreed on" if known else None
                rows.append({"partition_id": index, "error_code": code, "error_message": why})
            results.append({"topic": topic.topic, "partition_result": rows})
        return {"error_code": Code.NONE, "replica_election_results": results}

    async def list_reassignments(self, call: Call) -> Response:
        if not call.may(Operation.DESCRIBE, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": None, "topics": []}
        return {"error_code": Code.NONE, "error_message": None, "topics": []}

    async def alter_reassignments(self, call: Call) -> Response:
        if not call.may(Operation.ALTER, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": None, "responses": []}
        responses = []
        async for topic in yielding(call.request.topics or ()):
            exists = await self._count(topic.name)
            rows = []
            for asked in topic.partitions or ():
                code, why = self._reassign(topic.name, exists, asked)
                rows.append(
                    {"partition_index": asked.partition_index, "error_code": code, "error_message": why}
                )
            responses.append({"name": topic.name, "partitions": rows})
        allowed = call.request.get("allow_replication_factor_change", True)
        return {
            "error_code": Code.NONE,
            "error_message": None,
            "allow_replication_factor_change": allowed,
            "responses": responses,
        }

    def _reassign(self, name: str, exists: int, asked: Any) -> tuple[Code, str | None]:
        if not 0 <= asked.partition_index < exists:
            return Code.UNKNOWN_TOPIC_OR_PARTITION, None
        if asked.replicas is None:
            return Code.NO_REASSIGNMENT_IN_PROGRESS, None
        if asked.replicas == [self._cluster.leader(name, asked.partition_index)]:
            return Code.NONE, None  # it is there
        return Code.INVALID_REPLICA_ASSIGNMENT, NOT_MOVED

    async def _count(self, name: str) -> int:
        try:
            topic = await self._partitions.find(name)
        except (LogStoreError, OSError):
            topic = self._partitions.topic(name)
        return 0 if topic is None else topic.partitions

    # ── quotas ───────────────────────────────────────────────────────────────────────────────────────────

    async def describe_quotas(self, call: Call) -> Response:
        if not call.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": None, "entries": None}
        return {"error_code": Code.NONE, "error_message": None, "entries": []}

    async def alter_quotas(self, call: Call) -> Response:
        """There is none to be taken away, and none can be set."""
        entries = []
        for asked in call.request.entries or ():
            code, why = Code.NONE, None
            if not call.may(Operation.ALTER_CONFIGS, Resource.CLUSTER):
                code = Code.CLUSTER_AUTHORIZATION_FAILED
            elif not all(change.remove for change in asked.ops or ()):
                code, why = Code.INVALID_REQUEST, NO_QUOTAS
            entity = [
                {"entity_type": each.entity_type, "entity_name": each.entity_name}
                for each in asked.entity or ()
            ]
            entries.append({"error_code": code, "error_message": why, "entity": entity})
        return {"entries": entries}
