"""What the chain says about idempotent producers: which of their records are stored, and where.

A Kafka batch carries producer id, epoch and the number of its first record. For each producer the table keeps where its last
batches lie, learned from committed segments and from nothing else, so it is right whoever wrote them: this writer, a peer,
or an earlier life of ours whose answer was lost. An append is

* new          if its first number follows the last one stored, or if the producer (or its epoch) is not known;
* a duplicate  if all of it is stored: its ack is the offset where it stands;
* refused      otherwise: a number is missing before it (`GapError`), only a part of it is stored, or its epoch has passed
               (`Fenced`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.host.fan_out import side_by_side
from logstore.engine.shared.shared_buffer import SEQUENCE_MODULUS, Sequences
from logstore.errors import Fenced, GapError, InvalidRecord
from logstore.format.batch import BatchInfo, split

LOOK_BACK_SEGMENTS = 1000
"""How far before the writer's opening a retry is still recognised. Everything since is."""
_REMEMBERED_BATCHES = 64
_PRODUCERS_MAX = 100_000


class Stored(NamedTuple):
    first: int
    last: int
    offset: int


@dataclass(slots=True)
class Producer:
    epoch: int
    next_sequence: int
    batches: deque[Stored] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))

    def store(self, append: Sequences, offset: int) -> None:
        """Remember where it stands. What follows directly on the one before it, in numbers and in offsets, is one with it:
        so an append of many batches is remembered whole."""
        if self.batches:
            first, last, start = self.batches[-1]
            count = (last - first) % SEQUENCE_MODULUS + 1
            joins = append.first == (last + 1) % SEQUENCE_MODULUS and offset == start + count
            if joins and count + append.records < SEQUENCE_MODULUS // 2:
                self.batches[-1] = Stored(first, append.last, start)
                return
        self.batches.append(Stored(append.first, append.last, offset))


class ProducerTable:
    """One thread at a time."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._end_offset = 0  # what is below has been taken in, or is older than the table

    def take_in(self, batch: BatchInfo) -> None:
        """A batch that stands in the chain, in chain order."""
        if batch.base_offset < self._end_offset:
            return  # a merged object reaches further than the chain was followed: it was known already
        self._end_offset = batch.base_offset + batch.count
        if batch.producer_id >= 0 and batch.base_sequence >= 0:
            last = (batch.base_sequence + batch.count - 1) % SEQUENCE_MODULUS
            append = Sequences(batch.producer_id, batch.producer_epoch, batch.base_sequence, last)
            self.add(append, batch.base_offset)

    def add(self, append: Sequences, offset: int) -> None:
        """These records stand at `offset` and on."""
        producer = self._producers.pop(append.producer_id, None)
        if producer is None or producer.epoch != append.epoch:
            producer = Producer(append.epoch, 0)
        producer.store(append, offset)
        producer.next_sequence = (append.last + 1) % SEQUENCE_MODULUS
        self._producers[append.producer_id] = producer
        self._end_offset = max(self._end_offset, offset + append.records)
        if len(self._producers) > _PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]  # the one that was silent longest

    def next_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and next number of a producer; None if nothing of it is known."""
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer.epoch, producer.next_sequence)

    def judge(self, append: Sequences) -> int | None:
        """None if the append is new, the offset where it stands if it is stored already. Raises if it must be refused."""
        producer = self._producers.get(append.producer_id)
        if producer is None or append.epoch > producer.epoch:
            return None
        if append.epoch < producer.epoch:
            raise replaced_by(producer.epoch, append)
        if follows(append, producer.next_sequence):
            return None
        for batch in producer.batches:
            into = (append.first - batch.first) % SEQUENCE_MODULUS
            count = (batch.last - batch.first) % SEQUENCE_MODULUS + 1
            if into + append.records <= count:
                return batch.offset + into
            if into < count:
                raise cut_otherwise(append)
        raise InvalidRecord(
            f"producer {append.producer_id}: sequences {append.first} to {append.last} were stored so long ago that their "
            f"offset is not remembered (the next is {producer.next_sequence}); nothing was appended"
        )


def replaced_by(epoch: int, append: Sequences) -> Fenced:
    """What an append of an earlier epoch than this is told."""
    return Fenced(
        f"producer {append.producer_id}: epoch {append.epoch} was replaced by epoch {epoch}; this append was not stored"
    )


def cut_otherwise(append: Sequences) -> InvalidRecord:
    """What an append is told if its records are stored, or queued, but not within one append."""
    return InvalidRecord(
        f"producer {append.producer_id}: sequences {append.first} to {append.last} came before, in several appends or in "
        "another order; nothing was appended: send an append again as it was"
    )


def follows(append: Sequences, expected: int) -> bool:
    """True if `append` starts at `expected`, False if all of it lies before. Raises if neither."""
    behind = (expected - append.first) % SEQUENCE_MODULUS
    if behind == 0:
        return True
    if behind >= SEQUENCE_MODULUS // 2:
        raise GapError(
            f"producer {append.producer_id}: sequence {append.first} came where {expected} is next; nothing was appended: "
            "send what is missing first"
        )
    if behind < append.records:
        raise InvalidRecord(
            f"producer {append.producer_id}: of sequences {append.first} to {append.last} those before {expected} are "
            "stored and the others are not; nothing was appended: send an append again as it was"
        )
    return False


def sequences_of(batches: list[tuple[memoryview, BatchInfo]]) -> Sequences | None:
    """What the batches of one append say together; None if they come from no idempotent producer."""
    first = batches[0][1]
    if first.producer_id < 0:
        if any(info.producer_id >= 0 for _, info in batches):
            raise InvalidRecord("the batches of one append come from different producers: append them apart")
        return None
    expected = first.base_sequence
    for _, info in batches:
        if (info.producer_id, info.producer_epoch, info.base_sequence) != (
            first.producer_id,
            first.producer_epoch,
            expected,
        ):
            raise InvalidRecord(
                "the batches of one append come from different producers, or their sequences do not follow each other: "
                "append them apart"
            )
        expected = (info.base_sequence + info.count) % SEQUENCE_MODULUS
    last = (expected - 1) % SEQUENCE_MODULUS
    return Sequences(first.producer_id, first.producer_epoch, first.base_sequence, last)


def batch_headers(reader: SegmentReader, refs: Iterable[SegmentRef]) -> Iterable[BatchInfo]:
    """The headers of all batches in these segments, in order. Reads their data: several at once, and checked."""

    def of(ref: SegmentRef) -> list[BatchInfo]:
        infos, position = [], ref.base_offset
        while position < ref.end_offset:
            block = reader.block(ref, position, scanning=True)
            infos += split(block.data)
            position = block.end_offset
        return infos

    return [info for infos in side_by_side(partial(of, ref) for ref in refs) for info in infos]
