"""An executor's way to the bytes: checked blocks of batches, in order, the next ones on their way while one is
decoded.

Every block's checksums have been verified when it comes out; damage raises `CorruptData` with the object's name.
An object that is gone raises `ObjectNotFound`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from logstore.arrow.plan.bounds import Bounds
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.segment_reader import SCAN_WHOLE_BYTES, Block, LoadedIndex, SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.format.batches.markers import MARKER_SIZE
from logstore.format.stored.segment import Index
from logstore.objects import ObjectStore
from logstore.objects.fan_out import fan_out

_AHEAD = 3
_CACHE_BYTES = 8 << 20  # indexes: blocks are read once


class Fetched(NamedTuple):
    """Checked batches of one segment. `rows` are those that the scan wants; `end_offset` is how far this takes it."""

    key: str
    block: Block
    rows: Index
    end_offset: int


_kept: deque[ThreadPoolExecutor] = deque(maxlen=1)
os.register_at_fork(after_in_child=_kept.clear)  # its threads are not there


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AHEAD, thread_name_prefix="logstore-scan")


@contextmanager
def fetching_threads() -> Iterator[Executor]:
    """For one `Fetcher` after the other, and then kept for who needs some next; two at a time do not share them.

    A new thread may get a heap of its own, and glibc keeps in each what was freed there, up to the last piece: none but the
    main one is ever given back. With new threads for each commit a process held some 5 MiB more after each, until it had as
    many heaps as glibc makes, eight for each core."""
    try:
        threads = _kept.pop()
    except IndexError:
        threads = _new_threads()
    try:
        yield threads
    except BaseException:
        threads.shutdown(cancel_futures=True)  # some of them may be at something that nobody wants any more
        raise
    _kept.append(threads)


class Fetcher:
    """Of one task. A context manager: leaving it ends the threads, unless they are the caller's."""

    def __init__(self, store: ObjectStore, bounds: Bounds, threads: Executor | None = None) -> None:
        self._reader = SegmentReader(store, BlockCache(_CACHE_BYTES))
        self._bounds = bounds
        self._own = _new_threads() if threads is None else None
        self._ahead = partial(fan_out, at_once=_AHEAD, ahead=True, pool=threads or self._own)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)

    def indexes(self, refs: Sequence[SegmentRef], start: int, stop: int) -> Iterator[Index | None]:
        """The rows of each segment's index that may hold something wanted; no record is read. None of one that does not
        tell, because compaction by key has taken records away, or because it may hold markers of transactions."""
        for loaded in self._ahead(partial(self._reader.index, ref) for ref in refs):
            rows = self._wanted(loaded.index, start, stop)
            may_hold_markers = bool(((rows["count"] == 1) & (rows["size"] == MARKER_SIZE)).any())
            yield None if loaded.sparse or may_hold_markers else rows

    def blocks(
        self, refs: Sequence[SegmentRef], start: int, stop: int, *, newest_first: bool
    ) -> Iterator[Fetched]:
        """The blocks that hold offsets from `start` up to `stop`, in order of offset or, whole, in the other."""
        return self._ahead(self._loads(refs, start, stop, newest_first))

    def _loads(
        self, refs: Sequence[SegmentRef], start: int, stop: int, newest_first: bool
    ) -> Iterator[Callable[[], Fetched]]:
        for ref in reversed(refs) if newest_first else refs:
            if ref.size <= SCAN_WHOLE_BYTES and ref.base_offset >= start and ref.end_offset <= stop:
                yield lambda ref=ref: self._whole(ref, start, stop)  # type: ignore[misc]
                continue
            loaded = self._reader.index(ref)
            rows = self._wanted(loaded.index, start, stop)
            numbers = np.unique(
                loaded.block_of_row[np.isin(loaded.index["base_offset"], rows["base_offset"])]
            )
            for number in numbers[::-1] if newest_first else numbers:
                yield lambda ref=ref, at=loaded, n=int(number): self._part(ref, at, n, start, stop)  # type: ignore[misc]

    def _whole(self, ref: SegmentRef, start: int, stop: int) -> Fetched:
        block = self._reader.block(ref, ref.base_offset, scanning=True)
        return Fetched(ref.key, block, self._wanted(block.index, start, stop), ref.end_offset)

    def _part(self, ref: SegmentRef, loaded: LoadedIndex, number: int, start: int, stop: int) -> Fetched:
        first = int(loaded.rows_of(number)["base_offset"][0])
        block = self._reader.block(ref, first, scanning=False)
        return Fetched(ref.key, block, self._wanted(block.index, start, stop), min(block.end_offset, stop))

    def _wanted(self, index: Index, start: int, stop: int) -> Index:
        low_ms, high_ms = self._bounds.timestamp_range_ms
        ends = index["base_offset"] + index["count"].astype(np.int64)
        keep = (ends > start) & (index["base_offset"] < stop)
        if self._bounds.bounds_time:
            keep &= (index["max_timestamp_ms"] >= low_ms) & (index["min_timestamp_ms"] < high_ms)
        rows: Index = index[keep]
        return rows
