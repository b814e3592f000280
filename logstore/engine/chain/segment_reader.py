"""Reading segments: which bytes to fetch, checked before anybody sees them, kept in the cache.

A segment up to `WHOLE_BYTES`, or one that is being read from its start, comes with one GET. Of a larger one the tail
(footer and index) comes with one GET and then only the block of batches that holds the offset. Every block is checked
against its checksums when it is loaded; damage raises `CorruptData` with the object and the offset. A segment that is gone
raises `ObjectNotFound`: the caller knows whether maintenance may have moved its records elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.newer_release import too_new
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.host.clock import Clock, SystemClock
from logstore.errors import CorruptData, LogStoreError, ObjectNotFound
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.segment import (
    FOOTER_SIZE,
    HEADER_SIZE,
    TAIL_SIZE,
    Bytes,
    Index,
    SegmentFlags,
    SegmentSummary,
    check_run,
    offset_at,
    parse_segment,
)
from logstore.objects.fan_out import QUICK_S
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.slices import is_slice, parse_slice

WHOLE_BYTES = 1 << 20
SCAN_WHOLE_BYTES = 16 << 20
BLOCK_BYTES = 2 << 20
KEPT_BYTES = 16 << 10
"""A segment up to this size is copied to be kept; a larger one stays where it is."""

_BESIDES_BYTES = 1024
"""What a piece takes beside its bytes: the objects round them, its key, its place in the cache. A writer of single records
makes a hundred thousand small ones."""
_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Block:
    """A run of checked batches. `data` begins at position `start` of the object. `sparse`: an offset may have no record."""

    index: Index
    data: memoryview
    start: int
    sparse: bool = False

    @property
    def cached_bytes(self) -> int:
        return len(self.data) + self.index.nbytes + _BESIDES_BYTES

    @property
    def end_offset(self) -> int:
        return int(self.index["base_offset"][-1]) + int(self.index["count"][-1])

    def run(self, offset: int, max_bytes: int, at_least_one: bool, stop: int) -> tuple[memoryview, int]:
        """Whole batches from the one that covers `offset`, up to `max_bytes` and below `stop`; and one past their last
        offset."""
        first = max(int(np.searchsorted(self.index["base_offset"], offset, side="right")) - 1, 0)
        begin = int(self.index["position"][first])
        ends = (self.index["position"][first:] + self.index["size"][first:]).astype(np.int64) - begin
        fit = int(np.searchsorted(ends, max_bytes, side="right"))
        if not fit and at_least_one:
            fit = 1
        if self.end_offset > stop:
            fit = min(fit, int(np.searchsorted(self.index["base_offset"][first:], stop)))
        if not fit:
            return self.data[:0], offset
        last = first + fit - 1
        run = self.data[begin - self.start : begin - self.start + int(ends[fit - 1])]
        return run, int(self.index["base_offset"][last]) + int(self.index["count"][last])


class _Kept:
    """What was stored here and now: a small segment, or a lane's entry with the segments of many partitions, most of which
    nobody reads. So it is looked at when somebody does."""

    __slots__ = ("_data",)

    def __init__(self, data: Bytes) -> None:
        self._data = memoryview(data)

    @property
    def cached_bytes(self) -> int:
        return len(self._data) + _BESIDES_BYTES

    def block(self, position: int = 0, size: int | None = None) -> Block:
        """The segment that lies there: all of it, unless it is an entry."""
        data = self._data[position : None if size is None else position + size]
        summary = SegmentSummary.parse(data, len(data))
        batches = data[HEADER_SIZE : summary.index_position]
        return Block(summary.index_in(data), batches, HEADER_SIZE, summary.header.is_sparse)


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """The index of a large segment, and how its batches are grouped into blocks."""

    index: Index
    block_of_row: Index
    sparse: bool = False

    @classmethod
    def of(cls, index: Index, sparse: bool) -> LoadedIndex:
        """Grouped by the index alone, so that a block's number means the same whoever has loaded it, and from where."""
        ends = (index["position"] + index["size"]).astype(np.int64) - HEADER_SIZE
        return cls(index, (ends - 1) // BLOCK_BYTES, sparse)

    @property
    def cached_bytes(self) -> int:
        return self.index.nbytes + self.block_of_row.nbytes + _BESIDES_BYTES

    def block_at(self, offset: int) -> int:
        row = max(int(np.searchsorted(self.index["base_offset"], offset, side="right")) - 1, 0)
        return int(self.block_of_row[row])

    def rows_of(self, block: int) -> Index:
        first, end = np.searchsorted(self.block_of_row, (block, block + 1))
        rows: Index = self.index[first:end]
        return rows


@dataclass(eq=False)
class SegmentReader:
    """Shared by all partitions of a store. `_prefetcher` runs reads ahead; None turns that off."""

    _store: ObjectStore
    _cache: BlockCache
    _prefetcher: Executor | None = None
    _clock: Clock = _SYSTEM_CLOCK
    _is_quick: bool = field(default=False, init=False)  # as the last whole segment was

    def block(self, ref: SegmentRef, offset: int, *, scanning: bool) -> Block:
        """The checked block that covers `offset` (or the first one behind it). May do I/O."""
        if self._comes_whole(ref, scanning):
            block = self._whole(ref)
        elif (whole := self._cached_whole(ref)) is not None:
            block = whole
        else:
            loaded = self.index(ref)
            number = loaded.block_at(offset)
            block = self._cache.get(
                (ref.key, number), BLOCK_BYTES, lambda: self._load_block(ref, loaded, number)
            )
        if block.end_offset <= offset:
            # It was in the cache, and is gone from the store with its neighbours, which are one row now under its name.
            raise CorruptData(ref.key, offset, f"it ends at {block.end_offset}, and what follows is missing")
        return block

    def blocks(self, ref: SegmentRef) -> Iterator[Block]:
        """All of an object, read and checked."""
        position = ref.base_offset
        while position < ref.end_offset:
            block = self.block(ref, position, scanning=True)
            yield block
            position = block.end_offset

    def keep(self, key: str, data: memoryview, summary: SegmentSummary) -> None:
        """A segment that was stored here and now: who follows the log, and the next compaction, need no request for
        it. Large ones are left out: they would push out all else, and their pages could not be used again."""
        if summary.batches and len(data) <= WHOLE_BYTES:
            batches = data[HEADER_SIZE : summary.index_position]
            is_small = len(data) <= KEPT_BYTES
            block = _Kept(bytes(data)) if is_small else Block(summary.index_in(data), batches, HEADER_SIZE)
            self._cache.add((key, "all"), block)

    def keep_entry(self, key: str, data: memoryview) -> bool:
        """The same for all segments in an entry of a lane at once. False if it is too large for that."""
        if len(data) <= WHOLE_BYTES:
            self._cache.add((key, "entry"), _Kept(data))
        return len(data) <= WHOLE_BYTES

    def keep_found(self, key: str, data: bytes) -> None:
        """The same for a small segment of another's, which came whole with a look at its end. It is checked like any that is
        loaded; one that is damaged is left to the reader that meets it, who has a caller to tell."""
        with suppress(FormatError):
            summary, index = parse_segment(data)
            batches = memoryview(data)[HEADER_SIZE : summary.index_position]
            self._cache.add((key, "all"), Block(index, batches, HEADER_SIZE, summary.header.is_sparse))

    def cached_block(self, ref: SegmentRef, offset: int) -> Block | None:
        """The same, only if that needs no I/O."""
        block: object = self._cached_whole(ref)
        if block is None:
            loaded = self._cache.peek((ref.key, "index"))
            if not isinstance(loaded, LoadedIndex):
                return None
            block = self._cache.peek((ref.key, loaded.block_at(offset)))
        return block if isinstance(block, Block) and offset < block.end_offset else None

    def _cached_whole(self, ref: SegmentRef) -> Block | None:
        whole = self._cache.peek((ref.key, "all"))
        if isinstance(whole, _Kept):
            return whole.block()
        return whole if isinstance(whole, Block) else self._in_entry(ref)

    def _in_entry(self, ref: SegmentRef) -> Block | None:
        """If it is part of an entry that is here."""
        if not is_slice(ref.key):
            return None
        key, position, size = parse_slice(ref.key)
        entry = self._cache.peek((key, "entry"))
        return entry.block(position, size) if isinstance(entry, _Kept) else None

    def index(self, ref: SegmentRef) -> LoadedIndex:
        """The segment's index alone: for look-ups by timestamp, and to find a block."""
        whole = self._cached_whole(ref)
        if whole is not None:
            return LoadedIndex.of(whole.index, whole.sparse)
        return self._cache.get((ref.key, "index"), TAIL_SIZE, lambda: self._load_index(ref))

    def prefetch(self, refs: list[SegmentRef]) -> None:
        """Begin to load the segments that a scan will want next, as far as they leave most of the cache to others."""
        if self._prefetcher is None or self._is_quick:
            return
        # More would push out what is being read now, or what was fetched ahead before.
        room = self._cache.limit // 3
        for ref in refs:
            room -= ref.size
            if room < 0 or not self._comes_whole(ref, True):
                return
            if not self._cache.is_known((ref.key, "all")) and self._in_entry(ref) is None:
                with suppress(RuntimeError):  # closed under a scan, which goes on without reading ahead
                    self._prefetcher.submit(self._prefetch_one, ref)

    def _prefetch_one(self, ref: SegmentRef) -> None:
        try:
            self._whole(ref)
        except Exception:
            return  # the reader that needs it meets the error itself, with a caller to tell

    @staticmethod
    def _comes_whole(ref: SegmentRef, scanning: bool) -> bool:
        return ref.size <= (SCAN_WHOLE_BYTES if scanning else WHOLE_BYTES)

    def _whole(self, ref: SegmentRef) -> Block:
        kept = self._in_entry(ref)
        if kept is not None:
            return kept
        whole: Block | _Kept = self._cache.get((ref.key, "all"), ref.size, lambda: self._load_whole(ref))
        return whole.block() if isinstance(whole, _Kept) else whole

    def _load_whole(self, ref: SegmentRef) -> Block:
        began = self._clock.monotonic()
        data, summary, index = self._parsed(ref)
        self._is_quick = self._clock.monotonic() - began < QUICK_S
        self._check_place(ref, summary)
        batches = memoryview(data)[HEADER_SIZE : summary.index_position]
        return Block(index, batches, HEADER_SIZE, summary.header.is_sparse)

    def _parsed(self, ref: SegmentRef) -> tuple[bytes, SegmentSummary, Index]:
        """The whole object, and what it says: also if its index is damaged, as long as its batches are not."""
        data = self._store.get(ref.key)
        try:
            return data, *parse_segment(data)
        except FormatError as damage:
            raise self._refusal(ref, data, damage) from damage

    def _load_index(self, ref: SegmentRef) -> LoadedIndex:
        tail = self._store.get(ref.key, -TAIL_SIZE)
        try:
            summary = SegmentSummary.parse(tail, ref.size)
            begin = len(tail) - FOOTER_SIZE - summary.index_size
            if begin >= 0:
                rows = tail[begin:-FOOTER_SIZE]
            else:
                end = summary.index_position + summary.index_size
                rows = self._store.get(ref.key, summary.index_position, end)
            index = summary.parse_index(rows)
        except FormatError:
            _, summary, index = self._parsed(ref)
        self._check_place(ref, summary)
        return LoadedIndex.of(index, summary.header.is_sparse)

    def _load_block(self, ref: SegmentRef, loaded: LoadedIndex, number: int) -> Block:
        rows = loaded.rows_of(number)
        start = int(rows["position"][0])
        end = int(rows["position"][-1]) + int(rows["size"][-1])
        data = self._store.get(ref.key, start, end)
        try:
            if len(data) != end - start:
                raise FormatError(f"the store gave {len(data)} of {end - start} bytes", start)
            check_run(data, start, rows)
        except FormatError as damage:
            # As a whole it may tell more: it is another's by now, say.
            self._check_place(ref, self._parsed(ref)[1])
            raise CorruptData(ref.key, offset_at(rows, damage.position), damage.why) from damage
        return Block(rows, memoryview(data), start, loaded.sparse)

    @staticmethod
    def _check_place(ref: SegmentRef, summary: SegmentSummary) -> None:
        """Another object than the row says, in a place of the chain, is as good as none: the records were collected, and
        their header is left, or a fence that came too late. If the manifest still names it, the caller calls it damage."""
        header = summary.header
        if SegmentFlags.COLLECTED in header.flags:
            raise ObjectNotFound(f"{ref.key}: garbage collection has left only its header")
        found = (header.seq, header.base_offset, header.end_offset)
        if found != (ref.seq, ref.base_offset, ref.end_offset):
            raise ObjectNotFound(
                f"{ref.key}: the object holds segment {header.seq} with offsets {header.base_offset} to "
                f"{header.end_offset}, not {ref.seq} with {ref.base_offset} to {ref.end_offset}"
            )

    def _refusal(self, ref: SegmentRef, data: bytes, damage: FormatError) -> LogStoreError:
        if isinstance(damage, UnsupportedVersion):
            return too_new(ref.key, damage)
        return CorruptData(ref.key, self._offset_of(ref, data, damage), damage.why)

    @staticmethod
    def _offset_of(ref: SegmentRef, data: bytes, damage: FormatError) -> int:
        """The offset nearest to the damage, if the index can still be read; else the segment's first."""
        try:
            summary = SegmentSummary.parse(data, len(data))
            end = summary.index_position
            index = summary.parse_index(data[end : end + summary.index_size])
        except FormatError:
            return ref.base_offset
        found = offset_at(index, damage.position)
        return ref.base_offset if found is None else found
