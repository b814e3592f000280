"""What appends and reads give back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Protocol

from logstore.config import Ack
from logstore.engine.chain.segment_table import LostRange
from logstore.errors import Closed, CorruptData
from logstore.format.batches.batch import split
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from logstore.format.errors import FormatError

Bytes = bytes | memoryview


class Durable(Protocol):
    """What a receipt needs of its partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def wait_durable(self, receipt: Receipt, timeout: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The partition of a receipt that was sent to another process: a name, and nobody to ask."""

    topic: str
    partition: int

    def wait_durable(self, receipt: Receipt, timeout: float | None) -> None:
        raise Closed(
            f"{self.topic}/{self.partition}: offset {receipt.last_offset} was appended in another process, and only that "
            "one can wait for it: wait there, or read it here with visibility='durable'"
        )


class Receipt:
    """The ack of one append: where it is, and how durable it was when the ack was given.

    It waits with the partition as it was then, which still answers for its records when it was reopened since. A receipt
    may be pickled; what arrives says the same, and cannot wait.
    """

    __slots__ = ("_log", "durability", "last_offset", "offset", "timestamp_ms")

    def __init__(
        self, log: Durable, offset: int, last_offset: int, timestamp_ms: int, durability: Ack
    ) -> None:
        self._log = log
        self.offset = offset
        self.last_offset = last_offset
        self.timestamp_ms = timestamp_ms
        self.durability: Ack = durability

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._log.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._log.partition

    def wait_durable(self, timeout: float | None = None) -> None:
        """Wait until these records, and not more than these, are in the object store. Forces no flush.

        Raises `AppendTimeout` when `timeout` seconds passed (the flush goes on), what stopped the writer, or `Closed` in
        another process than the one that appended.
        """
        if self.durability != "durable":
            self._log.wait_durable(self, timeout)
            self.durability = "durable"

    def __reduce__(self) -> tuple[object, ...]:
        """For another process: what it says, without the log, its threads and its files."""
        where = Elsewhere(self.topic, self.partition)
        return type(self), (where, self.offset, self.last_offset, self.timestamp_ms, self.durability)

    def __copy__(self) -> Receipt:
        """In the same process it can still wait."""
        return type(self)(self._log, self.offset, self.last_offset, self.timestamp_ms, self.durability)

    def __deepcopy__(self, memo: dict[int, object]) -> Receipt:
        return self.__copy__()

    def __repr__(self) -> str:
        return (
            f"Receipt(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"last_offset={self.last_offset}, timestamp_ms={self.timestamp_ms}, durability={self.durability!r})"
        )


def acked(receipt: Receipt) -> Future[Receipt]:
    """A future that is done: the append was acked before anybody could wait for it."""
    future: Future[Receipt] = Future()
    future.set_result(receipt)
    return future


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole batches from one consistent look at the partition, and its watermarks at that moment.

    `where` names the partition. `parts` are the batches' bytes, in order, without a copy; `raw` is the same in one piece.
    The first batch may begin before the offset that was asked for: `records()` leaves those out. Read on at `next_offset`.
    `lost` says which offsets on the way hold no record and never will.
    """

    where: str
    offset: int
    parts: tuple[Bytes, ...] = field(repr=False)
    next_offset: int
    low_watermark: int
    durable_high_watermark: int
    buffered_high_watermark: int
    source: str
    lost: tuple[LostRange, ...] = ()

    @property
    def raw(self) -> bytes:
        """The batches as they are stored, back to back."""
        return b"".join(self.parts)

    def __len__(self) -> int:
        """How many bytes of batches."""
        return sum(len(part) for part in self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __reduce__(self) -> tuple[object, ...]:
        """For another process: with bytes of its own, where here they are a view of what is cached."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["parts"] = tuple(map(bytes, self.parts))
        return type(self), tuple(values.values())

    def records(self) -> Iterator[Record]:
        """The records, each with its offset."""
        return chain.from_iterable(self.batches())

    def batches(self, stop: int | None = None) -> Iterator[list[Record]]:
        """The same, batch by batch, without those from the offset `stop` on."""
        for part in self.parts:
            try:
                for info in split(part):
                    yield decode_records(part, info, start_offset=self.offset, stop_offset=stop)
            except FormatError as damage:
                raise CorruptData(self.where, self.offset, damage.why) from damage
