"""What the chain says about idempotent producers: which of their records are stored, and where.

A Kafka batch carries producer id, epoch and the number of its first record. For each producer the table keeps where its last
batches lie, learned from committed segments and from nothing else, so it is right whoever wrote them: this writer, a peer,
or an earlier life of ours whose answer was lost. An append is

* new          if its first number follows the last one stored, or if the producer (or its epoch) is not known;
* a duplicate  if all of it is stored: its ack is the offset where it is;
* refused      otherwise: a number is missing before it (`GapError`), only a part of it is stored, or its epoch has passed
               (`Fenced`).

The table is made when the first numbered append comes, from the newest segments, and kept complete from then on: by our own
commits, and by reading the batches of everything that others commit (`StoredAppends`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.shared.pending import Pending
from logstore.engine.shared.shared_buffer import Entry
from logstore.errors import Fenced, GapError, InvalidRecord, LogStoreError
from logstore.format.batches.batch import BatchInfo, split
from logstore.format.batches.sequences import (
    MODULUS,
    KnownProducer,
    KnownProducers,
    SequenceCheck,
    Sequences,
    advance,
    distance,
)
from logstore.objects.fan_out import fan_out

LOOK_BACK_SEGMENTS = 1000
"""How far before the writer's opening a retry is still recognised. Everything since is."""
_REMEMBERED_BATCHES = 64

Found = int | LogStoreError | None
"""An append's offset if it is stored already, why it is refused, or None if it is new."""

_QUEUED = 1 << 62  # offsets from here on are of appends that have none yet: those before it in its window
_APART = 1 << 32  # between those, so that no two of them are remembered as one


class Stored(NamedTuple):
    first: int
    last: int
    offset: int

    @property
    def records(self) -> int:
        return distance(self.first, self.last) + 1


class ProducerTable:
    """One thread at a time."""

    def __init__(self, remembered: int | None = _REMEMBERED_BATCHES) -> None:
        self._producers = KnownProducers[Stored](remembered)
        self._end_offset = 0  # what is below has been taken in, or is older than the table

    def of(self, producer_ids: Iterable[int]) -> ProducerTable:
        """A copy that knows these producers alone. To it is added what may be stored next, so it forgets nothing."""
        copy = ProducerTable(remembered=None)
        for known in set(producer_ids) & self._producers.keys():
            producer = self._producers[known]
            copy._producers[known] = KnownProducer(producer.epoch, deque(producer.batches))
        return copy

    def take_back(self, copy: ProducerTable) -> None:
        """What was added to the copy counts."""
        self._producers.update(copy._producers)

    def apply(self, batch: BatchInfo) -> None:
        """A batch in the chain, in chain order."""
        if batch.base_offset < self._end_offset:
            return  # a merged object reaches further than the chain was followed: it was known already
        self._end_offset = batch.last_offset + 1
        if batch.producer_id >= 0 and batch.base_sequence >= 0:
            self.add(Sequences.of(batch), batch.base_offset)

    def add(self, append: Sequences, offset: int) -> None:
        """These records are at `offset` and on. What follows directly on the batch before it, in numbers and in offsets, is
        one with it: so an append of many batches is remembered whole."""
        batches = self._producers.batches_of(append)
        last = batches[-1] if batches else None
        if (
            last is not None
            and (append.first, offset) == (advance(last.last, 1), last.offset + last.records)
            and last.records + append.records < MODULUS // 2
        ):
            batches[-1] = last._replace(last=append.last)
        else:
            batches.append(Stored(append.first, append.last, offset))
        self._producers.forget()

    def next_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and next number of a producer; None if nothing of it is known."""
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer.epoch, producer.next_sequence)

    def classify(self, append: Sequences) -> int | None:
        """None if the append is new, the offset where it is if it is stored already. Raises if it must be refused."""
        checked = self._producers.check(append)
        if checked in (SequenceCheck.UNKNOWN, SequenceCheck.NEW_EPOCH, SequenceCheck.NEXT):
            return None
        producer, who = self._producers[append.producer_id], f"producer {append.producer_id}"
        expected, numbers = producer.next_sequence, f"sequences {append.first} to {append.last}"
        if checked is SequenceCheck.REPLACED:
            raise Fenced(
                f"{who}: epoch {append.epoch} was replaced by epoch {producer.epoch}; this append was not stored"
            )
        if checked is SequenceCheck.AHEAD:
            raise GapError(
                f"{who}: sequence {append.first} came where {expected} is next; nothing was appended: send what is missing "
                "first"
            )
        if checked is SequenceCheck.ACROSS:
            raise InvalidRecord(
                f"{who}: of {numbers} those before {expected} are stored and the others are not; nothing was appended: send "
                "an append again as it was"
            )
        for batch in producer.batches:
            into = distance(batch.first, append.first)
            if into + append.records <= batch.records:
                return batch.offset + into
            if into < batch.records:
                raise InvalidRecord(
                    f"{who}: {numbers} came before, in several appends or in another order; nothing was appended: send an "
                    "append again as it was"
                )
        raise InvalidRecord(
            f"{who}: {numbers} were stored so long ago that their offset is not remembered (the next is {expected}); "
            "nothing was appended"
        )


def sequences_of(batches: Iterable[BatchInfo]) -> Sequences | None:
    """What the batches of one append say together; None if they come from no idempotent producer."""
    whole, *others = [Sequences.of(info) if info.producer_id >= 0 else None for info in batches]
    for append in others:
        if whole is None or append is None:
            follows = whole is append
        else:
            follows = append[:3] == (whole.producer_id, whole.epoch, whole.next)
            whole = whole._replace(last=append.last)
        if not follows:
            raise InvalidRecord(
                "the batches of one append come from different producers, or their sequences do not follow each other: "
                "append them apart"
            )
    return whole


def recent_appends(chain: Chain, reader: SegmentReader, next_seq: int | None = None) -> ProducerTable:
    """What the newest segments say, of those before `next_seq`, or of all: asks the store."""
    table, rows = ProducerTable(), chain.load().segments.all()
    if next_seq is not None:
        rows = [ref for ref in rows if ref.seq < next_seq]
    for batch in _batches_of(reader, rows[-LOOK_BACK_SEGMENTS:]):
        table.apply(batch)
    return table


def _batches_of(reader: SegmentReader, refs: Iterable[SegmentRef]) -> list[BatchInfo]:
    """The headers of all batches in these segments, in order. Reads their data: several at once, and checked."""

    def of(ref: SegmentRef) -> list[BatchInfo]:
        return [info for block in reader.blocks(ref) for info in split(block.data)]

    return [info for infos in fan_out(partial(of, ref) for ref in refs) for info in infos]


class StoredAppends:
    """One thread at a time. Only `deduplicate` is called with the partition's lock held: the others may read from the
    store."""

    def __init__(self, chain: Chain, reader: SegmentReader) -> None:
        self._chain = chain
        self._reader = reader
        self._table: ProducerTable | None = None

    def cover(self, next_seq: int) -> None:
        """Know what is before `next_seq`. The first time the newest segments are read for it."""
        if self._table is None:
            self._table = recent_appends(self._chain, self._reader, next_seq)

    def saw(self, link: Link) -> None:
        """Another's segment is the next one in the chain."""
        header, summary = link.header, link.summary
        if self._table is None or header.end_offset == header.base_offset:
            return
        ref = SegmentRef(
            self._chain.paths.segment(header.seq),
            header.seq,
            header.base_offset,
            header.end_offset,
            link.size,
            summary.min_timestamp_ms,
            summary.max_timestamp_ms,
        )
        try:
            batches = _batches_of(self._reader, [ref])
        except BaseException:
            self._table = None  # a table with a hole would let a duplicate pass: it is rebuilt
            raise
        for batch in batches:
            self._table.apply(batch)

    def committed(self, batches: memoryview) -> None:
        """Ours is the next one in the chain."""
        if self._table is not None:
            for batch in split(batches):
                self._table.apply(batch)

    def admitted(self, entries: Iterable[Entry], others: Iterable[Pending]) -> list[Pending]:
        """Those of the others that may follow `entries` in one segment: every number in them is the next of its producer.
        One that is stored already, or cannot follow, is settled by its owner, who sees the same."""
        ours = [entry.sequences for entry in entries if entry.sequences is not None]
        others = list(others)
        ahead = self._table_of([*ours, *(append for other in others for append in other.numbered)])
        for number, append in enumerate(ours):
            ahead.add(append, _QUEUED + number * _APART)
        kept = []
        for other in others:
            tried = ahead.of(append.producer_id for append in other.numbered)
            if all(found is None for found in _judge(tried, other.numbered)):
                ahead.take_back(tried)
                kept.append(other)
        return kept

    def misses_some(self, entries: Sequence[Entry]) -> bool:
        """Whether a number is missing before one of them, as far as we have followed the chain: others may have stored it
        since."""
        return any(isinstance(found, GapError) for found in self._judged(entries))

    def deduplicate(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[tuple[Entry, Found]]]:
        """Those that are to be committed, and the others with what became of them. One whose waiters have joined an earlier
        try, which is still queued, has nobody to tell. A flush, which has joined it for all that came before, waits on
        for what is kept of that."""
        kept: list[Entry] = []
        settled: list[tuple[Entry, Found]] = []
        for entry, found in zip(entries, self._judged(entries), strict=True):
            if found is None:
                kept.append(entry)
                continue
            kept += entry.part_with_flushes()
            if isinstance(found, int) and found >= _QUEUED:
                number, into = divmod(found - _QUEUED, _APART)
                entries[number].joined += [one._replace(first=one.first + into) for one in entry.joined]
                entry.joined = []
            settled.append((entry, found))
        if not any(entry.count for entry in kept):
            settled += [(flush, 0) for flush in kept]
            kept = []
        return kept, settled

    def _judged(self, entries: Sequence[Entry]) -> Iterator[Found]:
        appends = [entry.sequences for entry in entries]
        return _judge(self._table_of(one for one in appends if one is not None), appends)

    def _table_of(self, appends: Iterable[Sequences]) -> ProducerTable:
        assert self._table is not None, "covered before"
        return self._table.of(append.producer_id for append in appends)


def _judge(ahead: ProducerTable, appends: Iterable[Sequences | None]) -> Iterator[Found]:
    """Each by the table, and by those before it, which are added to it if they are new."""
    for number, append in enumerate(appends):
        found: Found = None
        if append is not None:
            try:
                found = ahead.classify(append)
            except LogStoreError as error:
                found = error
            if found is None:
                ahead.add(append, _QUEUED + number * _APART)
        yield found
