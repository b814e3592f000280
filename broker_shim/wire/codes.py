"""Kafka's error codes that we answer with, and which of our errors becomes which.

The rule for produce: a code that clients retry means "not stored, or stored by us and safe to send again"; an
outcome that nobody knows is REQUEST_TIMED_OUT, which an idempotent producer resolves by its sequence numbers.
"""

from __future__ import annotations

from enum import IntEnum

from logstore import errors


class Code(IntEnum):
    """Kafka's numbers and Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    INVALID_REGULAR_EXPRESSION = 128


# First match wins: subclasses come before their bases.
_PRODUCE: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.Fenced, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.UnknownTopic, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.RecordTooLarge, Code.MESSAGE_TOO_LARGE),
    (errors.KeyRequired, Code.INVALID_RECORD),
    (errors.InvalidRecord, Code.CORRUPT_MESSAGE),
    (errors.BufferFull, Code.NOT_ENOUGH_REPLICAS),
    (errors.OutcomeUnknown, Code.REQUEST_TIMED_OUT),
    (TimeoutError, Code.REQUEST_TIMED_OUT),
    (errors.Indeterminate, Code.REQUEST_TIMED_OUT),
    (errors.Determinate, Code.NOT_ENOUGH_REPLICAS),
    (errors.ReadOnly, Code.POLICY_VIOLATION),
    (errors.Closed, Code.NOT_LEADER_OR_FOLLOWER),
)

_READ: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.OffsetOutOfRange, Code.OFFSET_OUT_OF_RANGE),
    (errors.UnknownTopic, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.Fenced, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.Closed, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.StoreError, Code.KAFKA_STORAGE_ERROR),
    (errors.CorruptData, Code.KAFKA_STORAGE_ERROR),
    (TimeoutError, Code.REQUEST_TIMED_OUT),
)

_ADMIN: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.UnknownTopic, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, Code.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopicName, Code.INVALID_TOPIC_EXCEPTION),
    (errors.ReadOnly, Code.POLICY_VIOLATION),
    (errors.Fenced, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.OffsetOutOfRange, Code.OFFSET_OUT_OF_RANGE),
    (errors.StoreError, Code.REQUEST_TIMED_OUT),
    (TimeoutError, Code.REQUEST_TIMED_OUT),
)


def of_produce(error: BaseException) -> Code:
    return _first(_PRODUCE, error)


def of_read(error: BaseException) -> Code:
    return _first(_READ, error)


def of_admin(error: BaseException) -> Code:
    return _first(_ADMIN, error)


def _first(table: tuple[tuple[type[BaseException], Code], ...], error: BaseException) -> Code:
    for kind, code in table:
        if isinstance(error, kind):
            return code
    return Code.UNKNOWN_SERVER_ERROR
