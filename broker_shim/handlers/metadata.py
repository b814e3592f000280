"""Who leads what: Metadata, DescribeCluster, ApiVersions."""

from __future__ import annotations

from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.handlers.call import Call, Response
from broker_shim.net.fairness import yielding
from broker_shim.partitions.cluster import NOBODY, Cluster
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code, of_admin
from logstore.errors import InvalidTopicName, LogStoreError
from logstore.layout.broker import INTERNAL_TOPICS
from logstore.layout.paths import check_topic_name
from logstore.topic import Topic


class MetadataApi:
    def __init__(self, partitions: PartitionRegistry, cluster: Cluster, config: BrokerConfig) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._config = config

    async def metadata(self, call: Call) -> Response:
        topics = call.request.topics
        everything = topics is None or (call.version == 0 and not topics)
        names = await self._partitions.find_all() if everything else [topic.name for topic in topics]
        may_create = call.request.get("allow_auto_topic_creation", True) and not everything
        found = []
        async for name in yielding(names):
            if call.may(Operation.DESCRIBE, Resource.TOPIC, name):
                found.append(await self._topic(call, name, may_create))
            elif not everything:  # a listing does not even say that it exists
                found.append({"name": name, "error_code": Code.TOPIC_AUTHORIZATION_FAILED})
        return {
            "brokers": self._brokers("node_id"),
            "cluster_id": self._config.cluster_id,
            "controller_id": self._cluster.me.node_id,
            "topics": found,
        }

    async def _topic(self, call: Call, name: str, may_create: bool) -> dict[str, Any]:
        try:
            check_topic_name(name)
            topic = await self._partitions.find(name)
            if topic is None and may_create and self._may_create(call, name):
                topic = await self._partitions.ensure(name, self._config.num_partitions)
        except InvalidTopicName:
            return {"name": name, "error_code": Code.INVALID_TOPIC_EXCEPTION}
        except (LogStoreError, OSError) as error:
            code = of_admin(error)
            retry = code in (Code.REQUEST_TIMED_OUT, Code.UNKNOWN_SERVER_ERROR)
            return {"name": name, "error_code": Code.LEADER_NOT_AVAILABLE if retry else code}
        if topic is None:
            return {"name": name, "error_code": Code.UNKNOWN_TOPIC_OR_PARTITION}
        return {
            "name": name,
            "error_code": Code.NONE,
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": [self._partition(topic, index) for index in range(topic.partitions)],
        }

    def _may_create(self, call: Call, name: str) -> bool:
        return self._config.auto_create_topics and name not in INTERNAL_TOPICS and call.may_create(name)

    def _partition(self, topic: Topic, index: int) -> dict[str, Any]:
        leader = self._cluster.leader(topic.name, index)
        hosted = self._partitions.hosted(topic.name, index)
        # The epoch of a partition that is not open here is not known, and not worth a request to the store.
        epoch = hosted.log._internal.epoch if hosted is not None and hosted.is_open else -1
        return {
            "partition_index": index,
            "error_code": Code.LEADER_NOT_AVAILABLE if leader == NOBODY else Code.NONE,
            "leader_id": leader,
            "leader_epoch": epoch if leader == self._cluster.me.node_id else -1,
            "replica_nodes": [] if leader == NOBODY else [leader],
            "isr_nodes": [] if leader == NOBODY else [leader],
        }

    def _brokers(self, id_name: str) -> list[dict[str, Any]]:
        nodes = self._cluster.view.nodes.values()
        return [{id_name: node.node_id, "host": node.host, "port": node.port} for node in nodes]

    async def describe_cluster(self, call: Call) -> Response:
        """For everybody: it says no more than Metadata does."""
        return {
            "error_code": Code.NONE,
            "cluster_id": self._config.cluster_id,
            "controller_id": self._cluster.me.node_id,
            "brokers": self._brokers("broker_id"),
        }


def api_versions(error: Code = Code.NONE) -> Response:
    return {
        "error_code": error,
        "api_keys": [{"api_key": int(api), "min_version": api.low, "max_version": api.high} for api in Api],
    }
