"""Do replicated writers agree? Each segment carries a digest of the records of its source range; this compares.

What is stored and we hold too is hashed before it is dropped, whoever stored it: a peer, a peer before we came, or we
ourselves, and the source says something else now. The hash runs along the records in source order, so it
does not matter how each side cut the source into ranges: whenever our input covers the whole of a stored segment, in one go
or piece by piece, the two digests must be equal. Of a segment whose beginning we did not see nothing can be said.

Segments are noted as they are stored. For input that lies below all that is noted, those before are looked up in the
store; not more than a few, so that a replay of a long source does not read the whole chain.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from logstore.engine.replicated.source_ranges import SourceRange
from logstore.engine.write.admission import Run
from logstore.errors import CorruptData, DivergentWriters
from logstore.format.batches.record import Record
from logstore.format.stored.segment import SegmentHeader, WriterMode

DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
"""Of a segment whose records are not a function of the source alone: there is nothing to compare."""
_REMEMBERED = 4096
LOOK_BACK = 64
"""How many segments before the noted ones are looked up for one range."""
_RECORD = struct.Struct("<iiqi")
_HEADER = struct.Struct("<ii")


def digest(runs: Iterable[Run]) -> bytes:
    """What a segment's header says about its records: of keys, values, headers and the timestamps that the source gave."""
    running = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for run in runs:
        running.update(canonical(run.records))
    return running.digest()


def canonical(records: Iterable[Record]) -> bytes:
    parts: list[bytes] = []
    for value, key, headers, stamp, _ in records:
        parts.append(
            _RECORD.pack(
                -1 if key is None else len(key),
                -1 if value is None else len(value),
                -1 if stamp is None else stamp,
                len(headers),
            )
        )
        if key:
            parts.append(key)
        if value:
            parts.append(value)
        for name, content in headers:
            encoded = name.encode()
            parts += (
                _HEADER.pack(len(encoded), -1 if content is None else len(content)),
                encoded,
                content or b"",
            )
    return b"".join(parts)


class _Theirs(NamedTuple):
    lower: int
    upper: int
    digest: bytes
    seq: int
    offset: int


def _theirs(header: SegmentHeader) -> _Theirs:
    return _Theirs(header.source_lower, header.source_upper, header.digest, header.seq, header.base_offset)


def _can_be_compared(header: SegmentHeader) -> bool:
    return header.source_upper > header.source_lower and header.digest != NO_DIGEST


class DivergenceCheck:
    """One thread at a time. `next_seq` and `source_upper` say where the chain ended when nothing was noted yet."""

    def __init__(self, where: str, next_seq: int, source_upper: int) -> None:
        self._where = where
        self._first_seq = next_seq  # of what is noted, and the source offset it begins with
        self._first_source = source_upper
        self._too_far = False
        self._theirs: deque[_Theirs] = deque()
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._at: int | None = (
            None  # up to where `_hash` has run along the first of `_theirs`; None: it has not begun
        )

    def stored(self, header: SegmentHeader) -> None:
        """The next segment of the chain, a peer's or ours, is committed."""
        if _can_be_compared(header):
            if len(self._theirs) == _REMEMBERED:
                self._next()
            self._theirs.append(_theirs(header))

    def look_back(self, lower: int, header_at: Callable[[int], SegmentHeader | None]) -> None:
        """Note the segments from source offset `lower` on from before the noted ones, as far as they are near."""
        left = LOOK_BACK
        while not self._too_far and lower < self._first_source and self._first_seq > 0:
            header = None
            if left and len(self._theirs) < _REMEMBERED:
                with suppress(CorruptData):  # the reader's business: this does without it
                    header = header_at(self._first_seq - 1)
            if header is None or header.mode is not WriterMode.REPLICATED:
                self._too_far = True
                return
            left -= 1
            self._first_seq, self._first_source = header.seq, header.source_lower
            if _can_be_compared(header):
                self._theirs.appendleft(_theirs(header))
                self._at = None

    def ours(self, held: SourceRange, upper: int) -> None:
        """We hold `held` and its part below `upper` is stored already. Raises `DivergentWriters` if not the same."""
        upper = min(upper, held.upper)
        at = held.lower
        if self._at != at:
            self._at = None
        while at < upper:
            while self._theirs and self._theirs[0].upper <= at:
                self._next()
            if not self._theirs or self._theirs[0].lower >= upper:
                self._at = None
                return
            theirs = self._theirs[0]
            if self._at is None:
                if at > theirs.lower:
                    at = min(theirs.upper, upper)  # begun before our input: nothing to compare it with
                    continue
                at = self._at = theirs.lower
                self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
            end = min(theirs.upper, upper)
            part = held.slice(at, end)
            if part is None:
                self._at = None
                return
            self._hash.update(canonical(part))
            at = self._at = end
            if end == theirs.upper:
                self._compare(theirs)
                self._next()

    def _next(self) -> None:
        passed = self._theirs.popleft()
        self._first_seq, self._first_source = passed.seq + 1, passed.upper
        self._at = None

    def _compare(self, theirs: _Theirs) -> None:
        if self._hash.digest() != theirs.digest:
            raise DivergentWriters(
                f"{self._where}: for source offsets {theirs.lower} to {theirs.upper} other records are stored (segment "
                f"{theirs.seq}, offset {theirs.offset} on) than we hold: the replicas do not read the same input. "
                "This one has stopped; find out which is right before any goes on"
            )
