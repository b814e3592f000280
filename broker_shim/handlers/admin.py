"""Topics and their settings: CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs,
(Incremental)AlterConfigs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.groups.coordinator import Coordinator
from broker_shim.handlers import topic_configs
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.topic_configs import InvalidConfig
from broker_shim.net.fairness import yielding
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code, of_admin
from logstore.errors import LogStoreError, UnknownTopic
from logstore.layout.broker import INTERNAL_TOPICS, producers_prefix
from logstore.layout.paths import check_topic_name
from logstore.store import Store
from logstore.topic import Topic

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE = 0, 1
_SOURCE_TOPIC, _SOURCE_DEFAULT = 1, 5
MAX_PARTITIONS = 10_000
KEPT = "groups and their offsets live in this topic"
"""Why the internal one is neither deleted nor given a retention."""


class Refused(Exception):
    """The request cannot be carried out; nothing was changed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class AdminApi:
    def __init__(
        self, store: Store, partitions: PartitionRegistry, coordinator: Coordinator, config: BrokerConfig
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._coordinator = coordinator
        self._config = config

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────

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
            settings = topic_configs.to_settings({each.name: each.value for each in asked.configs or ()})
            if call.request.validate_only:
                if await self._partitions.find(asked.name) is not None:
                    raise Refused(Code.TOPIC_ALREADY_EXISTS, "the topic exists")
            else:
                await self._partitions.create(asked.name, count, **settings)
        except _FAILURES as error:
            return _failure(error)
        return {
            "error_code": Code.NONE,
            "error_message": None,
            "num_partitions": count,
            "replication_factor": 1,
        }

    def _count(self, asked: Any) -> int:
        if asked.assignments:
            if asked.num_partitions != -1:
                raise Refused(Code.INVALID_REQUEST, "give a number of partitions or an assignment, not both")
            indexes = sorted(each.partition_index for each in asked.assignments)
            if indexes != list(range(len(indexes))):
                raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "the partitions are not 0, 1, 2 …")
            return len(indexes)
        # Any replication factor is fine: the object store replicates, and clients ask for 3 out of habit.
        if asked.replication_factor == 0:
            raise Refused(Code.INVALID_REPLICATION_FACTOR, "a replication factor is at least 1")
        count: int = self._config.num_partitions if asked.num_partitions == -1 else asked.num_partitions
        if not 1 <= count <= MAX_PARTITIONS:
            raise Refused(Code.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions")
        return count

    async def delete_topics(self, call: Call) -> Response:
        names = call.request.topic_names or ()
        return {"responses": [await self._delete(call, name) async for name in yielding(names)]}

    async def _delete(self, call: Call, name: str) -> dict[str, Any]:
        if not call.may(Operation.DELETE, Resource.TOPIC, name):
            return {"name": name, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
        if name in INTERNAL_TOPICS:
            return {"name": name, "error_code": Code.INVALID_REQUEST, "error_message": KEPT}
        try:
            check_topic_name(name)
            topic = await self._partitions.find(name)
            await self._partitions.run(self._delete_now, name)
        except (LogStoreError, OSError) as error:
            return {"name": name, **_failure(error)}
        self._partitions.forget(name)
        if topic is not None:
            self._coordinator.forget_topic(topic._internal.descriptor.incarnation)
        return {"name": name, "error_code": Code.NONE}

    def _delete_now(self, name: str) -> None:
        # Listed first: what a new topic of this name writes from then on is not ours to delete.
        snapshots = list(self._store.objects.list(producers_prefix(name)))
        self._store.delete_topic(name)
        for info in snapshots:
            self._store.objects.delete(info.key)

    async def create_partitions(self, call: Call) -> Response:
        results = []
        async for asked in yielding(call.request.topics or ()):
            outcome = await self._carry_out(call, asked.name, Operation.ALTER, self._grow(call, asked))
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
            if not call.request.validate_only:
                try:
                    self._store.add_partitions(asked.name, asked.count)
                except ValueError as error:  # another broker has added more since we looked
                    raise Refused(Code.INVALID_PARTITIONS, str(error)) from error

        return grow

    # ── settings ─────────────────────────────────────────────────────────────────────────────────────────

    async def describe_configs(self, call: Call) -> Response:
        resources = call.request.resources or ()
        return {"results": [await self._describe(call, each) async for each in yielding(resources)]}

    async def _describe(self, call: Call, asked: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "error_message": None,
        }
        if asked.resource_type == BROKER_RESOURCE:
            if not call.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
                return {**answer, "error_code": Code.CLUSTER_AUTHORIZATION_FAILED}
            entries = self._broker_entries()
        elif asked.resource_type == TOPIC_RESOURCE:
            if not call.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.resource_name):
                return {**answer, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
            try:
                topic = await self._partitions.run(self._store.topic, asked.resource_name)
            except (LogStoreError, OSError) as error:
                return {**answer, **_failure(error)}
            entries = topic_configs.describe(topic.config, self._config.max_message_bytes)
        else:
            return {**answer, "error_code": Code.INVALID_REQUEST, "error_message": "topics and brokers only"}
        wanted = asked.configuration_keys
        return {
            **answer,
            "error_code": Code.NONE,
            "configs": [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "read_only": entry.read_only,
                    "config_source": _SOURCE_DEFAULT if entry.is_default else _SOURCE_TOPIC,
                    "config_type": entry.kind,
                    "documentation": None,
                }
                for entry in entries
                if not wanted or entry.name in wanted  # an empty list is Kafka's other way to say: all
            ],
        }

    def _broker_entries(self) -> list[topic_configs.Entry]:
        config = self._config
        shown = {
            "broker.id": config.node_id,
            "auto.create.topics.enable": str(config.auto_create_topics).lower(),
            "num.partitions": config.num_partitions,
            "default.replication.factor": 1,
            "message.max.bytes": config.max_message_bytes,
            "offsets.topic.num.partitions": config.offsets_partitions,
            "socket.request.max.bytes": config.max_frame_bytes,
            "fetch.max.bytes": config.fetch_max_bytes,
            "connections.max.idle.ms": round(config.idle_timeout * 1000),
            "flush.on.ack": str(config.flush_on_ack).lower(),
        }
        return [topic_configs.Entry(name, str(value), True, True, 2) for name, value in shown.items()]

    async def alter_configs(self, call: Call) -> Response:
        """The old call: what is not named goes back to its default."""
        responses = []
        async for asked in yielding(call.request.resources or ()):
            named = {each.name: each.value for each in asked.configs or ()}
            whole = {"retention.ms": None, "retention.bytes": None, "segment.bytes": None, **named}
            responses.append(await self._alter(call, asked, whole))
        return {"responses": responses}

    async def incremental_alter_configs(self, call: Call) -> Response:
        responses = []
        async for asked in yielding(call.request.resources or ()):
            changes = {e.name: None if e.config_operation == DELETE else e.value for e in asked.configs or ()}
            lists = any(each.config_operation not in (SET, DELETE) for each in asked.configs or ())
            responses.append(await self._alter(call, asked, changes, appends=lists))
        return {"responses": responses}

    async def _alter(
        self, call: Call, asked: Any, changes: dict[str, str | None], *, appends: bool = False
    ) -> dict[str, Any]:
        answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}

        def alter(topic: Topic) -> None:
            if topic.name in INTERNAL_TOPICS:
                raise Refused(Code.INVALID_REQUEST, KEPT)
            if appends:
                raise Refused(
                    Code.INVALID_CONFIG, "none of the settings is a list: there is nothing to append to"
                )
            settings = topic_configs.to_settings(changes)
            if not call.request.validate_only:
                self._store.alter_topic(topic.name, **settings)

        if asked.resource_type != TOPIC_RESOURCE:
            message = "a broker's settings are its flags: start it with others"
            return {**answer, "error_code": Code.INVALID_REQUEST, "error_message": message}
        outcome = await self._carry_out(call, asked.resource_name, Operation.ALTER_CONFIGS, alter)
        return {**answer, **outcome}

    async def _carry_out(
        self, call: Call, name: str, operation: Operation, change: Callable[[Topic], None]
    ) -> dict[str, Any]:
        """Change a topic in a worker thread, then learn what became of it."""
        if not call.may(operation, Resource.TOPIC, name):
            return {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": None}
        try:
            await self._partitions.run(lambda: change(self._store.topic(name)))
            self._partitions.learn(await self._partitions.run(self._store.topic, name))
        except _FAILURES as error:
            if isinstance(error, UnknownTopic):
                self._partitions.forget(name)
            return _failure(error)
        return {"error_code": Code.NONE, "error_message": None}


_FAILURES = (Refused, InvalidConfig, LogStoreError, OSError)


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, Refused):
        code = error.code
    else:
        code = Code.INVALID_CONFIG if isinstance(error, InvalidConfig) else of_admin(error)
    return {"error_code": code, "error_message": str(error)}
