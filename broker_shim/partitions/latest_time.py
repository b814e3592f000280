"""The record with the largest timestamp of a partition, found from what segments say of themselves."""

from __future__ import annotations

from logstore.engine.partition.partition_log import PartitionLog

_CHUNK_BYTES = 1 << 20


def latest_by_time(log: PartitionLog) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that has the largest one; None if none has any.

    As a rule two lookups in an index. More only if the segment with the largest one was trimmed: then it is searched for.
    """
    largest = max((ref.max_timestamp_ms for ref in log.segments()), default=-1)
    found = log.offset_for_timestamp(largest) if largest >= 0 else None
    later = log.offset_for_timestamp(largest + 1)
    if later is not None:  # not in a segment yet
        return _latest_from(log, later)
    if found is None and largest > 0:
        largest = _search(log, largest)
        found = log.offset_for_timestamp(largest) if largest >= 0 else None
    return None if found is None else (found, largest)


def _latest_from(log: PartitionLog, position: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    end = log.buffered_high_watermark
    while position < end:
        result = log.read(position, _CHUNK_BYTES)
        for record in result.records():
            stamp = record.timestamp_ms
            if stamp is not None and record.offset is not None and (best is None or stamp > best[1]):
                best = (record.offset, stamp)
        if result.next_offset == position:
            break
        position = result.next_offset
    return best


def _search(log: PartitionLog, above: int) -> int:
    """The largest timestamp below `above` that some record has; -1 if none has one."""
    low, high = -1, above
    while high - low > 1:
        middle = (low + high) // 2
        if log.offset_for_timestamp(middle) is None:
            high = middle
        else:
            low = middle
    return low
