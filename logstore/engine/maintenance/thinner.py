"""What one pass of compaction by key knows of the log, and what it leaves of a run of segments.

First it learns: the last offset of each key in the part of the log that is new to it. Then it goes over the log from its
beginning and leaves out each record that a later one of the same key replaces, and each tombstone whose time is over.

Records without a key stay, and so does everything that belongs to a transaction: whether that one was committed is not
known here, so its records replace nothing and are not taken away, and no tombstone behind them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from logstore.engine.chain.segment_reader import Block
from logstore.engine.maintenance.offset_map import OffsetMap
from logstore.format.batches.batch import BatchInfo, split
from logstore.format.batches.thinning import Located, emptied, locate, thinned
from logstore.format.key_hash import KeyHash
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored

_ROWS = 1 << 15
_BYTES = 4 << 20


class _Found(NamedTuple):
    """A batch as it is stored: the bytes that it lies in, and the lowest and the highest timestamp of its records."""

    raw: memoryview
    info: BatchInfo
    low_ms: int
    high_ms: int


class _Piece(NamedTuple):
    """A batch that is left, or None: all its records are gone. `info` is that of the batch as it was."""

    batch: EncodedBatch | None
    info: BatchInfo
    raw: memoryview


@dataclass(slots=True)
class Thinned:
    """What is left of a run. `removed`: how many records are not."""

    batches: list[EncodedBatch] = field(default_factory=list)
    removed: int = 0
    kept: int = 0


class Thinner:
    """Of one pass. `tombstones_until`: those below that offset have had their time."""

    def __init__(self, seed: bytes, tombstones_until: int, keys_max: int) -> None:
        self._hash = KeyHash(seed)
        self._map = OffsetMap(keys_max)
        self._producers: dict[int, int] = {}
        self._tombstones_until = tombstones_until
        self.until = 0
        """What lies below was learned."""
        self.tombstones = False
        """Whether there were any in what was learned."""

    # Learning

    def learn(self, blocks: Iterable[Block], start: int, stop: int) -> bool:
        """Take in the records from `start` up to `stop`. False if there is no more room: `until` says how far it came."""
        for found in _chunks(blocks):
            wanted = [one for one in found if start <= one.info.last_offset and one.info.base_offset < stop]
            for _, info, _, _ in wanted:
                if info.producer_id >= 0:
                    self._producers[info.producer_id] = info.base_offset
            plain = [one[:2] for one in wanted if _is_plain(one.info)]
            if plain:
                self._learn(locate(plain), start, stop)
            if wanted:
                self.until = min(stop, wanted[-1].info.last_offset + 1)
            if self._map.full and self.until < stop:
                return False
        self.until = stop
        return not self._map.full

    def _learn(self, located: Located, start: int, stop: int) -> None:
        wanted = located.has_key & (located.offsets >= start) & (located.offsets < stop)
        rows: Any = slice(None) if wanted.all() else np.flatnonzero(wanted)
        found = located.found
        one, two = self._hash.of(located.joined, found.key_positions[rows], found.key_lengths[rows])
        self._map.add(one, two, located.offsets[rows])
        self.tombstones = self.tombstones or bool(located.is_tombstone[rows].any())

    @property
    def keys(self) -> int:
        return len(self._map)

    # Leaving out

    def thin(self, blocks: Iterable[Block]) -> Thinned:
        """What is left of a run of segments, of which at least one batch stays, though it be empty."""
        pieces: list[_Piece] = []
        left = Thinned()
        for found in _chunks(blocks):
            pieces += self._thin(found, left)
        left.batches = self._without_idle(pieces)
        return left

    def _thin(self, found: list[_Found], left: Thinned) -> Iterator[_Piece]:
        plain = [one[:2] for one in found if _is_plain(one.info)]
        of_transactions = (one.info.base_offset for one in found if one.info.is_transactional)
        self._tombstones_until = min(self._tombstones_until, next(of_transactions, self._tombstones_until))
        located = locate(plain) if plain else None
        keep = None if located is None else self._kept(located)
        if located is None or keep is None or keep.all():
            left.kept += sum(one.info.count for one in found)
            yield from map(_verbatim, found)
            return
        row = 0
        kept_of = np.add.reduceat(keep, located.firsts[:-1], dtype=np.int64).tolist()
        for one in found:
            raw, info, _, _ = one
            if not _is_plain(info):
                left.kept += info.count
                yield _verbatim(one)
                continue
            count = kept_of[row]
            left.kept += count
            left.removed += info.count - count
            if count == info.count:
                yield _verbatim(one)
            elif not count:
                yield _Piece(None, info, raw)
            else:
                of_batch = keep[located.firsts[row] : located.firsts[row + 1]]
                data, low_ms, high_ms = thinned(raw, located, row, of_batch)
                batch = as_stored(memoryview(data), info.base_offset, info.span, low_ms, high_ms)
                yield _Piece(batch, info, raw)
            row += 1

    def _kept(self, located: Located) -> Any:
        found, offsets = located.found, located.offsets
        one, two = self._hash.of(located.joined, found.key_positions, np.maximum(found.key_lengths, 0))
        gone = self._map.latest(one, two) > offsets
        if offsets[0] < self._tombstones_until:
            gone |= located.is_tombstone & (offsets < self._tombstones_until)
        return ~(gone & located.has_key)

    def _without_idle(self, pieces: list[_Piece]) -> list[EncodedBatch]:
        """Without the batches that nobody needs: an empty one stays if it is, as far as is known, its producer's last."""
        later = set[int]()
        batches: list[EncodedBatch] = []
        for piece in reversed(pieces):
            batch, info, raw = piece
            producer = info.producer_id
            is_last = (
                producer >= 0
                and producer not in later
                and self._producers.get(producer, -1) <= info.base_offset
            )
            if batch is None or not batch.records:
                if not is_last and not (batch is not None and info.is_control):
                    continue
                batch = batch or _empty(raw, info)
            later.add(producer)
            batches.append(batch)
        if not batches:
            batches = [_empty(pieces[-1].raw, pieces[-1].info)]
        batches.reverse()
        return batches


def _chunks(blocks: Iterable[Block]) -> Iterator[list[_Found]]:
    """The batches of the blocks, as many at a time as are worth decoding together."""
    found: list[_Found] = []
    rows = size = 0
    for block in blocks:
        for info, high_ms, low_ms in zip(
            split(block.data),
            block.index["max_timestamp_ms"].tolist(),
            block.index["min_timestamp_ms"].tolist(),
            strict=True,
        ):
            found.append(_Found(block.data, info, low_ms, high_ms))
            rows, size = rows + info.count, size + info.size
            if rows >= _ROWS or size >= _BYTES:
                yield found
                found, rows, size = [], 0, 0
    if found:
        yield found


def _is_plain(info: BatchInfo) -> bool:
    """Whether its records may replace others, and be replaced."""
    return info.count > 0 and not info.is_control and not info.is_transactional


def _verbatim(found: _Found) -> _Piece:
    raw, info, low_ms, high_ms = found
    view = raw[info.position : info.position + info.size]
    return _Piece(as_stored(view, info.base_offset, info.span, low_ms, high_ms), info, raw)


def _empty(raw: memoryview, info: BatchInfo) -> EncodedBatch:
    return as_stored(memoryview(emptied(raw, info)), info.base_offset, info.span, -1, -1)
