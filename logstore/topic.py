"""A topic: partitions under one name, and the rule that picks one for a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Literal

from logstore.config import Ack, Stored, TopicConfig, Visibility
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.internal import Begun
from logstore.engine.partition.many_partitions import Cursor, ManyPartitions, look_at
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.partition.readable_partition import check_start
from logstore.errors import Closed, InvalidRecord, UnknownTopic
from logstore.format.batches.record import Header, Record, TopicRecord
from logstore.format.murmur2 import partition_for_key
from logstore.layout.catalog import TopicDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.arrow.table import TopicSplit


@dataclass
class ManyAppends:
    """What `append_many` has begun: in which partition, with which of the records `given`, by their numbers."""

    given: list[Record]
    begun: list[tuple[PartitionLog, list[int], Begun]] = field(default_factory=list)
    failure: Exception | None = None

    @property
    def acks(self) -> list[Future[Receipt]]:
        """What is waited for."""
        return [future for _, _, ((_, future), _) in self.begun if future is not None]

    def finish(self) -> list[Receipt]:
        """Wait for all of it; one receipt for each record, in their order."""
        receipts: list[Receipt | None] = [None] * len(self.given)
        for log, numbers, append in self.begun:
            try:
                whole = log._internal.finish_append(append)
            except Exception as error:
                self.failure = self.failure or error
            else:
                _give_receipts(log, whole, numbers, self.given, receipts)
        if self.failure is not None:
            raise self.failure
        return [receipt for receipt in receipts if receipt is not None]


class TopicInternals:
    """The internal interface of a topic: `topic._internal`, what `store`, `aio`, `ingest` and `broker_shim` share and users
    do not see. Beside `logstore.engine.partition.internal`, and like that listed by a test.

    `descriptor` is what the store says of the topic; `logs` are the partitions that were asked for.
    """

    def __init__(
        self, descriptor: TopicDescriptor, open_partition: Callable[[TopicDescriptor, int], PartitionLog]
    ) -> None:
        self.descriptor = descriptor
        self.logs: list[PartitionLog | None] = [None] * descriptor.partitions
        self._open = open_partition
        self._turn = count()

    def is_older_than(self, descriptor: TopicDescriptor) -> bool:
        """Whether that says something new. (One of this topic that was read before this object was made does not.)"""
        mine = self.descriptor
        if mine.incarnation != descriptor.incarnation:
            return True
        new = (descriptor.partitions, descriptor.config, descriptor.kafka)
        return new != (mine.partitions, mine.config, mine.kafka) and descriptor.revision > mine.revision

    def partition(self, i: int) -> PartitionLog:
        """The log of partition `i`, counted from 0."""
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < len(self.logs):
            raise ValueError(
                f"topic {self.descriptor.name!r} has partitions 0 to {len(self.logs) - 1}, not {i!r}"
            )
        log = self.logs[i]
        while log is None or log._internal.replaced:
            log = self.logs[i] = self._open(self.descriptor, i)
        return log

    def forget(self, log: PartitionLog) -> None:
        """The log was replaced: the next call asks for the one there is now."""
        self.logs = [None if known is log else known for known in self.logs]

    def pick(self, key: object) -> int:
        """The partition for a key, as Kafka's default partitioner picks it; without a key they take turns."""
        if key is None:
            return next(self._turn) % len(self.logs)
        if type(key) is not bytes:
            if not isinstance(key, bytes | bytearray | memoryview):
                raise InvalidRecord(f"a key is bytes or None, not {type(key).__name__}: nothing was appended")
            key = bytes(key)
        return partition_for_key(key, len(self.logs))

    def check_partitions(self, named: Iterable[object]) -> None:
        """`ValueError` for a partition that there is not."""
        for i in named:
            self.partition(i)  # type: ignore[arg-type]  # it says what is wrong with it

    def many(
        self, positions: Mapping[int, int | Literal["end"]] | Literal["end"] | None, visibility: Visibility
    ) -> tuple[ManyPartitions, dict[int, int]]:
        """A reader of several partitions, and where to begin. `"end"` asks the store, unless this process writes."""
        first = self.partition(0)._internal
        reader = ManyPartitions(first.clock, first.follow_interval, visibility)
        if isinstance(positions, str):
            check_start(positions)
        given = dict.fromkeys(range(len(self.logs)), "end") if positions == "end" else dict(positions or {})
        self.check_partitions(given)
        for start in given.values():
            check_start(start)
        ends = [i for i, start in given.items() if start == "end"]
        logs = [self.partition(i)._internal for i in ends]
        look_at(logs)
        found = [log.end_seen(visibility) for log in logs]
        known = {i: start for i, start in given.items() if isinstance(start, int)}
        return reader, known | dict(zip(ends, found, strict=True))

    def cursor(self, i: int, position: int | None) -> Cursor:
        """For a reader of several partitions."""
        return Cursor(partial(self.partition, i), position)

    def begin_append_many(
        self,
        records: Iterable[Record | bytes],
        *,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> ManyAppends:
        """`append_many` without the wait for the acks: `finish()` waits, and gives the receipts."""
        given = [
            Record(record) if isinstance(record, bytes | bytearray | memoryview) else record
            for record in _several(records)
        ]
        checked = []
        for log, numbers in self._shares(given, partition):
            mine = [given[number] for number in numbers]
            if any(record.timestamp_ms is not None for record in mine):
                # Their own are known to the receipts then, and what the others get must be, too.
                now_ms = log._internal.now_ms
                for number, record in zip(numbers, mine, strict=True):
                    if record.timestamp_ms is None:
                        given[number] = record._replace(timestamp_ms=now_ms)
                mine = [given[number] for number in numbers]
            checked.append((log, numbers, log._internal.check_records(mine)))
        many = ManyAppends(given)
        for log, numbers, runs in checked:
            try:
                many.begun.append((log, numbers, log._internal.begin_checked(runs, ack=ack, timeout=timeout)))
            except Exception as error:
                many.failure = many.failure or error
        return many

    def _shares(self, given: list[Record], partition: int | None) -> list[tuple[PartitionLog, list[int]]]:
        """Which of the records, by number, go to which partition."""
        places: dict[int, list[int]] = {}
        for number, record in enumerate(given):
            if not isinstance(record, Record):
                raise InvalidRecord(
                    f"record {number} is a {type(record).__name__}, not a Record or bytes; nothing was appended"
                )
            place = self.pick(record.key) if partition is None else partition
            places.setdefault(place, []).append(number)
        return [(self.partition(place), numbers) for place, numbers in places.items()]


class Topic:
    """Safe for threads. Get it from `Store.topic` or `Store.create_topic`."""

    def __init__(
        self, descriptor: TopicDescriptor, open_partition: Callable[[TopicDescriptor, int], PartitionLog]
    ) -> None:
        self._internal = TopicInternals(descriptor, open_partition)

    @property
    def name(self) -> str:
        """As it was created."""
        return self._internal.descriptor.name

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self._internal.descriptor.partitions

    @property
    def config(self) -> TopicConfig:
        """The topic's own settings."""
        return self._internal.descriptor.config

    def partition(self, i: int) -> PartitionLog:
        """The log of partition `i`, counted from 0."""
        return self._internal.partition(i)

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one record and return when it is acked. `value=None` is a tombstone.

        `partition` says where; else the key does, as Kafka's default partitioner would; else they take turns.
        Errors: as `PartitionLog.append`.
        """
        inner = self._internal
        logs = inner.logs
        if partition is None:
            partition = partition_for_key(key, len(logs)) if type(key) is bytes else inner.pick(key)
        log = logs[partition] if type(partition) is int and 0 <= partition < len(logs) else None
        if log is None:
            log = inner.partition(partition)
        try:
            return log._internal.append_one(value, key, headers, timestamp_ms, ack, timeout)
        except InvalidRecord:
            check_one(value)
            raise

    def append_many(
        self,
        records: Iterable[Record | bytes],
        *,
        partition: int | None = None,
        ack: Ack | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Append records, each to the partition its key picks; one receipt for each record, in their order.

        The records of one partition are one atomic append; the partitions commit side by side. A record that is none refuses
        them all. If one partition fails, its error is raised when all have ended: what the others stored stays stored.
        """
        return self._internal.begin_append_many(
            records, partition=partition, ack=ack, timeout=timeout
        ).finish()

    # Reading all partitions

    def tail(
        self,
        positions: Mapping[int, int | Literal["end"]] | Literal["end"] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> Iterator[TopicRecord]:
        """The records of all partitions, for ever; each knows its `topic` and `partition`. Those of one partition come in
        the order of their offsets, those of different partitions in any order.

        `positions`: `{partition: offset}`, or `"end"` for some or for all: what comes after this call. A partition that is
        not named is read from its low watermark. To go on later, note `record.offset + 1` for each `record.partition`.

        Costs no request where this process writes; else the store is asked for at most 16 partitions in each
        `follow_interval`, in turn. Ends when the store is closed or the topic deleted. A store that cannot be asked ends it
        with that error. Partitions that are added later are not in it.
        """
        many, starts = self._internal.many(positions, visibility)
        many.put(self._internal.cursor(i, starts.get(i)) for i in range(self.partitions))
        return _tail(many)

    def records(
        self,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        *,
        visibility: Visibility = "buffered",
    ) -> Iterator[TopicRecord]:
        """The records that there are, partition after partition; each knows its `topic` and `partition`.

        `start` and `stop`: `{partition: offset}`; a partition that is not named is read from its low watermark, or up to
        its high watermark at the time of the call. Errors: as `PartitionLog.records`.
        """
        for given in (start, stop):
            self._internal.check_partitions(given or {})
        chosen = [
            (i, self.partition(i).records((start or {}).get(i), (stop or {}).get(i), visibility=visibility))
            for i in range(self.partitions)
        ]
        return (TopicRecord.at(self.name, i, record) for i, records in chosen for record in records)

    # As columns: `logstore.arrow` is imported when it is asked for, because it needs the extra `arrow`

    def to_arrow(
        self,
        columns: Iterable[str] | None = None,
        start: int | Mapping[int, int] | None = None,
        stop: int | Mapping[int, int] | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        *,
        visibility: Stored = "durable",
    ) -> pa.Table:
        """The durable records as one `pyarrow.Table`, in memory. Arguments and errors: as `arrow_batches`."""
        return self.arrow_batches(columns, start, stop, since, until, visibility=visibility).read_all()

    def arrow_batches(
        self,
        columns: Iterable[str] | None = None,
        start: int | Mapping[int, int] | None = None,
        stop: int | Mapping[int, int] | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        *,
        visibility: Stored = "durable",
    ) -> pa.RecordBatchReader:
        """The durable records as a stream of Arrow batches, partition after partition, each in offset order: a snapshot of
        the moment of this call, read while it is consumed.

        `columns`: some of key, value, topic, partition, offset, timestamp, headers, in the order in which they come; only
        these are decoded. `start` and `stop`: an offset for all partitions, or `{partition: offset}`; one that is not named
        is read from its low watermark, or up to its end. `since` and `until`: records with these timestamps, in
        milliseconds or as a datetime (UTC if it has no zone). Each range leaves out its upper bound. `visibility`:
        `"committed"` ends each partition at its last stable offset and leaves out what Kafka's producers have aborted.

        Raises `OffsetOutOfRange` if a start lies below the low watermark or past the end (one for all partitions: past the
        end of every one), or if retention takes records before they are read; `CorruptData` with the object's name;
        `UnknownTopic` if the topic was deleted. Needs the extra `arrow`.
        """
        from logstore.arrow.table import Query, batches_of

        query = Query.of(columns, start, stop, since, until, visibility)
        return batches_of(query, self.partition(0)._internal.objects, self._internal.descriptor)

    def splits(
        self,
        columns: Iterable[str] | None = None,
        start: int | Mapping[int, int] | None = None,
        stop: int | Mapping[int, int] | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        *,
        max_bytes: int = 64 << 20,
        min_splits: int | None = None,
        visibility: Stored = "durable",
    ) -> list[TopicSplit]:
        """The same records in pieces, for other processes: each pickles, and its `read()` gives a `RecordBatchReader`.

        A piece is at most about `max_bytes` of stored bytes; smaller ones if there would be fewer than `min_splits`. Whoever
        reads opens the store by its URL, with its own credentials: `UnsupportedStore` for a store that has no URL.
        """
        from logstore.arrow.table import Query, splits_of

        query = Query.of(columns, start, stop, since, until, visibility)
        return splits_of(
            query, self.partition(0)._internal.objects, self._internal.descriptor, max_bytes, min_splits
        )

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.partitions})"


def _tail(many: ManyPartitions) -> Iterator[TopicRecord]:
    try:
        while True:
            woken = many.woken
            try:
                taken = many.take(1)
            except (Closed, UnknownTopic):
                return
            for some in taken:
                yield from some.records
            if not taken:
                many.wait(woken, inf)
    finally:
        many.close()


def check_one(value: object) -> None:
    """Refuses several records, or a `Record`, where one value is meant."""
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview | str):
        raise InvalidRecord(
            f"append takes one value, bytes or None, not a {type(value).__name__}: nothing was appended; "
            "append_many takes several, and takes a Record"
        ) from None


def _several(records: Iterable[Record | bytes]) -> Iterable[Record | bytes]:
    """Refuses one record where several are meant: its parts, a number for each byte, are no records."""
    if isinstance(records, Record | bytes | bytearray | memoryview | str):
        raise InvalidRecord(
            f"append_many takes several records, not one {type(records).__name__}; nothing was appended: use append"
        )
    return records


def _give_receipts(
    log: PartitionLog, whole: Receipt, numbers: list[int], given: list[Record], receipts: list[Receipt | None]
) -> None:
    """One for each record of an append that `whole` acks, in its place."""
    for offset, number in enumerate(numbers, whole.offset):
        stamp = given[number].timestamp_ms
        receipts[number] = Receipt(
            log._internal, offset, offset, whole.timestamp_ms if stamp is None else stamp, whole.durability
        )
