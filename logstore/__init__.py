"""logstore: an embedded, partitioned, append-only log whose home is an object store.

An acknowledged record is readable at once, is never silently lost, never changes its offset, and its ack says exactly how
durable it is: `buffered` (this process), `local` (this disk, fsynced), or `durable` (the object store). The default is
`durable`.
"""

from logstore.config import StoreConfig, TopicConfig
from logstore.engine.partition_log import PartitionLog
from logstore.engine.results import ReadResult, Receipt
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    CorruptData,
    Determinate,
    DivergentWriters,
    Fenced,
    GapError,
    Indeterminate,
    InvalidRecord,
    InvalidTopicName,
    LogStoreError,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    PreconditionFailed,
    ReadOnly,
    RecordTooLarge,
    StoreError,
    StoreUnavailable,
    StraddlingTransaction,
    TopicExists,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.format.record import Record
from logstore.store import Store, open
from logstore.topic import Topic

__all__ = [
    "AppendTimeout",
    "BufferFull",
    "Closed",
    "CorruptData",
    "Determinate",
    "DivergentWriters",
    "Fenced",
    "GapError",
    "Indeterminate",
    "InvalidRecord",
    "InvalidTopicName",
    "LogStoreError",
    "ObjectNotFound",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PartitionLog",
    "PreconditionFailed",
    "ReadOnly",
    "ReadResult",
    "Receipt",
    "Record",
    "RecordTooLarge",
    "Store",
    "StoreConfig",
    "StoreError",
    "StoreUnavailable",
    "StraddlingTransaction",
    "Topic",
    "TopicConfig",
    "TopicExists",
    "UnknownTopic",
    "UnsupportedStore",
    "open",
]
