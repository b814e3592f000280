"""What glibc keeps of memory that a scan frees.

A scan allocates and frees some ten MiB for each Arrow batch, again and again. glibc gives the end of its heap back to the
system as soon as more than twice the largest piece that was freed so far lies idle there: for batches that is about as
much as one of them, so each would be mapped again, page by page. That was a third of a scan's CPU.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_LARGEST_BYTES = 31 << 20  # glibc learns from pieces of up to 32 MiB


@cache
def keep_what_batches_free() -> None:
    """Free one large piece, which was never touched: up to twice its size may lie idle from then on. As after any array of
    that size; other allocators learn nothing by it."""
    np.empty(_LARGEST_BYTES, np.uint8)
