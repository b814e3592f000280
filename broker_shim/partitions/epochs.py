"""Where a leader epoch ended, found in the log itself: every batch carries the epoch of the writer that
stored it.

Epochs only grow along the log, so this is a binary search, a few dozen small reads at the most, and exact.
"""

from __future__ import annotations

import struct

from logstore.engine.partition.partition_log import PartitionLog

_EPOCH = struct.Struct(">i")
_EPOCH_AT = 12


def epoch_end(log: PartitionLog, epoch: int) -> tuple[int, int]:
    """The largest epoch up to `epoch` that stored anything, and the offset where a later one began.

    Without a later one that is the end of the log, what a writer has shown and lost in a crash included: no reader is told
    that the log was cut before the place where it is.
    """
    low, high = log.low_watermark, log.buffered_high_watermark
    first, last, seen = low, high, -1
    while first < last:
        middle = (first + last) // 2
        found = _batch_at(log, middle)
        if found is None:
            last = middle  # nothing but lost offsets from here to the end
            continue
        base, end, stored_in = found
        if stored_in <= epoch:
            first, seen = max(end, middle + 1), stored_in
        else:
            last = middle if base > middle else max(first, base)
    following = _batch_at(log, first) if first < high else None
    end = log._internal.reserved_end if following is None else max(low, following[0])
    return epoch if seen < 0 else seen, end


def _batch_at(log: PartitionLog, offset: int) -> tuple[int, int, int] | None:
    """Base offset, end offset and epoch of the batch that covers `offset`, or of the next one."""
    result = log.read(offset, 0)
    if not result.parts:
        return None
    head = bytes(result.parts[0][:16])
    return int.from_bytes(head[:8], "big"), result.next_offset, _EPOCH.unpack_from(head, _EPOCH_AT)[0]
