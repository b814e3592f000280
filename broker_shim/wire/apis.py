"""Which APIs this broker answers, and in which versions. ApiVersions says this, and nothing else is served.

Upper bounds stop where a version would promise something that we do not do: topic ids (Metadata 10, Fetch 13,
DeleteTopics 6, CreateTopics 7, OffsetCommit 10), transactions (Produce 11), KIP-848 groups (OffsetFetch 9),
the offset of the largest timestamp (ListOffsets 7).
"""

from __future__ import annotations

from enum import IntEnum


class Api(IntEnum):
    """The API keys, with Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60


VERSIONS: dict[Api, tuple[int, int]] = {
    Api.PRODUCE: (3, 10),
    Api.FETCH: (4, 12),
    Api.LIST_OFFSETS: (1, 6),
    Api.METADATA: (0, 9),
    Api.OFFSET_COMMIT: (2, 8),
    Api.OFFSET_FETCH: (1, 8),
    Api.FIND_COORDINATOR: (0, 4),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 5),
    Api.LIST_GROUPS: (0, 4),
    Api.SASL_HANDSHAKE: (1, 1),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 6),
    Api.DELETE_TOPICS: (1, 5),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 4),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.DESCRIBE_ACLS: (1, 3),
    Api.CREATE_ACLS: (1, 3),
    Api.DELETE_ACLS: (1, 3),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.ALTER_CONFIGS: (0, 2),
    Api.SASL_AUTHENTICATE: (0, 2),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.DELETE_GROUPS: (0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.OFFSET_DELETE: (0, 0),
    Api.DESCRIBE_CLUSTER: (0, 1),
}

# The first flexible version (KIP-482) of each API: from there on headers carry tagged fields too.
NEVER = 1 << 15
FIRST_FLEXIBLE: dict[Api, int] = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.LIST_OFFSETS: 6,
    Api.METADATA: 9,
    Api.OFFSET_COMMIT: 8,
    Api.OFFSET_FETCH: 6,
    Api.FIND_COORDINATOR: 3,
    Api.JOIN_GROUP: 6,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 4,
    Api.SYNC_GROUP: 4,
    Api.DESCRIBE_GROUPS: 5,
    Api.LIST_GROUPS: 3,
    Api.SASL_HANDSHAKE: NEVER,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.DELETE_RECORDS: 2,
    Api.INIT_PRODUCER_ID: 2,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_ACLS: 2,
    Api.CREATE_ACLS: 2,
    Api.DELETE_ACLS: 2,
    Api.DESCRIBE_CONFIGS: 4,
    Api.ALTER_CONFIGS: 2,
    Api.SASL_AUTHENTICATE: 2,
    Api.CREATE_PARTITIONS: 2,
    Api.DELETE_GROUPS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.OFFSET_DELETE: NEVER,
    Api.DESCRIBE_CLUSTER: 0,
}


def is_flexible(api: Api, version: int) -> bool:
    return version >= FIRST_FLEXIBLE[api]


def is_supported(api: Api, version: int) -> bool:
    low, high = _VERSIONS[api]
    return low <= version <= high


# By key: looking up an enum member in a dict costs a call, for each request.
_OFFERED = {int(api): bounds for api, bounds in VERSIONS.items()}
_VERSIONS = [_OFFERED.get(key, (0, -1)) for key in range(max(_OFFERED) + 1)]
