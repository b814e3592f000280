"""Do replicated writers agree? Each segment carries a digest of the records of its source range; this compares.

What a peer has stored and we hold too is hashed before it is dropped. The hash runs along the records in source order, so it
does not matter how each side cut the source into ranges: whenever our input covers the whole of a peer's segment, in one go
or piece by piece, the two digests must be equal. Of a segment whose beginning we did not see nothing can be said.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from logstore.engine.intake import Run
from logstore.engine.source_ranges import SourceRange
from logstore.errors import DivergentWriters
from logstore.format.record import Record
from logstore.format.segment import SegmentHeader

DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
"""Of a segment whose records are not a function of the source alone: there is nothing to compare."""
_REMEMBERED = 4096
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


class Audit:
    """One thread at a time."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._theirs: deque[_Theirs] = deque(maxlen=_REMEMBERED)
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._at: int | None = (
            None  # up to where `_hash` has run along the first of `_theirs`; None: it has not begun
        )

    def peer(self, header: SegmentHeader) -> None:
        """A peer's segment stands."""
        if header.source_upper > header.source_lower and header.digest != NO_DIGEST:
            self._theirs.append(
                _Theirs(
                    header.source_lower, header.source_upper, header.digest, header.seq, header.base_offset
                )
            )

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
        self._theirs.popleft()
        self._at = None

    def _compare(self, theirs: _Theirs) -> None:
        if self._hash.digest() != theirs.digest:
            raise DivergentWriters(
                f"{self._where}: for source offsets {theirs.lower} to {theirs.upper} a peer stored other records (segment "
                f"{theirs.seq}, offset {theirs.offset} on) than we hold: the replicas do not read the same input. "
                "This one has stopped; find out which is right before any goes on"
            )
