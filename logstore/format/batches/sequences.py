"""The numbers of idempotent producers: what an append is beside what is known of its producer.

A Kafka batch carries producer id, epoch and the number of its first record; its records are numbered one by one, and after
2**31 - 1 comes 0. What is remembered of a producer are its epoch and its last batches. What an append is told is decided
by those who ask: the engine's shared writers refuse with errors, the broker answers with Kafka's codes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, Protocol, TypeVar

from logstore.format.batches.batch import BatchInfo

MODULUS = 1 << 31
"""After the last number a producer starts again at 0, as Kafka's do."""
MAX_PRODUCERS = 100_000
"""For each partition. The one that was silent longest is forgotten first."""


def advance(sequence: int, records: int) -> int:
    """The number so many records later."""
    return (sequence + records) % MODULUS


def distance(first: int, later: int) -> int:
    """How many records later it is."""
    return (later - first) % MODULUS


class Sequences(NamedTuple):
    """What an idempotent producer says about its append: record numbers `first` to `last` of `producer_id`, in `epoch`."""

    producer_id: int
    epoch: int
    first: int
    last: int

    @classmethod
    def of(cls, batch: BatchInfo) -> Sequences:
        last = advance(batch.base_sequence, batch.span - 1)
        return cls(batch.producer_id, batch.producer_epoch, batch.base_sequence, last)

    @property
    def records(self) -> int:
        return distance(self.first, self.last) + 1

    @property
    def next(self) -> int:
        """The number that the producer's next record has."""
        return advance(self.last, 1)


class SequenceCheck(Enum):
    """What an append is beside what is known of its producer."""

    UNKNOWN = auto()  # nothing is known
    REPLACED = auto()  # its epoch has passed
    NEW_EPOCH = auto()  # its epoch is later than what is known
    NEXT = auto()  # it follows directly
    AHEAD = auto()  # numbers are missing before it
    BEHIND = auto()  # all of its numbers came before
    ACROSS = auto()  # some of its numbers came before, the others did not


def order(append: Sequences, expected: int) -> SequenceCheck:
    """The same within one epoch, of which number `expected` is the next."""
    behind = distance(append.first, expected)
    if behind == 0:
        return SequenceCheck.NEXT
    if behind >= MODULUS // 2:
        return SequenceCheck.AHEAD
    return SequenceCheck.ACROSS if behind < append.records else SequenceCheck.BEHIND


class Numbered(Protocol):
    """A remembered batch: its first and its last number."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


B = TypeVar("B", bound=Numbered)


@dataclass(slots=True, eq=False)
class KnownProducer(Generic[B]):
    """Has at least one batch."""

    epoch: int
    batches: deque[B]

    @property
    def next_sequence(self) -> int:
        return advance(self.batches[-1].last, 1)


class KnownProducers(dict[int, KnownProducer[B]]):
    """By id, in the order in which they were last seen. `remembered`: how many batches of each; None for all."""

    def __init__(self, remembered: int | None) -> None:
        super().__init__()
        self._remembered = remembered

    def check(self, append: Sequences) -> SequenceCheck:
        producer = self.get(append.producer_id)
        if producer is None:
            return SequenceCheck.UNKNOWN
        if append.epoch != producer.epoch:
            return SequenceCheck.REPLACED if append.epoch < producer.epoch else SequenceCheck.NEW_EPOCH
        return order(append, producer.next_sequence)

    def batches_of(self, append: Sequences) -> deque[B]:
        """Where the caller adds what is to be remembered of this append: that of its epoch."""
        producer = self.pop(append.producer_id, None)
        if producer is None or producer.epoch != append.epoch:
            producer = KnownProducer(append.epoch, deque(maxlen=self._remembered))
        self[append.producer_id] = producer
        return producer.batches

    def forget(self) -> int | None:
        """Whoever was silent longest, if there are too many. His id."""
        if len(self) <= MAX_PRODUCERS:
            return None
        oldest = next(iter(self))
        del self[oldest]
        return oldest
