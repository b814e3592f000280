"""A record: what a caller appends and what a reader gets back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


class Record(NamedTuple):
    """One entry of the log. `value=None` is a tombstone. `offset` is None until the log has given one.

    A tuple, so that a reader can build a million of them a second.

    >>> Record(b"paid", key=b"order-17").value
    b'paid'
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    offset: int | None = None


class TopicRecord(Record):
    """A record that knows where it is: what readers of several partitions get. Equal to another one only at the same place;
    a plain `Record` says of no place, so it is compared without.

    >>> record = TopicRecord.at("orders", 3, Record(b"paid", offset=7))
    >>> record.topic, record.partition, record.offset, record == Record(b"paid", offset=7)
    ('orders', 3, 7, True)
    """

    __slots__ = ()

    topic: str = ""
    partition: int = -1

    @classmethod
    def at(cls, topic: str, partition: int, record: Record) -> TopicRecord:
        """The record, with its place."""
        return _new_tuple(_class_of(topic, partition), record)

    @classmethod
    def all_at(cls, topic: str, partition: int, records: Iterable[Record]) -> list[TopicRecord]:
        """Many records of one place."""
        return list(map(partial(_new_tuple, _class_of(topic, partition)), records))

    def __eq__(self, other: object) -> bool:
        same_place = not isinstance(other, TopicRecord) or (self.topic, self.partition) == (
            other.topic,
            other.partition,
        )
        return same_place and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = Record.__hash__

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, topic={self.topic!r}, partition={self.partition})"

    def __reduce__(self) -> tuple[object, ...]:
        return TopicRecord.at, (self.topic, self.partition, Record._make(self))


_new_tuple = tuple.__new__


@lru_cache(maxsize=4096)
def _class_of(topic: str, partition: int) -> type[TopicRecord]:
    """The place is the class's, so that a record with one is as small, and as quickly made, as a record without."""
    return type("TopicRecord", (TopicRecord,), {"__slots__": (), "topic": topic, "partition": partition})
