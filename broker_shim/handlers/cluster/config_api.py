"""Settings over the wire: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.cluster import broker_configs
from broker_shim.handlers.topics import topic_configs
from broker_shim.handlers.topics.topic_changes import FAILURES, KEPT, Refused, carry_out, failure
from broker_shim.handlers.topics.topic_configs import Entry
from broker_shim.net.fairness import yielding
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from logstore.layout.broker import INTERNAL_TOPICS
from logstore.layout.catalog import TopicDescriptor
from logstore.store import Store
from logstore.topic import Topic

TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 16, 32
RESOURCES = (TOPIC_RESOURCE, BROKER_RESOURCE, 8, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)
SET, DELETE, APPEND, SUBTRACT = range(4)
Values = dict[str, str]


class ConfigApi:
    def __init__(
        self, store: Store, partitions: PartitionRegistry, cluster: Cluster, config: BrokerConfig
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._cluster = cluster
        self._config = config

    # ── describe ─────────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, call: Call) -> Response:
        resources = call.request.resources or ()
        return {"results": [await self._describe(call, each) async for each in yielding(resources)]}

    async def _describe(self, call: Call, asked: Any) -> dict[str, Any]:
        answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        try:
            entries = await self._entries(call, asked)
        except FAILURES as error:
            return {**answer, **failure(error)}
        wanted = asked.configuration_keys
        rows = [
            _row(each, with_synonyms=call.request.get("include_synonyms", False))
            for each in entries
            if not wanted or each.name in wanted  # an empty list is Kafka's other way to say: all
        ]
        return {**answer, "error_code": Code.NONE, "error_message": None, "configs": rows}

    async def _entries(self, call: Call, asked: Any) -> list[Entry]:
        if asked.resource_type == BROKER_RESOURCE:
            if not call.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
                raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, "not authorized to describe brokers")
            return self._of_broker(asked.resource_name)
        if asked.resource_type == TOPIC_RESOURCE:
            if not call.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.resource_name):
                raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, "not authorized to describe it")
            return self.of_topic(await self._partitions.run(self._store.topic, asked.resource_name))
        if asked.resource_type == GROUP_RESOURCE and asked.resource_name:
            if not call.may(Operation.DESCRIBE_CONFIGS, Resource.GROUP, asked.resource_name):
                raise Refused(Code.GROUP_AUTHORIZATION_FAILED, "not authorized to describe it")
            return broker_configs.describe_group(
                self._config
            )  # the same for all, those that are not there too
        raise Refused(Code.INVALID_REQUEST, "only topics, brokers and groups have settings here")

    def _of_broker(self, name: str) -> list[Entry]:
        me = self._cluster.me
        if name == "":
            return []  # what was set for all brokers at once, which cannot be
        if name != str(me.node_id):
            raise Refused(
                Code.INVALID_REQUEST,
                f"Unexpected broker id, expected {me.node_id} or empty string, but received {name[:40]}",
            )
        return broker_configs.describe(self._config, me)

    def of_topic(self, topic: Topic) -> list[Entry]:
        """Every setting of a topic."""
        return topic_configs.describe(
            topic_configs.values_of(topic._internal.descriptor),
            self._config.max_message_bytes,
            is_flag=broker_configs.is_set(self._config, "max_message_bytes"),
        )

    async def list_resources(self, call: Call) -> Response:
        """What has settings. Version 0 asks for subscriptions to client metrics: there are none, nor settings of groups."""
        if not call.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "config_resources": []}
        asked = set(call.request.get("resource_types") or ()) if call.version else {CLIENT_METRICS_RESOURCE}
        if asked - set(RESOURCES):
            return {"error_code": Code.UNSUPPORTED_VERSION, "config_resources": []}
        named: list[tuple[int, str]] = []
        if not asked or TOPIC_RESOURCE in asked:
            named += [(TOPIC_RESOURCE, name) for name in await self._partitions.find_all()]
        if not asked or BROKER_RESOURCE in asked:
            named += [(BROKER_RESOURCE, str(node_id)) for node_id in sorted(self._cluster.view.nodes)]
        rows = [{"resource_type": kind, "resource_name": name} for kind, name in named]
        return {"error_code": Code.NONE, "config_resources": rows}

    # ── alter ────────────────────────────────────────────────────────────────────────────────────────────

    async def alter(self, call: Call) -> Response:
        """The old call: what is not named goes back to its default."""
        responses = []
        async for asked in yielding(call.request.resources or ()):
            configs = asked.configs or ()
            values = {each.name: each.value for each in configs}

            def replaced(present: Values, values: Mapping[str, str] = values) -> Values:
                return dict(values)

            responses.append(await self._alter(call, asked, replaced))
        return {"responses": responses}

    async def alter_incrementally(self, call: Call) -> Response:
        responses = []
        async for asked in yielding(call.request.resources or ()):

            def changed(present: Values, configs: Any = asked.configs or ()) -> Values:
                return _changed(present, configs)

            responses.append(await self._alter(call, asked, changed))
        return {"responses": responses}

    async def _alter(self, call: Call, asked: Any, change: Callable[[Values], Values]) -> dict[str, Any]:
        answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}

        def altered(topic: TopicDescriptor) -> tuple[Values, dict[str, Any]]:
            present = topic_configs.values_of(topic)
            new = {
                name: value if present.get(name) == value else topic_configs.check(name, value)
                for name, value in change(present).items()
            }
            return new, topic_configs.effects(new)

        def alter(topic: Topic) -> None:
            if topic.name in INTERNAL_TOPICS:
                raise Refused(Code.INVALID_REQUEST, KEPT)
            _refuse_senseless(asked.configs or ())
            if call.request.validate_only:
                altered(topic._internal.descriptor)
            else:
                self._store._alter_topic_of_kafka(topic.name, altered)

        if asked.resource_type != TOPIC_RESOURCE:
            message = "settings of brokers and groups are the broker's flags: start it with others"
            return {**answer, "error_code": Code.INVALID_REQUEST, "error_message": message}
        outcome = await carry_out(
            self._store, self._partitions, call, asked.resource_name, Operation.ALTER_CONFIGS, alter
        )
        return {**answer, **outcome}


def _refuse_senseless(configs: Any) -> None:
    """As Kafka does before it looks at values."""
    if len({each.name for each in configs}) < len(configs):
        raise Refused(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    for each in configs:
        if each.value is None and each.get("config_operation", SET) != DELETE:
            raise Refused(Code.INVALID_REQUEST, f"Null value not supported for : {each.name[:80]}")
        if not SET <= each.get("config_operation", SET) <= SUBTRACT:
            raise Refused(Code.INVALID_REQUEST, f"Unknown operation {each.config_operation}")


def _changed(present: Values, configs: Any) -> Values:
    values = dict(present)
    for each in configs:
        if each.config_operation == SET:
            values[each.name] = each.value
        elif each.config_operation == DELETE:
            if each.name not in topic_configs.SETTINGS:
                raise topic_configs.InvalidConfig(f"Unknown topic config name: {each.name[:80]}")
            values.pop(each.name, None)
        else:
            values[each.name] = topic_configs.edit_list(
                each.name, values.get(each.name), each.value, append=each.config_operation == APPEND
            )
    return values


def _row(entry: Entry, *, with_synonyms: bool) -> dict[str, Any]:
    synonyms = [{"name": name, "value": value, "source": source} for name, value, source in entry.synonyms]
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "config_type": entry.kind,
        "documentation": None,
        "synonyms": synonyms if with_synonyms else [],
    }
