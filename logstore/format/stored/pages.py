"""Memory for large segments: pages of their own, of which the last that were released are used again.

From malloc a segment would come out of the heap of the thread that builds it, and stay there, unused, when it is freed: one
for each thread that ever built one. Pages of their own go back to the system; but new ones have to be cleared and mapped,
which takes longer than filling them. So one block is kept for the next segment, whichever thread builds it; of the size of a
lane's entry a few, because several of those are under way at once.

A block is used again when nobody can look at it any more: not before the array that every view of it holds is gone.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from logstore.format.lazy_numpy import np

PAGES_FROM = 1 << 20
"""From here on a segment is worth pages of its own: malloc reuses what is smaller."""
_KEPT_MAX = 16 << 20
_ENTRY_MAX = 6 << 20
"""What a lane puts at once, in whole huge pages."""
_HUGE_PAGE = 2 << 20

Bytes = bytes | bytearray | memoryview
_large: deque[mmap.mmap] = deque(maxlen=1)
_few: deque[mmap.mmap] = deque(maxlen=4)


def in_one_piece(parts: Sequence[Bytes], size: int) -> memoryview:
    """The parts, `size` bytes together, one after the other: a view that cannot be written to."""
    if size < PAGES_FROM:
        return memoryview(b"".join(parts))
    pages = _take(size)
    pages.seek(0)
    for part in parts:
        pages.write(part)
    block = np.frombuffer(pages, np.uint8, size)
    if len(pages) <= _KEPT_MAX:
        weakref.finalize(block, _kept(len(pages)).append, pages).atexit = False
    return block.data.toreadonly()


def _kept(size: int) -> deque[mmap.mmap]:
    """The blocks of about that size that wait for their next segment."""
    return _few if size <= _ENTRY_MAX else _large


def _take(size: int) -> mmap.mmap:
    with suppress(IndexError):
        kept = _kept(size).pop()
        if size <= len(kept) <= 2 * size:
            return kept
    # Whole huge pages, because the system puts nothing else where they can begin. What is not touched takes no memory.
    pages = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The last one if three quarters of it are needed.
    huge = (size + _HUGE_PAGE // 4) // _HUGE_PAGE * _HUGE_PAGE
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them; with them new pages cost a fifth
            pages.madvise(mmap.MADV_HUGEPAGE, 0, huge)
    return pages
