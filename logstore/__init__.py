"""logstore: an embedded, partitioned, append-only log whose home is an object store.

An acknowledged record is readable at once, is never silently lost, never changes its offset, and its ack says exactly how
durable it is: `buffered` (this process), `local` (this disk, fsynced), or `durable` (the object store). The default is
`durable`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    KeyRequired,
    LogStoreError,
    NotAtomic,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionInUse,
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

if TYPE_CHECKING:
    from logstore import aio as aio
    from logstore import errors as errors
    from logstore import groups as groups
    from logstore import ingest as ingest
    from logstore import objects as objects
    from logstore import testing as testing
    from logstore import upsert as upsert
    from logstore import writers as writers
    from logstore.config import StoreConfig, StoreSettings, TopicConfig, TopicOptions
    from logstore.engine.memory.partition_state import Marks
    from logstore.engine.memory.results import ReadResult, Receipt
    from logstore.engine.partition.partition_log import PartitionLog
    from logstore.format.batches.record import Record, TopicRecord
    from logstore.store import Store, open
    from logstore.topic import Topic

__version__ = "0.1.0"
"""Of the distribution too, which is called `embedded-logstore`: pyproject.toml reads it here."""

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
    "KeyRequired",
    "LogStoreError",
    "Marks",
    "NotAtomic",
    "ObjectNotFound",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PartitionInUse",
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
    "StoreSettings",
    "StoreUnavailable",
    "StraddlingTransaction",
    "Topic",
    "TopicConfig",
    "TopicExists",
    "TopicOptions",
    "TopicRecord",
    "UnknownTopic",
    "UnsupportedStore",
    "__version__",
    "open",
]

_MODULES = ("aio", "errors", "groups", "ingest", "objects", "testing", "upsert", "writers")
_HOMES = {
    "logstore.config": ("StoreConfig", "StoreSettings", "TopicConfig", "TopicOptions"),
    "logstore.engine.memory.partition_state": ("Marks",),
    "logstore.engine.memory.results": ("ReadResult", "Receipt"),
    "logstore.engine.partition.partition_log": ("PartitionLog",),
    "logstore.format.batches.record": ("Record", "TopicRecord"),
    "logstore.store": ("Store", "open"),
    "logstore.topic": ("Topic",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        """`logstore.aio.open(…)` after `import logstore` alone. Who uses nothing of a module does not wait for it: a
        command that looks at a store needs no writer."""
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
