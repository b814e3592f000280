"""Every error that logstore raises, in one tree, sorted by what the caller should do.

    LogStoreError
    ├── UnknownTopic            create it, or fix the name
    ├── TopicExists             pass exist_ok=True, or pick another name
    ├── InvalidTopicName        pick a name of letters, digits, '.', '_' and '-'
    ├── InvalidRecord           fix the record; nothing was stored and no offset was taken
    │   ├── KeyRequired         give each record a key: the topic is compacted by key
    │   └── RecordTooLarge      split it, or raise max_batch_bytes
    ├── NotAtomic               use lanes=1 and writer="exclusive", or append to each partition by itself
    ├── OffsetOutOfRange        read between .low and .high
    ├── BufferFull              try again later; nothing was taken
    ├── OutcomeUnknown          it may or may not be stored: read back before you send it again
    │   └── AppendTimeout       the same, because the deadline passed; the flush goes on
    ├── PartitionInUse          another process writes it and lives: open all with writer="shared", or with take_over=True
    ├── Fenced                  another writer owns the partition: open all with writer="shared", or reopen() it
    ├── ReadOnly                open with writer="exclusive" or writer="shared"
    ├── Closed                  open it again
    ├── CorruptData             restore the object named by .key; .offset says from where
    ├── UnsupportedStore        use a store that keeps the promise named in the message
    ├── GapError                feed the missing source range first
    ├── DivergentWriters        the replicas do not read the same input: stop them
    ├── StraddlingTransaction   replay from a transaction boundary
    └── StoreError              what an object store reports
        ├── ObjectNotFound
        ├── PreconditionFailed  the object is there already, or has changed
        ├── Determinate         nothing happened; safe to try again
        │   ├── StoreUnavailable  nothing happened, and the store cannot be reached or refuses us
        │   └── InvalidKey      nothing happened: no store of ours takes this key; fix the key
        └── Indeterminate       it may have happened: look before you try again

`retriable` says whether the same call may be repeated as it is, with no risk of a duplicate.
A test compares this drawing with the classes below.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TypeVar

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
    "InvalidKey",
    "InvalidRecord",
    "InvalidTopicName",
    "KeyRequired",
    "LogStoreError",
    "NotAtomic",
    "ObjectNotFound",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PartitionInUse",
    "PreconditionFailed",
    "ReadOnly",
    "RecordTooLarge",
    "StoreError",
    "StoreUnavailable",
    "StraddlingTransaction",
    "TopicExists",
    "UnknownTopic",
    "UnsupportedStore",
]


class LogStoreError(Exception):
    """The root. Catch it to catch everything that is ours."""

    retriable: bool = False


class UnknownTopic(LogStoreError):
    """No topic of that name."""


class TopicExists(LogStoreError):
    """`create_topic` without `exist_ok`, or with a different number of partitions."""


class InvalidTopicName(LogStoreError):
    """The name could not be an object key of ours, or a Kafka topic."""


class InvalidRecord(LogStoreError):
    """What was handed in is not a record or a record batch. It took no offset."""


class KeyRequired(InvalidRecord):
    """The topic is compacted by key, and a record has none. It took no offset. `places`: which of those that came together,
    from 0; none if it was one."""

    places: tuple[int, ...] = ()


class RecordTooLarge(InvalidRecord):
    """One record alone is larger than a batch may be."""


class NotAtomic(LogStoreError):
    """Records of these partitions cannot be committed together by this store as it was opened. Nothing was appended."""


class OffsetOutOfRange(LogStoreError):
    """The offset lies outside what the partition holds."""

    def __init__(self, low: int, high: int, offset: int | None = None, where: str = "partition") -> None:
        asked = "the offset" if offset is None else f"offset {offset}"
        super().__init__(
            f"{asked} is outside of {where}, which holds {low} to {high}: read from {low} or {high}"
        )
        self.low = low
        self.high = high
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class BufferFull(LogStoreError):
    """`max_buffered_bytes` are waiting to be stored and none were freed in time. Nothing was taken."""

    retriable = True


class OutcomeUnknown(LogStoreError):
    """The store did not say whether it has the data, and could not be asked in time."""


class AppendTimeout(OutcomeUnknown):
    """The deadline passed before the ack. The records are still queued and may become durable."""


class Fenced(LogStoreError):
    """A newer writer owns the partition. This one has stopped for good.

    `partition`: of an append to several partitions that failed as a whole, the one that has another writer.
    """

    partition: str | None = None


class PartitionInUse(LogStoreError):
    """Opening a writer would stop one that is alive, or may be. Nothing was appended, and nobody was stopped.

    `owner`: the process that has the partition, in words; None if that is not known, or if there may be several. The same
    call may be made again: it works as soon as that one has closed.
    """

    retriable = True

    def __init__(self, message: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class ReadOnly(LogStoreError):
    """The store was opened with writer="read_only"."""


class Closed(LogStoreError):
    """The store, or the writer, is closed."""


class CorruptData(LogStoreError):
    """Stored bytes are not what was written. Nothing of them reached the caller."""

    def __init__(self, key: str, offset: int | None, why: str = "the bytes are damaged") -> None:
        at = "" if offset is None else f" at offset {offset}"
        super().__init__(f"{key}{at}: {why}. Restore the object from a copy, or run `logstore verify`")
        self.key = key
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class UnsupportedStore(LogStoreError):
    """The place is not a log store, is of a newer format, or breaks a promise that we build on."""


class GapError(LogStoreError):
    """Source data between the partition's upper and the batch's lower is missing. Nothing was written."""


class DivergentWriters(LogStoreError):
    """Two replicated writers hold different records for the same source range."""


class StraddlingTransaction(LogStoreError):
    """A replayed transaction lies half below and half above what a sink has stored."""


class StoreError(LogStoreError):
    """Below this: what an object store reports. The engine turns most of it into the errors above."""


class ObjectNotFound(StoreError):
    """There is no object at that key."""


class PreconditionFailed(StoreError):
    """`if_absent` met an object, or `if_match` met another version (or none)."""


class Determinate(StoreError):
    """The operation failed and changed nothing."""

    retriable = True


class StoreUnavailable(Determinate):
    """The store cannot be reached, or refuses us; the operation changed nothing."""


class InvalidKey(Determinate):
    """The key is empty, leaves the store's root, or cannot be stored there."""

    retriable = False


class Indeterminate(StoreError):
    """The operation may have been carried out: the answer was lost."""


E = TypeVar("E", bound=LogStoreError)


def fresh(error: E) -> E:
    """A copy to raise, of an error that is kept: why a writer has stopped, say, told to everybody who still appends.

    Raised itself, the one object would collect the frames of every raise, with all the records that they hold, for ever.
    """
    again = copy(error)
    again.__cause__ = error.__cause__
    return again


def _rebuild(cls: type[LogStoreError], args: tuple[object, ...], state: dict[str, object]) -> LogStoreError:
    """Unpickle an error whose constructor builds its own message (Spark and process pools pickle errors)."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def __dir__() -> list[str]:
    return sorted(__all__)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around an import that an extra of the package brings: what is missing is named together with the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "logstore", "broker_shim"):
            raise  # no extra would bring it
        raise ModuleNotFoundError(
            f'{missing} is not installed: pip install "embedded-logstore[{extra}]"', name=error.name
        ) from error
