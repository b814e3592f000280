"""What one pass of compaction by key knows of the log, and what it leaves of a run of segments.

First it learns: the last offset of each key in the part of the log that is new to it. Then it goes over the log from its
beginning and leaves out each record that a later one of the same key replaces, and each tombstone whose time is over.
Records without a key stay. Of what it has learned it knows by their offsets which records are left: no key is looked up
again, and a batch of which all or none are is not decoded a second time.

Transactions: the first batch of one that it meets makes it look ahead, for how they end. It learns up to the last stable
offset, where the first begins that has not ended; what was committed is like everything else, what was aborted replaces
nothing and goes. What lies below the end of the pass before has been through that, so what is left there was committed.

* A marker stays while anything of its transaction does, and the last one of each producer always: who reads the log from an
  older snapshot on meets one for each transaction that it knows as open, and one for the producer's last epoch.
* A marker that says aborted stays: a consumer that was told of the transaction waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from logstore.engine.chain.segment_reader import Block
from logstore.engine.maintenance.offset_map import OffsetMap
from logstore.engine.maintenance.outcomes import Outcomes
from logstore.format.batches.area import Area
from logstore.format.batches.batch import BatchInfo, record_area, split
from logstore.format.batches.markers import read_marker
from logstore.format.batches.thinning import emptied, thinned
from logstore.format.key_hash import Hashed, KeyHash
from logstore.format.stored.encoded_batch import EncodedBatch, as_stored

_ROWS = 1 << 15
_BYTES = 4 << 20


class _Found(NamedTuple):
    """A batch as it is stored: the bytes that it lies in, and the lowest and the highest timestamp of its records."""

    raw: memoryview
    info: BatchInfo
    low_ms: int
    high_ms: int


class _Keyed(NamedTuple):
    """Batches with one record at the least, decoded for their keys. `offsets`: of all records. `firsts`: where those of each
    batch begin, and one more for the end."""

    infos: list[BatchInfo]
    areas: list[Area]
    hashed: Hashed
    offsets: Any
    firsts: Any


class _Piece(NamedTuple):
    """A batch that is left, or None: all its records are gone. `info` is that of the batch as it was. `is_needed`: of a
    marker, whether something of its transaction is left."""

    batch: EncodedBatch | None
    info: BatchInfo
    raw: memoryview
    is_needed: bool = True


@dataclass(slots=True)
class Thinned:
    """What is left of a run. `removed`: how many records are not."""

    batches: list[EncodedBatch] = field(default_factory=list)
    removed: int = 0


class Thinner:
    """Of one pass. `tombstones_until`: those below that offset have had their time. `known_until`: where the pass before has
    come to. `last`: from there on every batch stays as it is. `expected`: how many records it will learn at the most.
    `look_ahead`: how the transactions end that are open from an offset on, or begin there."""

    def __init__(
        self,
        seed: bytes,
        tombstones_until: int,
        known_until: int,
        last: int,
        keys_max: int,
        expected: int,
        look_ahead: Callable[[int], Outcomes],
    ) -> None:
        self._hash = KeyHash(seed)
        self._map = OffsetMap(keys_max, expected)
        self._last_data: dict[int, int] = {}
        self._last_markers: dict[int, int] = {}
        self._tombstones_until = tombstones_until
        self._known_until = known_until
        self._last = last
        self._look_ahead = look_ahead
        self._outcomes: Outcomes | None = None
        self._start = -1
        """From where on it was learned."""
        self._left: Any = None
        """The offsets of what is left of what was learned, once that is done."""
        self._keyless: set[int] = set()
        """The batches in which a record has no key."""
        self._kept: dict[int, int] = {}
        """Of each producer: where the last batch of a transaction lies that was kept, in what was gone over."""
        self._marked: dict[int, int] = {}
        """And its last marker."""
        self.until = 0
        """What lies below was learned."""
        self.tombstones = False
        """Whether there were any in what was learned."""

    # Learning

    def learn(self, blocks: Iterable[Block], start: int, stop: int) -> bool:
        """Take in the records from `start` up to `stop`. False if there is no more room, or if a transaction has not ended:
        `until` says how far it came."""
        self._start = start if self._start < 0 else self._start
        for found in _chunks(blocks):
            wanted = [one for one in found if start <= one.info.last_offset and one.info.base_offset < stop]
            stop = self._stable(wanted, stop)
            wanted = [one for one in wanted if one.info.base_offset < stop]
            for _, info, _, _ in wanted:
                if info.producer_id >= 0:
                    last = self._last_markers if info.is_control else self._last_data
                    last[info.producer_id] = info.base_offset
            live = [one for one in wanted if self._is_live(one.info)]
            if live:
                self._learn(self._keyed(live), start, stop)
            if wanted:
                self.until = min(stop, wanted[-1].info.last_offset + 1)
            if self._map.full and self.until < stop:
                return False
        self.until = stop
        return not self._map.full and (self._outcomes is None or stop < self._outcomes.stable)

    def _stable(self, found: list[_Found], stop: int) -> int:
        """Where to stop because of transactions that have not ended, looked up when the first one comes."""
        if self._outcomes is None:
            first = next((one.info.base_offset for one in found if one.info.is_transactional), None)
            if first is None:
                return stop
            self._outcomes = self._look_ahead(first)
        return min(stop, self._outcomes.stable)

    def _is_live(self, info: BatchInfo) -> bool:
        """Whether its records may replace others, and be replaced."""
        if not info.count or info.is_control:
            return False
        if not info.is_transactional or info.base_offset < self._known_until:
            return True
        return self._outcomes is not None and self._outcomes.is_committed(info)

    def _may_go(self, info: BatchInfo) -> bool:
        """Whether its records go if others replace them."""
        return info.base_offset < self._last and self._is_live(info)

    def _is_aborted(self, info: BatchInfo) -> bool:
        return (
            info.is_transactional
            and not info.is_control
            and info.base_offset >= self._known_until
            and self._outcomes is not None
            and self._outcomes.is_aborted(info)
        )

    def _keyed(self, found: list[_Found]) -> _Keyed:
        infos = [one.info for one in found]
        areas = [record_area(one.raw, one.info) for one in found]
        hashed = self._hash.of(areas, [info.span for info in infos])
        counts = np.array([info.count for info in infos])
        bases = np.array([info.base_offset for info in infos], np.int64)
        return _Keyed(
            infos, areas, hashed, np.repeat(bases, counts) + hashed.deltas, np.append(0, counts.cumsum())
        )

    def _learn(self, keyed: _Keyed, start: int, stop: int) -> None:
        offsets, hashed = keyed.offsets, keyed.hashed
        wanted = hashed.has_key & (offsets >= start) & (offsets < stop)
        if not hashed.has_key.all():
            batches = np.searchsorted(keyed.firsts, np.flatnonzero(~hashed.has_key), "right") - 1
            self._keyless |= {keyed.infos[row].base_offset for row in np.unique(batches).tolist()}
        rows: Any = slice(None) if wanted.all() else np.flatnonzero(wanted)
        self._map.add(hashed.one[rows], hashed.two[rows], offsets[rows])
        self.tombstones = self.tombstones or bool(hashed.is_tombstone[rows].any())

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
        live = [one for one in found if self._may_go(one.info)]
        known = self._known([one.info for one in live])
        inside = [one for one, keep in zip(live, known, strict=True) if keep is None]
        looked_up = self._looked_up(inside) if inside else iter(())
        keeps = iter(known)
        for one in found:
            raw, info, _, _ = one
            if info.is_control:
                yield self._marker(one)
                continue
            keep, area = None, None
            count = 0 if self._is_aborted(info) else info.count
            if self._may_go(info):
                keep = next(keeps)
                if keep is None:
                    keep, area = next(looked_up)
                count = int(keep.sum())
            left.removed += info.count - count
            if count and info.is_transactional:
                self._kept[info.producer_id] = info.base_offset
            if count == info.count:
                yield _verbatim(one)
            elif not count:
                yield _Piece(None, info, raw)
            else:
                data, low_ms, high_ms = thinned(raw, info, keep, area)
                batch = as_stored(memoryview(data), info.base_offset, info.span, low_ms, high_ms)
                yield _Piece(batch, info, raw)

    def _is_learned(self, first: int, last: int) -> bool:
        return max(self._start, self._tombstones_until) <= first and last < self.until and self._start >= 0

    def _known(self, infos: list[BatchInfo]) -> list[Any]:
        """Which records of each are left, a byte for each; None: that is to be seen inside."""
        bases = np.array([info.base_offset for info in infos], np.int64)
        spans = np.array([info.span for info in infos], np.int64)
        left = self._learned_offsets()
        firsts, stops = np.searchsorted(left, bases), np.searchsorted(left, bases + spans)
        return [
            _ones_at(left[first:stop] - info.base_offset, info.span)
            if self._is_learned(info.base_offset, info.last_offset)
            and not info.is_sparse
            and info.base_offset not in self._keyless
            else None
            for info, first, stop in zip(infos, firsts.tolist(), stops.tolist(), strict=True)
        ]

    def _learned_offsets(self) -> Any:
        if self._left is None:
            self._left = self._map.offsets()
        return self._left

    def _marker(self, found: _Found) -> _Piece:
        """What is gone over a second time, because a swap was lost, says nothing about what lies before it: it stays."""
        producer, offset = found.info.producer_id, found.info.base_offset
        marker, before = read_marker(found.raw, found.info), self._marked.get(producer, -1)
        self._marked[producer] = max(before, offset)
        is_needed = (
            marker is None
            or not marker.is_commit
            or before >= offset
            or self._kept.get(producer, -1) > before
        )
        return _verbatim(found)._replace(is_needed=is_needed)

    def _looked_up(self, found: list[_Found]) -> Iterator[tuple[Any, Area]]:
        """The same of batches whose keys have to be looked up, and their records."""
        keyed = self._keyed(found)
        offsets, hashed = keyed.offsets, keyed.hashed
        gone = self._map.latest(hashed.one, hashed.two) > offsets
        if offsets[0] < self._tombstones_until:
            gone |= hashed.is_tombstone & (offsets < self._tombstones_until)
        keep = (~(gone & hashed.has_key)).view(np.uint8)
        for area, first, stop in zip(keyed.areas, keyed.firsts, keyed.firsts[1:], strict=False):
            yield keep[first:stop], area

    def _without_idle(self, pieces: list[_Piece]) -> list[EncodedBatch]:
        """Without the batches that nobody needs: an empty one stays if it is, as far as is known, its producer's last, and
        so does a marker."""
        later_data, later_markers = set[int](), set[int]()
        batches: list[EncodedBatch] = []
        for batch, info, raw, is_needed in reversed(pieces):
            producer, is_control = info.producer_id, info.is_control
            later, last = (later_markers, self._last_markers) if is_control else (later_data, self._last_data)
            is_last = producer >= 0 and producer not in later and last.get(producer, -1) <= info.base_offset
            is_empty = batch is None or not (batch.records or is_control)
            if (is_empty or not is_needed) and not is_last:
                continue
            later.add(producer)
            batches.append(batch or _empty(raw, info))
        if not batches:
            batch, info, raw, _ = pieces[-1]
            batches = [batch or _empty(raw, info)]
        batches.reverse()
        return batches


def _ones_at(places: Any, size: int) -> Any:
    ones = np.zeros(size, np.uint8)
    ones[places] = 1
    return ones


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


def _verbatim(found: _Found) -> _Piece:
    raw, info, low_ms, high_ms = found
    view = raw[info.position : info.position + info.size]
    return _Piece(as_stored(view, info.base_offset, info.span, low_ms, high_ms), info, raw)


def _empty(raw: memoryview, info: BatchInfo) -> EncodedBatch:
    return as_stored(memoryview(emptied(raw, info)), info.base_offset, info.span, -1, -1)
