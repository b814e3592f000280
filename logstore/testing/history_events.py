"""What a log was seen to do, written down: the events that `check_history` judges, and a recorder for them.

A call is two events, its begin and its end, so calls of many threads may overlap. A *process* is one life of one opened
store: after a crash, or after it is closed and opened again, the next life has another name. A record is known by its value,
so values must be unique in a history (but for those of `idempotent` appends, which may be sent again), and none may be None.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from logstore.config import Ack, Visibility
from logstore.format.batches.record import Record

Placed = tuple[int, bytes]
"""An offset and the value of the record there."""


@dataclass(frozen=True, slots=True)
class AppendBegan:
    """`idempotent`: whoever sends these records sends them as often as needed, and so do others: they are stored once, and
    each ack says where (a numbered producer's retry, a replicated writer's range)."""

    op: int
    process: str
    values: tuple[bytes, ...]
    ack: Ack
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    op: int
    offset: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """`certain`: nothing was taken (`BufferFull`, `InvalidRecord`); else the outcome is unknown."""

    op: int
    certain: bool


@dataclass(frozen=True, slots=True)
class ReadBegan:
    op: int
    process: str
    offset: int
    visibility: Visibility


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """The read covered the offsets from the one asked for up to, not including, `next_offset`."""

    op: int
    records: tuple[Placed, ...]
    next_offset: int
    low: int
    durable: int
    buffered: int


@dataclass(frozen=True, slots=True)
class Opened:
    """From here on the process looks at the store: it must see everything that is durable by now."""

    process: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process, or its writer, is gone with all that was only in its memory."""

    process: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """A writer took the partition over with the disk (`wal_dir`) of `after`, the last writer before it; None: without it.

    `late`: this was written down some time after its fence was committed, and others may have gone on since. So what it
    must have seen is what was durable when it was `Opened`.
    """

    process: str
    after: str | None
    late: bool = False


Event = AppendBegan | Acked | AppendFailed | ReadBegan | ReadEnded | Opened | Crashed | Recovered


class _ReadResult(Protocol):
    @property
    def next_offset(self) -> int: ...
    @property
    def low_watermark(self) -> int: ...
    @property
    def durable_high_watermark(self) -> int: ...
    @property
    def buffered_high_watermark(self) -> int: ...
    def records(self) -> Iterator[Record]: ...


class History:
    """Writes events down, from any thread. The lock guards the list: its order is the order in which things happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._ops = 0

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def _next_op(self) -> int:
        with self._lock:
            self._ops += 1
            return self._ops

    def begin_append(
        self, process: str, values: Sequence[bytes], ack: Ack, *, idempotent: bool = False
    ) -> AppendCall:
        """An append begins; say how it ended on what this returns. One that never ends counts as unknown."""
        call = AppendCall(self, self._next_op())
        self.add(AppendBegan(call.op, process, tuple(values), ack, idempotent))
        return call

    @contextmanager
    def append(
        self, process: str, values: Sequence[bytes], ack: Ack, *, idempotent: bool = False
    ) -> Iterator[AppendCall]:
        """Around an append that ends here: unless it is said otherwise, its outcome is unknown."""
        call = self.begin_append(process, values, ack, idempotent=idempotent)
        try:
            yield call
        finally:
            if not call.ended:
                call.failed(certain=False)

    @contextmanager
    def read(self, process: str, offset: int, visibility: Visibility = "buffered") -> Iterator[ReadCall]:
        """Around a read. One that raised is not looked at."""
        call = ReadCall(self, self._next_op())
        self.add(ReadBegan(call.op, process, offset, visibility))
        yield call

    def opened(self, process: str) -> None:
        self.add(Opened(process))

    def crashed(self, process: str) -> None:
        self.add(Crashed(process))

    def recovered(self, process: str, after: str | None) -> None:
        self.add(Recovered(process, after))


@dataclass(slots=True)
class AppendCall:
    history: History
    op: int
    ended: bool = False

    def acked(self, offset: int) -> None:
        self.ended = True
        self.history.add(Acked(self.op, offset))

    def failed(self, *, certain: bool) -> None:
        self.ended = True
        self.history.add(AppendFailed(self.op, certain))


@dataclass(slots=True)
class ReadCall:
    history: History
    op: int

    def returned(self, result: _ReadResult) -> None:
        records = tuple(
            (record.offset, record.value)
            for record in result.records()
            if record.offset is not None and record.value is not None
        )
        self.history.add(
            ReadEnded(
                self.op,
                records,
                result.next_offset,
                result.low_watermark,
                result.durable_high_watermark,
                result.buffered_high_watermark,
            )
        )
