"""Who leads what: Metadata, DescribeTopicPartitions, DescribeCluster, ApiVersions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.handlers.authorized import NOT_ASKED, operations
from broker_shim.handlers.call import Call, Response
from broker_shim.net.fairness import yielding
from broker_shim.partitions.cluster import NOBODY, Cluster
from broker_shim.partitions.leader_epochs import UNKNOWN, LeaderEpochs
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code, of_admin
from logstore.errors import InvalidTopicName, LogStoreError
from logstore.layout.broker import INTERNAL_TOPICS
from logstore.layout.paths import check_topic_name
from logstore.topic import Topic

NO_ID = UUID(int=0)
Named = tuple[str | None, UUID]
"""A topic's name, and the id that it was asked for by, if it was."""
BROKERS = 1
"""What DescribeCluster is asked about; the other kind are controllers."""
PARTITIONS_AT_ONCE = 2000
LISTED_MAX = 256
"""A list of all topics that has more partitions says the epochs that are known: tools ask for it again and again."""


class MetadataApi:
    def __init__(
        self, partitions: PartitionRegistry, cluster: Cluster, epochs: LeaderEpochs, config: BrokerConfig
    ) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._epochs = epochs
        self._config = config

    async def metadata(self, call: Call) -> Response:
        topics = call.request.topics
        everything = topics is None or (call.version == 0 and not topics)
        names: list[Named] = (
            [(name, NO_ID) for name in await self._partitions.find_all()]
            if everything
            else [await self._named(topic) for topic in topics]
        )
        may_create = call.request.get("allow_auto_topic_creation", True) and not everything
        rows: list[Topic | dict[str, Any]] = []
        async for name, topic_id in yielding(names):
            if name is None:
                rows.append({"name": None, "topic_id": topic_id, "error_code": Code.UNKNOWN_TOPIC_ID})
            elif call.may(Operation.DESCRIBE, Resource.TOPIC, name):
                rows.append(await self._topic(call, name, may_create))
            elif not everything:  # a listing does not even say that it exists, and to an id no name is given
                shown = name if topic_id == NO_ID else None
                refused = {"name": shown, "topic_id": topic_id, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
                rows.append(refused)
        topics_found = [row for row in rows if isinstance(row, Topic)]
        if not everything or sum(topic.partitions for topic in topics_found) <= LISTED_MAX:
            await self._epochs.learn(topics_found)
        found = [self._described(row) if isinstance(row, Topic) else row async for row in yielding(rows)]
        if call.request.get("include_topic_authorized_operations", False):
            for each in found:
                if each["error_code"] is Code.NONE:
                    each["topic_authorized_operations"] = operations(call, Resource.TOPIC, each["name"])
        of_cluster = call.request.get("include_cluster_authorized_operations", False)
        return {
            "cluster_authorized_operations": operations(call, Resource.CLUSTER) if of_cluster else NOT_ASKED,
            "brokers": self._brokers("node_id"),
            "cluster_id": self._config.cluster_id,
            "controller_id": self._cluster.me.node_id,
            "topics": found,
        }

    async def _named(self, asked: Any) -> Named:
        """The name that is asked for, or that the topic has whose id is: Java's client says an empty name beside an id."""
        topic_id = asked.get("topic_id", NO_ID)
        if asked.name or topic_id == NO_ID:
            return asked.name or "", NO_ID
        try:
            topic = await self._partitions.find_id(topic_id)
        except (LogStoreError, OSError):
            topic = None
        return None if topic is None else topic.name, topic_id

    async def describe_topic_partitions(self, call: Call) -> Response:
        """A part of what Metadata says, for topics of many partitions: by name, from a cursor on, up to a limit."""
        request = call.request
        asked = sorted({topic.name for topic in request.topics or ()})
        everything = not asked
        names = await self._partitions.find_all() if everything else asked
        after = (
            ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
        )
        room = max(1, min(request.response_partition_limit, PARTITIONS_AT_ONCE))
        found: list[dict[str, Any]] = []
        async for name in yielding(names):
            if name < after[0]:
                continue
            if not call.may(Operation.DESCRIBE, Resource.TOPIC, name):
                if not everything:
                    found.append({"name": name, "error_code": Code.TOPIC_AUTHORIZATION_FAILED})
                continue
            if not room:
                return {"topics": found, "next_cursor": {"topic_name": name, "partition_index": 0}}
            known = await self._topic(call, name, may_create=False)
            if isinstance(known, Topic) and not everything:
                await self._epochs.learn([known])
            topic = self._described(known) if isinstance(known, Topic) else known
            start = max(0, after[1]) if name == after[0] else 0
            rows = topic.get("partitions", [])[start:]
            # Empty, because the object store replicates; Java's client falls over a null, which the protocol allows.
            shown = [row | {"eligible_leader_replicas": [], "last_known_elr": []} for row in rows[:room]]
            found.append(topic | {"partitions": shown})
            if topic["error_code"] is Code.NONE:
                found[-1]["topic_authorized_operations"] = operations(call, Resource.TOPIC, name)
            if len(rows) > room:
                return {"topics": found, "next_cursor": {"topic_name": name, "partition_index": start + room}}
            room -= len(rows)
        return {"topics": found, "next_cursor": None}

    async def _topic(self, call: Call, name: str, may_create: bool) -> Topic | dict[str, Any]:
        """The topic, created if it may be, or what is answered instead."""
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
        return topic

    def _described(self, topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "topic_id": topic._internal.descriptor.topic_id,
            "error_code": Code.NONE,
            "is_internal": topic.name in INTERNAL_TOPICS,
            "partitions": [self._partition(topic, index) for index in range(topic.partitions)],
        }

    def _may_create(self, call: Call, name: str) -> bool:
        return self._config.auto_create_topics and name not in INTERNAL_TOPICS and call.may_create(name)

    def _partition(self, topic: Topic, index: int) -> dict[str, Any]:
        leader = self._cluster.leader(topic.name, index)
        replicas = [] if leader == NOBODY else self._cluster.replicas(leader)
        return {
            "partition_index": index,
            "error_code": Code.LEADER_NOT_AVAILABLE if leader == NOBODY else Code.NONE,
            "leader_id": leader,
            "leader_epoch": UNKNOWN if leader == NOBODY else self._epochs.of(topic, index),
            "replica_nodes": replicas,
            "isr_nodes": replicas,
        }

    def _brokers(self, id_name: str) -> list[dict[str, Any]]:
        nodes = self._cluster.view.nodes.values()
        return [
            {id_name: node.node_id, "host": node.host, "port": node.port, "rack": node.rack or None}
            for node in nodes
        ]

    async def describe_cluster(self, call: Call) -> Response:
        """For everybody: it says no more than Metadata does."""
        asked = call.request.include_cluster_authorized_operations
        if call.request.get("endpoint_type", BROKERS) != BROKERS:
            return {"error_code": Code.MISMATCHED_ENDPOINT_TYPE, "error_message": "these are brokers"}
        return {
            "error_code": Code.NONE,
            "endpoint_type": BROKERS,
            "cluster_authorized_operations": operations(call, Resource.CLUSTER) if asked else NOT_ASKED,
            "cluster_id": self._config.cluster_id,
            "controller_id": self._cluster.me.node_id,
            "brokers": self._brokers("broker_id"),
        }


def api_versions(error: Code = Code.NONE) -> Response:
    return {
        "error_code": error,
        "api_keys": [{"api_key": int(api), "min_version": api.low, "max_version": api.high} for api in Api],
    }
