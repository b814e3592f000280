"""Sink: one partition as the end of a source, and what it has of it.

Invariants:

* Positions are taken in rising order and each at most once. What is at or below the upper is a replay:
  skipped.
* The upper is either the end of a transaction or inside the one that is open. After a restart it may be
  inside one that the log holds a part of (it was larger than memory); the replay goes on behind it, and
  only if it produces the very position that is stored. So must every replay that begins at or below the
  upper, before it goes past it: else what was skipped is another history. Anything else is a
  `StraddlingTransaction`: the log and the replay do not belong together, and no guess is safe.
* Only a transaction that is too large to wait for is sent in parts, and then its newest record is held back
  until the next one or the commit. So the last record of a transaction always says that it is the last, and a
  part that is stored never looks whole.

The source's thread alone takes, ends and cuts; what storage reports goes to `alignment`, under the
collector's lock.
"""

from __future__ import annotations

from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import LogStoreError, StraddlingTransaction, UnsupportedStore
from logstore.format.batches.record import Record
from logstore.ingest.alignment import Alignment
from logstore.ingest.findings import Lease
from logstore.ingest.journal import UNMARKED, Mark
from logstore.ingest.position import END_HEADER, Position, Upper, read_upper

RECORD_OVERHEAD = 200
"""What a buffered record takes besides its key and value: its headers and the objects around them."""


class Sink:
    """A partition's side of a collector; see the module's docstring."""

    def __init__(self, name: tuple[str, int], log: PartitionLog, source: str, mark: Mark = UNMARKED) -> None:
        self.name = name
        self.log = log
        self.lease = Lease(name, 0)
        self.failure: LogStoreError | None = None
        self.alignment: Alignment[Position, int] = Alignment()
        self.stored = mark
        """As of some offset, the newest position that the object store has."""
        self.marked = mark
        """The same, as the journal has it."""
        self.skipped = 0
        self.pending_bytes = 0
        self._source = source
        self._pending: list[Record] = []
        self._whole = 0
        self._whole_bytes = 0
        self._sent: Upper | None = None
        # The upper in parts, because it moves with every record. Before everything: (-1, -1), which is whole.
        self._transaction = self._ordinal = -1
        self._ended = True
        self._met = False  # did this incarnation take, or this replay repeat, the record at the upper?
        self._replays = False  # did this replay begin at or below the upper?
        self._boundary: int | None = None

    def is_alive(self) -> bool:
        return self.failure is None

    @property
    def upper(self) -> Upper | None:
        """The newest position taken, sent or not."""
        if self._transaction < 0:
            return None
        return Upper(Position(self._transaction, self._ordinal), self._ended)

    @property
    def sent(self) -> Upper | None:
        """The newest position handed to the log."""
        return self._sent

    @property
    def open_bytes(self) -> int:
        """How much of the open transaction is buffered."""
        return self.pending_bytes - self._whole_bytes

    def learn(self) -> None:
        """Own the partition and read from its log how far it is. What was taken and not sent is forgotten.

        Fences an older writer first: one that is still at work could store more behind our back.
        """
        self.log._internal.open_writer(ack="durable", alone=True)
        self.log.flush()
        upper = find_upper(self.log, self._source)
        if upper is None:
            upper = self._trimmed()
        self.stored = Mark(self.log.durable_high_watermark, upper)
        self.rewind(upper)

    def _trimmed(self) -> Upper | None:
        """What is left of the log has nothing of the source: then what was noted of it counts, if that is all there was."""
        low = self.log.low_watermark
        if low > self.stored.offset:
            raise UnsupportedStore(
                f"{self.name}: records up to offset {low} were deleted, and what source {self._source!r} stored from "
                f"{self.stored.offset} on was not noted before: a replay could not be told from something new. Start over "
                f"with a snapshot: drop the slot, or take another slot or name"
            )
        return self.stored.upper

    def rewind(self, upper: Upper | None) -> None:
        """Get ready for a replay by a source that goes back; `upper` is what the log has, or will have."""
        self._sent = upper
        (self._transaction, self._ordinal), self._ended = upper or (Position(-1, -1), True)
        self._met = self._replays = False
        self._pending.clear()
        self.pending_bytes = self._whole = self._whole_bytes = 0

    def take(self, transaction: int, ordinal: int, record: Record, starts_over: bool = False) -> int:
        """Buffer a record; returns its size, or 0 if the log has it already.

        `starts_over`: its transaction replaces what came before, also what an unfinished one left here.
        """
        if transaction < self._transaction or (transaction == self._transaction and ordinal <= self._ordinal):
            self._replays = True
            self._met = self._met or (transaction, ordinal) == (self._transaction, self._ordinal)
            self.skipped += 1
            return 0
        if transaction == self._transaction:
            if self._ended:
                raise self._straddles(transaction, "the stored part says that it is whole")
            if not self._met:
                raise self._straddles(transaction, "the replay has nothing at the stored position")
        elif not self._ended and not starts_over:
            raise self._straddles(transaction, f"the rest of {self._transaction} was never replayed")
        elif self._replays and not self._met and not starts_over:
            raise self._straddles(transaction, "the replay passed the stored position and had nothing there")
        self._transaction, self._ordinal, self._ended, self._met = transaction, ordinal, False, True
        self._pending.append(record)
        size = record_bytes(record)
        self.pending_bytes += size
        return size

    def end(self, transaction: int) -> None:
        """The transaction is over: its last record here says so."""
        if self._ended or self._transaction > transaction:
            return
        if not self._pending:
            raise self._straddles(transaction, "the replay ends where the stored part goes on")
        last = self._pending[-1]
        self._pending[-1] = last._replace(headers=(*last.headers, END_HEADER))
        self._ended = True
        self._whole, self._whole_bytes = len(self._pending), self.pending_bytes

    def owe(self, boundary: int) -> int | None:
        """A transaction that touched this sink ended at `boundary`. Returns it if all of it is stored
        already.

        A boundary that comes again is a replay, and is waited for once. It must bring what it brought the first time, or
        it would be waited for without end.
        """
        if self._boundary is not None and boundary <= self._boundary:
            awaited = self.alignment.awaited(boundary)
            if awaited is not None and Position(self._transaction, self._ordinal) < awaited:
                raise self._straddles(
                    awaited.transaction,
                    f"it went on to record {awaited.ordinal} before, and the replay does not",
                )
            return None
        self._boundary = boundary
        if self._transaction >= 0:
            self.alignment.wrote(Position(self._transaction, self._ordinal))
        return self.alignment.commit(boundary)

    def cut(self, *, parts: bool = False) -> tuple[list[Record], Upper | None, int]:
        """What may be sent now, its upper, and its size: whole transactions.

        With `parts` the beginning of the open one too, all but its newest record.
        """
        pending, whole = self._pending, self._whole
        count, size = whole, self._whole_bytes
        if parts and len(pending) - whole > 1:
            count, size = len(pending) - 1, self.pending_bytes - record_bytes(pending[-1])
        if not count:
            return [], self._sent, 0
        records, self._pending = pending[:count], pending[count:]
        self.pending_bytes -= size
        self._whole = self._whole_bytes = 0
        self._sent = read_upper(records[-1].headers, self._source)
        return records, self._sent, size

    def _straddles(self, transaction: int, why: str) -> StraddlingTransaction:
        return StraddlingTransaction(
            f"transaction {transaction} of source {self._source!r} does not fit sink {self.name}, which is at "
            f"{self._transaction}/{self._ordinal}: {why}. Replay from a boundary at or below the last one "
            f"reported, with the same routing"
        )


def record_bytes(record: Record) -> int:
    """What a buffered record takes, about."""
    return RECORD_OVERHEAD + len(record[0] or b"") + len(record[1] or b"")


def find_upper(log: PartitionLog, source: str) -> Upper | None:
    """The newest position of `source` in a log, looked for from its end: nearly always the last record."""
    stop, low, span = log.durable_high_watermark, log.low_watermark, 1
    while stop > low:
        start = max(low, stop - span)
        newest = None
        for record in log.records(start, stop, visibility="durable"):
            newest = read_upper(record.headers, source) or newest
        if newest is not None:
            return newest
        stop, span = start, span * 8
    return None
