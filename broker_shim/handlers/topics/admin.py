"""Topics: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.groups.coordinator import Coordinator
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.topics import topic_configs
from broker_shim.handlers.topics.topic_changes import FAILURES, KEPT, Refused, carry_out, failure
from broker_shim.handlers.topics.topic_configs import InvalidConfig
from broker_shim.net.fairness import yielding
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError, UnknownTopic
from logstore.layout.broker import INTERNAL_TOPICS, producers_prefix
from logstore.layout.paths import check_topic_name
from logstore.store import Store
from logstore.topic import Topic

MAX_PARTITIONS = 10_000
NO_ID = UUID(int=0)


@dataclass(eq=False)
class AdminApi:
    _store: Store
    _partitions: PartitionRegistry
    _coordinator: Coordinator
    _cluster: Cluster
    _config: BrokerConfig

    async def create_topics(self, call: Call) -> Response:
        topics = call.request.topics or ()
        times = Counter(topic.name for topic in topics)
        return {
            "topics": [
                {"name": each.name, **await self._create(call, each, times[each.name] > 1)}
                async for each in yielding(topics)
            ]
        }

    async def _create(self, call: Call, asked: Any, twice: bool) -> dict[str, Any]:
        try:
            if twice:
                raise Refused(Code.INVALID_REQUEST, "the topic is in the request more than once")
            if not call.may_create(asked.name):
                raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, "not authorized to create it")
            check_topic_name(asked.name)
            count = self._count(asked)
            kafka = _settings(asked.configs or ())
            if call.request.validate_only:
                if await self._partitions.find(asked.name) is not None:
                    raise Refused(Code.TOPIC_ALREADY_EXISTS, "the topic exists")
                topic_id = NO_ID
            else:
                made = await self._partitions.create(asked.name, count, kafka, topic_configs.effects(kafka))
                topic_id = made._internal.descriptor.topic_id
        except FAILURES as error:
            return failure(error)
        answer = {"error_code": Code.NONE, "error_message": None, "topic_id": topic_id}
        if not call.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.name):
            return {**answer, "topic_config_error_code": Code.TOPIC_AUTHORIZATION_FAILED}
        return {
            **answer,
            "num_partitions": count,
            "replication_factor": 1,
            "configs": [
                {
                    "name": each.name,
                    "value": each.value,
                    "read_only": each.read_only,
                    "config_source": each.source,
                }
                for each in topic_configs.describe(kafka, self._config.max_message_bytes, is_flag=False)
            ],
        }

    def _count(self, asked: Any) -> int:
        if asked.assignments:
            if asked.num_partitions != -1:
                raise Refused(Code.INVALID_REQUEST, "give a number of partitions or an assignment, not both")
            indexes = sorted(each.partition_index for each in asked.assignments)
            if indexes != list(range(len(indexes))):
                raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "the partitions are not 0, 1, 2 …")
            self._check_brokers([each.broker_ids or [] for each in asked.assignments])
            return len(indexes)
        # Any replication factor is fine: the object store replicates, and clients ask for 3 out of habit.
        if asked.replication_factor == 0:
            raise Refused(Code.INVALID_REPLICATION_FACTOR, "a replication factor is at least 1")
        count: int = self._config.num_partitions if asked.num_partitions == -1 else asked.num_partitions
        if not 1 <= count <= MAX_PARTITIONS:
            raise Refused(Code.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions")
        return count

    def _check_brokers(self, assignments: list[list[int]]) -> None:
        """An assignment decides nothing here, but one that could not be carried out anywhere is a mistake."""
        nodes = self._cluster.view.nodes
        for brokers in assignments:
            if not brokers or len(set(brokers)) < len(brokers) or len(brokers) != len(assignments[0]):
                raise Refused(
                    Code.INVALID_REPLICA_ASSIGNMENT,
                    f"{brokers}: each partition has as many different brokers as the others, and at least one",
                )
            if unknown := sorted(set(brokers) - set(nodes)):
                raise Refused(
                    Code.INVALID_REPLICA_ASSIGNMENT,
                    f"there is no broker {unknown[0]}; there are {sorted(nodes)}",
                )

    async def delete_topics(self, call: Call) -> Response:
        if call.version < 6:
            names = call.request.topic_names or ()
            return {"responses": [await self._delete(call, name) async for name in yielding(names)]}
        topics = call.request.topics or ()
        return {"responses": [await self._delete_one(call, each) async for each in yielding(topics)]}

    async def _delete_one(self, call: Call, asked: Any) -> dict[str, Any]:
        """By name or by id: whoever means one incarnation does not delete the next."""
        if (asked.name is None) == (asked.topic_id == NO_ID):
            return {
                "name": asked.name,
                "topic_id": asked.topic_id,
                "error_code": Code.INVALID_REQUEST,
                "error_message": "a topic is meant by its name or by its id",
            }
        if asked.name is not None:
            return await self._delete(call, asked.name)
        unknown = {"name": None, "topic_id": asked.topic_id, "error_code": Code.UNKNOWN_TOPIC_ID}
        try:
            topic = await self._partitions.find_id(asked.topic_id)
        except (LogStoreError, OSError) as error:
            return {**unknown, **failure(error)}
        if topic is None:
            return unknown
        answer = await self._delete(call, topic.name, asked.topic_id)
        if answer["error_code"] is Code.TOPIC_AUTHORIZATION_FAILED:
            answer["name"] = None  # who may not know it does not learn it
        return {**answer, "topic_id": asked.topic_id}

    async def _delete(self, call: Call, name: str, topic_id: UUID | None = None) -> dict[str, Any]:
        if not call.may(Operation.DELETE, Resource.TOPIC, name):
            return {"name": name, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
        if name in INTERNAL_TOPICS:
            return {"name": name, "error_code": Code.INVALID_REQUEST, "error_message": KEPT}
        try:
            check_topic_name(name)
            topic = await self._partitions.find(name)
            await self._partitions.run(self._delete_now, name, topic_id)
        except (LogStoreError, OSError) as error:
            return {"name": name, **failure(error)}
        self._partitions.forget(name)
        if topic is not None:
            self._coordinator.forget_topic(topic._internal.descriptor.incarnation)
        deleted = NO_ID if topic is None else topic._internal.descriptor.topic_id
        return {"name": name, "topic_id": deleted, "error_code": Code.NONE}

    def _delete_now(self, name: str, topic_id: UUID | None) -> None:
        if topic_id is not None and self._store.topic(name)._internal.descriptor.topic_id != topic_id:
            raise UnknownTopic(f"{name} is another topic by now")
        # Listed first: what a new topic of this name writes from then on is not ours to delete.
        snapshots = list(self._store.objects.list(producers_prefix(name)))
        self._store.delete_topic(name)
        for info in snapshots:
            self._store.objects.delete(info.key)

    async def create_partitions(self, call: Call) -> Response:
        results = []
        async for asked in yielding(call.request.topics or ()):
            outcome = await carry_out(
                self._store, self._partitions, call, asked.name, Operation.ALTER, self._grow(call, asked)
            )
            results.append({"name": asked.name, **outcome})
        return {"results": results}

    def _grow(self, call: Call, asked: Any) -> Callable[[Topic], None]:
        def grow(topic: Topic) -> None:
            if not topic.partitions < asked.count <= MAX_PARTITIONS:
                raise Refused(
                    Code.INVALID_PARTITIONS,
                    f"{asked.name} has {topic.partitions} partitions: only more can be asked for, "
                    f"up to {MAX_PARTITIONS}",
                )
            if asked.name in INTERNAL_TOPICS:
                raise Refused(Code.INVALID_REQUEST, "groups would move away from their offsets")
            if asked.assignments:
                more = asked.count - topic.partitions
                if len(asked.assignments) != more:
                    raise Refused(
                        Code.INVALID_REPLICA_ASSIGNMENT,
                        f"{more} partitions are added, and {len(asked.assignments)} assignments given",
                    )
                self._check_brokers([each.broker_ids or [] for each in asked.assignments])
            if not call.request.validate_only:
                try:
                    self._store.add_partitions(asked.name, asked.count)
                except ValueError as error:  # another broker has added more since we looked
                    raise Refused(Code.INVALID_PARTITIONS, str(error)) from error

        return grow


def _settings(configs: Sequence[Any]) -> dict[str, str]:
    """A new topic's settings, as they are kept."""
    for each in configs:
        if each.value is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {each.name[:80]}")
    if len({each.name for each in configs}) < len(configs):
        raise Refused(Code.INVALID_REQUEST, "a setting is in the request more than once")
    return {each.name: topic_configs.check(each.name, each.value) for each in configs}
