"""Alignment: what storage has stored, in terms of transaction boundaries.

Storage knows nothing of transactions: it stores up to some position whenever it likes, before a commit,
after it, or once for many. A sink therefore keeps `(last written, boundary)` pairs, and a boundary is
reported as soon as the last thing written at or before it is stored. The pairs are looked at *twice*: when
storage reports, and at the commit itself, against what is stored already. Without the second look a sink
that was flushed before its commit waits for a flush that never comes.

Invariants: positions and boundaries only rise; the pairs hold exactly the boundaries that wait; a boundary
with nothing unstored before it never becomes a pair. Two boundaries with nothing written between them are
one pair, so a quiet sink's memory does not grow.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from logstore.ingest.offsets import O, Sortable

P = TypeVar("P", bound=Sortable)


class Alignment(Generic[P, O]):
    """For one sink: positions `P` (what storage reports) in, boundaries `O` (what the tracker wants) out.

    >>> sink = Alignment()
    >>> sink.wrote(5); sink.stored(5)      # stored in the middle of the transaction: nothing to say yet
    >>> sink.commit(9)                     # nothing unstored: the boundary is reached here and now
    9
    """

    __slots__ = ("_pairs", "_stored", "_written", "reached")

    def __init__(self) -> None:
        self._written: P | None = None
        self._stored: P | None = None
        self._pairs: deque[tuple[P, O]] = deque()
        self.reached: O | None = None
        """The newest boundary that storage has reached."""

    @property
    def waiting(self) -> int:
        """How many boundaries wait for storage."""
        return len(self._pairs)

    def wrote(self, position: P) -> None:
        """`position` was handed to storage."""
        if self._written is None or position > self._written:
            self._written = position

    def commit(self, boundary: O) -> O | None:
        """A transaction ended at `boundary`. Returns it if everything written so far is stored."""
        written = self._written
        if written is None or (self._stored is not None and self._stored >= written):
            self.reached = boundary
            return boundary
        pairs = self._pairs
        if pairs and pairs[-1][0] == written:
            boundary = max(boundary, pairs.pop()[1])
        pairs.append((written, boundary))
        return None

    def awaited(self, boundary: O) -> P | None:
        """The position that has to be stored before `boundary` is reached; None if it was reached, or not committed."""
        if self.reached is not None and self.reached >= boundary:
            return None
        return next((written for written, waiting in self._pairs if waiting >= boundary), None)

    def stored(self, position: P) -> O | None:
        """Everything written at or before `position` is stored. Returns the newest boundary it reaches."""
        if self._stored is None or position > self._stored:
            self._stored = position
        reached = None
        pairs = self._pairs
        while pairs and pairs[0][0] <= self._stored:
            self.reached = reached = pairs.popleft()[1]
        return reached
