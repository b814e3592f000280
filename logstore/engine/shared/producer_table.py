"""What the chain says about idempotent producers: which of their records are stored, and where.

A Kafka batch carries producer id, epoch and the number of its first record. For each producer the table keeps where its last
batches lie, learned from committed segments and from nothing else, so it is right whoever wrote them: this writer, a peer,
or an earlier life of ours whose answer was lost. An append is

* new          if its first number follows the last one stored, or if the producer (or its epoch) is not known;
* a duplicate  if all of it is stored: its ack is the offset where it is;
* refused      otherwise: a number is missing before it (`GapError`), only a part of it is stored, or its epoch has passed
               (`Fenced`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from logstore.config import StoreConfig
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.write.admission import admit_records
from logstore.errors import Fenced, GapError, InvalidRecord
from logstore.format.batches.batch import BatchInfo, encode_batch, split
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.sequences import (
    MODULUS,
    KnownProducers,
    SequenceCheck,
    Sequences,
    advance,
    distance,
    order,
)
from logstore.objects.fan_out import fan_out

LOOK_BACK_SEGMENTS = 1000
"""How far before the writer's opening a retry is still recognised. Everything since is."""
_REMEMBERED_BATCHES = 64


class Stored(NamedTuple):
    first: int
    last: int
    offset: int

    @property
    def records(self) -> int:
        return distance(self.first, self.last) + 1


class ProducerTable:
    """One thread at a time."""

    def __init__(self) -> None:
        self._producers = KnownProducers[Stored](_REMEMBERED_BATCHES)
        self._end_offset = 0  # what is below has been taken in, or is older than the table

    def apply(self, batch: BatchInfo) -> None:
        """A batch in the chain, in chain order."""
        if batch.base_offset < self._end_offset:
            return  # a merged object reaches further than the chain was followed: it was known already
        self._end_offset = batch.last_offset + 1
        if batch.producer_id >= 0 and batch.base_sequence >= 0:
            self.add(Sequences.of(batch), batch.base_offset)

    def add(self, append: Sequences, offset: int) -> None:
        """These records are at `offset` and on."""
        _remember(self._producers.batches_of(append), append, offset)
        self._producers.forget()
        self._end_offset = max(self._end_offset, offset + append.records)

    def next_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and next number of a producer; None if nothing of it is known."""
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer.epoch, producer.next_sequence)

    def classify(self, append: Sequences) -> int | None:
        """None if the append is new, the offset where it is if it is stored already. Raises if it must be refused."""
        checked = self._producers.check(append)
        if checked in (SequenceCheck.UNKNOWN, SequenceCheck.NEW_EPOCH):
            return None
        producer = self._producers[append.producer_id]
        if checked is SequenceCheck.REPLACED:
            raise replaced_by(producer.epoch, append)
        if follows(append, producer.next_sequence):
            return None
        for batch in producer.batches:
            into = distance(batch.first, append.first)
            if into + append.records <= batch.records:
                return batch.offset + into
            if into < batch.records:
                raise different_batching(append)
        raise InvalidRecord(
            f"producer {append.producer_id}: sequences {append.first} to {append.last} were stored so long ago that their "
            f"offset is not remembered (the next is {producer.next_sequence}); nothing was appended"
        )


def _remember(batches: deque[Stored], append: Sequences, offset: int) -> None:
    """Where it is. What follows directly on the one before it, in numbers and in offsets, is one with it: so an append of
    many batches is remembered whole."""
    if batches:
        last = batches[-1]
        joins = append.first == advance(last.last, 1) and offset == last.offset + last.records
        if joins and last.records + append.records < MODULUS // 2:
            batches[-1] = last._replace(last=append.last)
            return
    batches.append(Stored(append.first, append.last, offset))


def replaced_by(epoch: int, append: Sequences) -> Fenced:
    """What an append of an earlier epoch than this is told."""
    return Fenced(
        f"producer {append.producer_id}: epoch {append.epoch} was replaced by epoch {epoch}; this append was not stored"
    )


def different_batching(append: Sequences) -> InvalidRecord:
    """What an append is told if its records are stored, or queued, but not within one append."""
    return InvalidRecord(
        f"producer {append.producer_id}: sequences {append.first} to {append.last} came before, in several appends or in "
        "another order; nothing was appended: send an append again as it was"
    )


def follows(append: Sequences, expected: int) -> bool:
    """True if `append` starts at `expected`, False if all of it lies before. Raises if neither."""
    checked = order(append, expected)
    if checked is SequenceCheck.AHEAD:
        raise GapError(
            f"producer {append.producer_id}: sequence {append.first} came where {expected} is next; nothing was appended: "
            "send what is missing first"
        )
    if checked is SequenceCheck.ACROSS:
        raise InvalidRecord(
            f"producer {append.producer_id}: of sequences {append.first} to {append.last} those before {expected} are "
            "stored and the others are not; nothing was appended: send an append again as it was"
        )
    return checked is SequenceCheck.NEXT


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
        expected = advance(expected, info.count)
    return Sequences.of(first)._replace(last=advance(expected, -1))


def batch_headers(reader: SegmentReader, refs: Iterable[SegmentRef]) -> Iterable[BatchInfo]:
    """The headers of all batches in these segments, in order. Reads their data: several at once, and checked."""

    def of(ref: SegmentRef) -> list[BatchInfo]:
        infos, position = [], ref.base_offset
        while position < ref.end_offset:
            block = reader.block(ref, position, scanning=True)
            infos += split(block.data)
            position = block.end_offset
        return infos

    return [info for infos in fan_out(partial(of, ref) for ref in refs) for info in infos]


def numbered_batches(
    records: object, producer_id: int, epoch: int, sequence: int, config: StoreConfig, now_ms: int
) -> bytes:
    """The records as batches that carry their producer's numbers."""
    encoded = []
    for run in admit_records(records, config.max_batch_bytes):
        raw, info = encode_batch(
            run.records,
            now_ms=now_ms,
            codec_id=CODEC_IDS[config.compression],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        encoded.append(raw)
        sequence = advance(sequence, info.count)
    return b"".join(encoded)
