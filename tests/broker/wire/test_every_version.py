"""B01: every API in every version that ApiVersions offers, checked against schemas that are not ours."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import LocalBroker, Wire, produce_body
from tests.support.broker.steps import batch, make_topic

TOPIC = "t"
NAMED = {"name": TOPIC, "topic": TOPIC}
PLACE = {"partition": 0, "partition_index": 0, "index": 0, "current_leader_epoch": -1}
RULE = {
    "resource_type": 2,
    "resource_name": TOPIC,
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": TOPIC,
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 3,
    "permission_type": 3,
}
SETTING = {"name": "retention.ms", "value": "1000", "config_operation": 0}
RESOURCE = {"resource_type": 2, "resource_name": TOPIC}
MEMBER = {"group_id": "g", "generation_id": 0, "member_id": "m", "group_instance_id": None}

REQUESTS: dict[Api, dict[str, Any]] = {
    Api.FETCH: {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [
            {**NAMED, "partitions": [{**PLACE, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]},
        ],
    },
    Api.LIST_OFFSETS: {"replica_id": -1, "topics": [{**NAMED, "partitions": [{**PLACE, "timestamp": -1}]}]},
    Api.METADATA: {"topics": [NAMED], "allow_auto_topic_creation": True},
    Api.OFFSET_COMMIT: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{**NAMED, "partitions": [{**PLACE, "committed_offset": 1, "committed_metadata": "here"}]}],
    },
    Api.OFFSET_FETCH: {
        "group_id": "g",
        "topics": [{**NAMED, "partition_indexes": [0]}],
        "groups": [{"group_id": "g", "topics": [{**NAMED, "partition_indexes": [0]}]}],
    },
    Api.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g"]},
    Api.JOIN_GROUP: {
        **MEMBER,
        "member_id": "",
        "session_timeout": 6000,
        "rebalance_timeout": 6000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1"}],
    },
    Api.HEARTBEAT: MEMBER,
    Api.LEAVE_GROUP: {**MEMBER, "members": [{"member_id": "m"}]},
    Api.SYNC_GROUP: {**MEMBER, "assignments": [{"member_id": "m", "assignment": b"\0\1"}]},
    Api.DESCRIBE_GROUPS: {"groups": ["g"]},
    Api.LIST_GROUPS: {},
    Api.SASL_HANDSHAKE: {"mechanism": "PLAIN"},
    Api.SASL_AUTHENTICATE: {"auth_bytes": b"\0a\0b"},
    Api.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
    Api.CREATE_TOPICS: {
        "topics": [{"name": "another", "num_partitions": 1, "replication_factor": 1, "configs": [SETTING]}],
        "timeout": 1000,
        "validate_only": True,
    },
    Api.DELETE_TOPICS: {"topic_names": ["absent"], "topics": [{"name": "absent"}], "timeout": 1000},
    Api.DELETE_RECORDS: {"topics": [{**NAMED, "partitions": [{**PLACE, "offset": 0}]}], "timeout": 1000},
    Api.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 0},
    Api.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_topics": [{**NAMED, "partitions": [0]}],
        "transactions": [
            {"transactional_id": "x", "verify_only": True, "topics": [{**NAMED, "partitions": [0]}]}
        ],
    },
    Api.ADD_OFFSETS_TO_TXN: {"transactional_id": "absent", "group_id": "g"},
    Api.END_TXN: {"transactional_id": "absent", "committed": True},
    Api.WRITE_TXN_MARKERS: {
        "markers": [{"producer_id": 1, "topics": [{**NAMED, "partition_indexes": [0]}]}],
    },
    Api.TXN_OFFSET_COMMIT: {
        "transactional_id": "absent",
        "group_id": "g",
        "topics": [{**NAMED, "partitions": [{**PLACE, "committed_offset": 1, "committed_metadata": "here"}]}],
    },
    Api.DESCRIBE_PRODUCERS: {"topics": [{**NAMED, "partition_indexes": [0]}]},
    Api.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["absent"]},
    Api.LIST_TRANSACTIONS: {},
    Api.OFFSET_FOR_LEADER_EPOCH: {"topics": [{**NAMED, "partitions": [{**PLACE, "leader_epoch": 1}]}]},
    Api.DESCRIBE_ACLS: FILTER,
    Api.CREATE_ACLS: {"creations": [RULE]},
    Api.DELETE_ACLS: {"filters": [FILTER]},
    Api.DESCRIBE_CONFIGS: {
        "resources": [{**RESOURCE, "configuration_keys": None}],
        "include_synonyms": True,
        "include_documentation": True,
    },
    Api.ALTER_CONFIGS: {"resources": [{**RESOURCE, "configs": [SETTING]}]},
    Api.CREATE_PARTITIONS: {"topics": [{**NAMED, "count": 2}], "timeout": 1000, "validate_only": True},
    Api.DELETE_GROUPS: {"groups_names": ["absent"]},
    Api.INCREMENTAL_ALTER_CONFIGS: {"resources": [{**RESOURCE, "configs": [SETTING]}]},
    Api.OFFSET_DELETE: {"group_id": "absent", "topics": [{**NAMED, "partitions": [PLACE]}]},
    Api.CONSUMER_GROUP_HEARTBEAT: {
        "group_id": "new",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 6000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    },
    Api.CONSUMER_GROUP_DESCRIBE: {"group_ids": ["absent"]},
    Api.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True, "endpoint_type": 1},
    Api.DESCRIBE_LOG_DIRS: {"topics": [{**NAMED, "partitions": [0]}]},
    Api.ELECT_LEADERS: {
        "election_type": 0,
        "topic_partitions": [{**NAMED, "partitions": [0]}],
        "timeout": 1000,
    },
    Api.LIST_PARTITION_REASSIGNMENTS: {"timeout": 1000, "topics": None},
    Api.ALTER_PARTITION_REASSIGNMENTS: {
        "timeout": 1000,
        "topics": [{**NAMED, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
    },
    Api.DESCRIBE_CLIENT_QUOTAS: {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
    Api.ALTER_CLIENT_QUOTAS: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "a"}],
                "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}],
            }
        ]
    },
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": []},
    Api.ALTER_USER_SCRAM_CREDENTIALS: {
        "deletions": [{"name": "absent", "mechanism": 1}],
        "upsertions": [],
    },
    Api.LIST_CONFIG_RESOURCES: {"resource_types": [2, 4]},
    Api.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [NAMED],
        "response_partition_limit": 10,
        "cursor": {"topic_name": TOPIC, "partition_index": 0},
    },
}
EXPECTED: dict[Api, Code] = {
    Api.HEARTBEAT: Code.UNKNOWN_MEMBER_ID,
    Api.SYNC_GROUP: Code.UNKNOWN_MEMBER_ID,
    Api.LEAVE_GROUP: Code.UNKNOWN_MEMBER_ID,
    Api.DELETE_TOPICS: Code.UNKNOWN_TOPIC_OR_PARTITION,
    Api.ADD_OFFSETS_TO_TXN: Code.INVALID_PRODUCER_ID_MAPPING,
    Api.END_TXN: Code.INVALID_PRODUCER_ID_MAPPING,
    Api.TXN_OFFSET_COMMIT: Code.INVALID_TXN_STATE,
    Api.DESCRIBE_TRANSACTIONS: Code.TRANSACTIONAL_ID_NOT_FOUND,
    Api.DELETE_GROUPS: Code.GROUP_ID_NOT_FOUND,
    Api.CONSUMER_GROUP_DESCRIBE: Code.GROUP_ID_NOT_FOUND,
    Api.ELECT_LEADERS: Code.ELECTION_NOT_NEEDED,
    Api.ALTER_USER_SCRAM_CREDENTIALS: Code.RESOURCE_NOT_FOUND,
    Api.OFFSET_DELETE: Code.GROUP_ID_NOT_FOUND,
    Api.SASL_HANDSHAKE: Code.ILLEGAL_SASL_STATE,
    Api.SASL_AUTHENTICATE: Code.ILLEGAL_SASL_STATE,
    Api.DESCRIBE_ACLS: Code.SECURITY_DISABLED,
    Api.CREATE_ACLS: Code.SECURITY_DISABLED,
    Api.DELETE_ACLS: Code.SECURITY_DISABLED,
}


@pytest.mark.parametrize("api", list(Api), ids=lambda api: api.name)
def test_B01_every_version_offered_is_answered_as_its_schema_says(broker: LocalBroker, api: Api) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        assert client.produce(TOPIC, batch(b"first")).error_code == Code.NONE
        topic_id = broker.server.store.topic(TOPIC)._internal.descriptor.topic_id
        for version in range(api.low, api.high + 1):
            body = request_body(api, version, topic_id)
            client.send(api, version, body)
            frame = client.receive()
            assert frame, f"v{version}: the broker has hung up"
            start = 4 + (version >= api.flexible_from and api is not Api.API_VERSIONS)
            answer, size = entity_reader(load_response_schema(api, version))(frame, start)
            assert start + size == len(frame), f"v{version}: bytes are left over"
            expected = EXPECTED.get(api, Code.NONE)
            if api is Api.JOIN_GROUP and version >= 4:
                expected = Code.MEMBER_ID_REQUIRED
            found = set(codes_in(answer))
            assert found <= {Code.NONE, expected}, f"v{version}"
            assert expected in found or not found, f"v{version}"


def request_body(api: Api, version: int, topic_id: UUID) -> bytes:
    """A request that kio reads and writes as the very same bytes."""
    if api is Api.PRODUCE:
        body = produce_body(TOPIC, batch(b"more"), 0, -1, version, 1000)
    else:
        values = REQUESTS[api]
        if api is Api.JOIN_GROUP:
            values = {**values, "group_id": f"g{version}"}  # nobody waits for the member of before
        body = messages.encode_request(api, version, with_ids(values, topic_id))
    schema = load_request_schema(api, version)
    request, size = entity_reader(schema)(body, 0)
    out = io.BytesIO()
    entity_writer(schema)(out, request)
    assert (out.getvalue(), size) == (body, len(body)), f"v{version}"
    return body


def with_ids(values: Any, topic_id: UUID) -> Any:
    """Wherever the topic is named, its id too, for the versions that know it by that."""
    if isinstance(values, list):
        return [with_ids(each, topic_id) for each in values]
    if not isinstance(values, dict):
        return values
    named = {"topic_id": topic_id} if values.get("topic") == TOPIC else {}
    return named | {name: with_ids(value, topic_id) for name, value in values.items()}


def codes_in(answer: Any) -> Iterator[int]:
    """Every error code in an answer, at any depth."""
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name == "error_code":
            yield int(value)
        for each in value if isinstance(value, tuple) else (value,):
            if is_dataclass(each):
                yield from codes_in(each)
