"""Which appends of idempotent producers the chain holds already, whoever stored them.

Before each attempt of a shared writer the entries of its window are deduplicated: what is stored is acked with the
offset where it is, what cannot follow what is stored is refused, and the rest is committed. The table that says
so (`ProducerTable`) is made when the first numbered append comes, from the newest segments, and kept complete from
then on: by our own commits, and by reading the batches of everything that others commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.link import Link
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.memory.results import Receipt
from logstore.engine.shared.pending import Pending
from logstore.engine.shared.producer_table import (
    LOOK_BACK_SEGMENTS,
    ProducerTable,
    batch_headers,
    different_batching,
    follows,
    replaced_by,
)
from logstore.engine.shared.shared_buffer import Entry, SharedWindow
from logstore.errors import GapError, LogStoreError
from logstore.format.batches.sequences import Sequences, distance


@dataclass(slots=True)
class Deduplicated:
    """`kept` is to be committed. The others are settled: `acked` with their offsets, or `refused`."""

    kept: list[Entry] = field(default_factory=list)
    acked: list[tuple[Future[Receipt], Receipt]] = field(default_factory=list)
    refused: list[tuple[Future[Receipt], LogStoreError]] = field(default_factory=list)
    duplicates: int = 0
    charged: int = 0  # what the settled ones had taken of the budget

    def settle(self, entry: Entry, offset: int | None) -> None:
        """A duplicate. No offset: its waiters have joined the same append earlier in the window."""
        self.duplicates += 1
        self._take_out(entry)
        if offset is not None:
            self.acked += entry.place(offset)

    def refuse(self, entry: Entry, error: LogStoreError) -> None:
        self._take_out(entry)
        self.refused += [(joined.future, error) for joined in entry.joined]

    def _take_out(self, entry: Entry) -> None:
        """It is not committed with the others. A flush has joined it for all that came before: it waits on for what is
        kept of that, and does not share its fate."""
        self.charged += entry.charged
        flushes = entry.part_with_flushes()
        if self.kept:
            self.kept[-1].joined += flushes
        else:
            self.acked += [(flush.future, flush.receipt) for flush in flushes]


def recent_appends(chain: Chain, reader: SegmentReader, next_seq: int | None = None) -> ProducerTable:
    """What the newest segments say, of those before `next_seq`, or of all: asks the store."""
    table, rows = ProducerTable(), chain.load().segments.all()
    if next_seq is not None:
        rows = [ref for ref in rows if ref.seq < next_seq]
    for batch in batch_headers(reader, rows[-LOOK_BACK_SEGMENTS:]):
        table.apply(batch)
    return table


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
            batches = batch_headers(self._reader, [ref])
        except BaseException:
            self._table = None  # a table with a hole would let a duplicate pass: it is rebuilt
            raise
        for batch in batches:
            self._table.apply(batch)

    def committed(self, window: SharedWindow) -> None:
        """Ours is the next one in the chain."""
        if self._table is None or window.header is None:
            return
        for entry, base in window.places(window.header.base_offset):
            if entry.sequences is not None:
                self._table.add(entry.sequences, base)
        for other, base in window.others():
            for info in other.infos:
                self._table.apply(info._replace(base_offset=base + info.base_offset))

    def admitted(self, entries: Iterable[Entry], others: Iterable[Pending]) -> list[Pending]:
        """Those of the others that may follow `entries` in one segment: every number in them is the next of its producer.
        One that is stored already, or cannot follow, is settled by its owner, who sees the same."""
        assert self._table is not None, "covered before"
        newest = {entry.sequences.producer_id: entry.sequences for entry in entries if entry.sequences}
        kept = []
        for other in others:
            numbered = [Sequences.of(info) for info in other.infos if info.producer_id >= 0]
            ahead = dict(newest)
            if all(self._is_new(append, ahead) for append in numbered):
                newest = ahead
                kept.append(other)
        return kept

    def _is_new(self, append: Sequences, newest: dict[int, Sequences]) -> bool:
        assert self._table is not None, "covered before"
        last = newest.get(append.producer_id)
        try:
            if last is None or last.epoch < append.epoch:
                is_new = self._table.classify(append) is None
            else:
                is_new = last.epoch == append.epoch and follows(append, last.next)
        except LogStoreError:
            return False
        newest[append.producer_id] = append
        return is_new

    def misses_some(self, entries: Iterable[Entry]) -> bool:
        """Whether a number is missing before one of them, as far as we have followed the chain: others may have stored it
        since."""
        assert self._table is not None, "covered before"
        newest = dict[int, Sequences]()
        for entry in entries:
            append = entry.sequences
            if append is None:
                continue
            last = newest.get(append.producer_id)
            try:
                if last is None or last.epoch != append.epoch:
                    is_new = self._table.classify(append) is None
                else:
                    is_new = follows(append, last.next)
            except GapError:
                return True
            except LogStoreError:
                continue  # that is not changed by what others store
            if is_new:
                newest[append.producer_id] = append
        return False

    def deduplicate(self, entries: Iterable[Entry]) -> Deduplicated:
        """Judge each by the chain, and by what is before it."""
        assert self._table is not None, "covered before"
        deduplicated, queued = Deduplicated(), dict[int, list[Entry]]()
        for entry in entries:
            try:
                offset = _classify(self._table, entry, queued)
            except LogStoreError as error:
                deduplicated.refuse(entry, error)
                continue
            if offset is None and entry.joined:
                deduplicated.kept.append(entry)
            else:
                deduplicated.settle(entry, offset)
        return deduplicated


def _classify(table: ProducerTable, entry: Entry, queued: dict[int, list[Entry]]) -> int | None:
    """The offset where it is, None if it is new, or if its waiters have joined an earlier one of the same append.
    `queued` holds each producer's appends that are new and before it."""
    append = entry.sequences
    if append is None:
        return None
    before = queued.setdefault(append.producer_id, [])
    last = before[-1].sequences if before else None
    if last is not None and last.epoch > append.epoch:
        raise replaced_by(last.epoch, append)
    if last is None or last.epoch != append.epoch:
        offset = table.classify(append)
        if offset is None:
            before.append(entry)
        return offset
    if follows(append, last.next):
        before.append(entry)
        return None
    for first_try in before:
        queued_append = first_try.sequences
        assert queued_append is not None, "only numbered appends are put there"
        into = distance(queued_append.first, append.first)
        if into + append.records <= queued_append.records:
            first_try.joined += [joined._replace(first=joined.first + into) for joined in entry.joined]
            entry.joined = []
            return None
    offset = table.classify(append)
    if offset is None:
        # New to the chain, but some of its numbers, or later ones, are queued before it.
        raise different_batching(append)
    return offset
