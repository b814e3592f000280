"""One partition, as users see it: append, read back at once, follow.

Reading never fences and never needs a writer. The first append opens the writer, which fences an older one off. A writer
that has stopped stays stopped: `reopen` gives a fresh log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import Literal

from logstore.config import Ack, Visibility, check_visibility
from logstore.engine.chain.segment_table import LostRange, SegmentRef
from logstore.engine.memory.partition_state import Marks
from logstore.engine.memory.results import ReadResult, Receipt, acked
from logstore.engine.partition.internal import Appendable, Partition
from logstore.engine.partition.readable_partition import READ_BYTES, check_start
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.errors import Closed, UnknownTopic
from logstore.format.batches.record import Record

_FOLLOW_S = 3600.0


class PartitionLog:
    """Safe for threads. Get it from `Topic.partition(i)`; a store hands out one for each partition."""

    __slots__ = ("__weakref__", "_internal", "_reopening", "_replace")

    def __init__(
        self, partition: Partition, replace: Callable[[PartitionLog, str | None], PartitionLog]
    ) -> None:
        self._internal = partition
        self._replace = replace
        self._reopening = threading.Lock()  # held during I/O: of several who reopen it at once, one does

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._internal.topic

    @property
    def partition(self) -> int:
        """Its number in the topic, from 0."""
        return self._internal.partition

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic!r}, {self.partition})"

    # Appending

    def append(self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None) -> Receipt:
        """Append one record or several, all or nothing, at contiguous offsets; return when they are acked.

        Raises `InvalidRecord` or `RecordTooLarge` (nothing was taken), `BufferFull` (nothing was taken, try again),
        `AppendTimeout` (taken; the outcome is not known yet), `Fenced`, `Closed`, `ReadOnly`, `StoreUnavailable`.
        """
        if type(records) is bytes:
            return self._internal.append_one(records, None, (), None, ack, timeout)
        if type(records) is Record:
            value, key, headers, timestamp_ms, _ = records
            return self._internal.append_one(value, key, headers, timestamp_ms, ack, timeout)
        return self._internal.finish_append(self._internal.begin_append(records, ack=ack, timeout=timeout))

    def submit(
        self, records: Appendable, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Future[Receipt]:
        """The same, without waiting for the ack: the records have their offsets when this returns.

        Cancelling the future ends the wait and nothing else: the records stay queued, and are stored.

        It waits only for room in the buffer, for a reservation if the ack is below durable, and, for the first append, for
        the writer to be opened; up to `timeout`, then it raises and nothing was taken.

        A callback of the future runs on the thread that uploads. It may submit, and must not wait for another append to
        this partition: nobody would upload that meanwhile.
        """
        (receipt, future), _ = self._internal.begin_append(records, ack=ack, timeout=timeout)
        return future or acked(receipt)

    def append_batches(
        self, raw: bytes | bytearray | memoryview, *, ack: Ack | None = None, timeout: float | None = None
    ) -> Receipt:
        """Append Kafka v2 record batches as they are, all or nothing. Only their offsets and leader epochs are set."""
        return self._internal.finish_append(
            self._internal.begin_append_batches(raw, ack=ack, timeout=timeout)
        )

    def flush(self, timeout: float | None = None) -> int:
        """Make everything appended so far durable. Returns the durable high watermark."""
        deadline = self._internal.deadline(timeout)
        self._internal.finish_flush(self._internal.begin_flush(), deadline)
        return self.durable_high_watermark

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int = READ_BYTES,
        *,
        visibility: Visibility = "buffered",
        wait: float = 0.0,
    ) -> ReadResult:
        """Whole batches from `offset` on: at least one, up to `max_bytes`; empty at the high watermark.

        `wait`: at the high watermark, wait up to so many seconds for something to come. Raises `OffsetOutOfRange`
        below the low or above the high watermark, `CorruptData` with the object's name if stored bytes are damaged,
        `UnknownTopic` if the topic was deleted.
        """
        return self._internal.read(offset, max_bytes, visibility=visibility, wait=wait)

    def records(
        self, start: int | None = None, stop: int | None = None, *, visibility: Visibility = "buffered"
    ) -> Iterator[Record]:
        """The records from `start` (the low watermark) up to, not including, `stop` (the high watermark at the time
        of the call).

        Raises `OffsetOutOfRange`, at once, if `start` lies below the low or above the high watermark.
        """
        # Chained, so that between two records of a batch no line of Python runs.
        return chain.from_iterable(self._batches(*self._internal.bounds(start, stop, visibility), visibility))

    def _batches(self, position: int, stop: int, visibility: Visibility) -> Iterator[list[Record]]:
        while position < stop:
            result = self._internal.read(position, visibility=visibility)
            yield from result.batches(stop)
            if result.next_offset <= position:
                return
            position = result.next_offset

    def tail(
        self, start: int | Literal["end"] | None = None, *, visibility: Visibility = "buffered"
    ) -> Iterator[Record]:
        """The records from `start` (the low watermark) on, for ever: at the end it waits, woken by the next append.

        `start="end"`: what comes after this call. It asks the store where the end is, unless this process writes the
        partition.

        Ends when the store is closed, the topic deleted, or the partition reopened. Where another process writes, a store
        that cannot be asked ends it with that error: begin again after the last record.
        """
        check_visibility(visibility)
        check_start(start)
        if start == "end":
            if self._internal.closed:
                return iter(())
            start = self._internal.end_now(visibility)
        return self._tail(start, visibility)

    def _tail(self, position: int | None, visibility: Visibility) -> Iterator[Record]:
        if position is None:
            position = self.low_watermark
        while True:
            try:
                if self._internal.closed:
                    return
                result = self._internal.read(position, visibility=visibility, wait=_FOLLOW_S)
            except (Closed, UnknownTopic):
                if self._internal.closed:  # since the look above
                    return
                raise
            yield from result.records()
            position = result.next_offset

    def refresh(self) -> None:
        """Ask the store what others have committed: one or two requests if there is nothing new, none if we are the
        writer."""
        self._internal.refresh()

    def offset_for_timestamp(self, ms: int) -> int | None:
        """The offset of the first record with this timestamp or a later one; None if there is none."""
        return self._internal.offset_for_timestamp(ms)

    # The watermarks

    def marks(self) -> Marks:
        """The three watermarks in one consistent look, as last seen: read one by one, an append may come between them.
        From memory, unless nobody has looked at the partition yet; `refresh()` asks the store."""
        return self._internal.state.marks()

    @property
    def low_watermark(self) -> int:
        """The first offset there is."""
        return self._internal.state.low

    @property
    def durable_high_watermark(self) -> int:
        """One past the last offset in the object store, as last seen."""
        return self._internal.end_state.durable

    @property
    def buffered_high_watermark(self) -> int:
        """One past the last acked offset, as last seen."""
        return self._internal.end_state.buffered

    def lost_ranges(self) -> list[LostRange]:
        """Offsets that hold no record and never will: a writer had reserved them to ack below `durable`, and died.

        That is at most what was lost: a crash takes along which of them were given to records.
        """
        return self._internal.state.lost_ranges()

    def unconfirmed(self) -> LostRange | None:
        """Offsets past the durable high watermark that somebody may have been shown and no crash has to leave, as
        last seen; None if there are none.

        While an exclusive writer is open here: what it has acked and not yet stored. Elsewhere: what the last writer has
        reserved, at most so much is acked there. If that writer has died, the next one to open makes it a lost range.
        """
        return self._internal.state.unconfirmed()

    def segments(self) -> list[SegmentRef]:
        """The committed objects that hold the records, as last seen."""
        return self._internal.state.refs()

    # Who writes

    def open_writer(self, *, timeout: float | None = None, ack: Ack | None = None) -> None:
        """Open the writer now instead of at the first append, within `timeout` seconds (`append_timeout`). An exclusive one
        takes the partition over and fences any other writer off; a shared one joins those there are.

        `ack` is what most appends will ask for (the store's `ack`): below `durable` the writer reserves offsets at once, and
        the first append does not wait for that. Raises `Closed`, `ReadOnly`, `OutcomeUnknown`, `StoreUnavailable`.
        """
        self._internal.open_writer(timeout=timeout, ack=ack)

    def replicated(self, writer_id: str, *, standby: bool = False) -> ReplicatedWriter:
        """A writer for deterministic input that several processes feed: see `ReplicatedWriter`.

        It writes nothing by being opened. `standby`: it holds what it is fed and stores nothing until `promote()`.
        """
        return self._internal.replicated(writer_id, standby=standby)

    def reopen(self, timeout: float | None = None) -> PartitionLog:
        """A fresh log of the same partition, which starts from what the store says: after `Fenced` or `OutcomeUnknown`, the
        way to take the partition back. The first append to it does that, and fences off whoever took it.

        This one is over: it still reads what it knows, its tails end, its appends are refused as before, and from now on
        `Topic.partition` gives the fresh one. A writer that has not stopped is closed first; if what it holds cannot be
        made durable in time, `AppendTimeout` or what else is wrong is raised and nothing has changed. Acked records that a
        writer took along when it stopped are still named by `Store.close`. Raises `Closed` if the store is closed,
        `UnknownTopic` if the topic was deleted here. A second call gives the log there is now.

        So it is also the way to give a partition up that another process is to write: nobody has to be stopped, and in a
        lane no other partition's upload meets a seal.
        """
        deadline = self._internal.deadline(timeout)
        with self._reopening:
            problem = None if self._internal.replaced else self._internal.end(deadline)
            return self._replace(self, problem)

    def delete_before(self, offset: int) -> int:
        """Delete the records before `offset`, as Kafka's DeleteRecords does. Returns the new low watermark: `offset`,
        or a later one that is there already.

        It fences nobody and needs no writer. What of them is only buffered here is flushed first. When it returns, nobody
        here sees them any more and no crash brings them back; a process that has the partition open elsewhere learns of it
        with its next checkpoint, or when it opens it again. The objects go after the grace period, and the newest of all not
        before there is another. Raises `OffsetOutOfRange` below 0 or above the high watermark, `ReadOnly`, `Closed`,
        `CorruptData` if an object is missing or damaged.
        """
        return self._internal.delete_before(offset)
