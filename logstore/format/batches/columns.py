"""Batches as Arrow columns, the way Spark wants them: exact types, every field nullable, in the order asked
for.

    key            binary                     null without a key
    value          binary                     null for a tombstone
    offset         int64
    timestamp      timestamp[us, tz=UTC]
    timestampType  int32                      0 given by the producer, 1 by a broker
    headers        list<struct<key, value>>   null without headers, as in Spark's Kafka source

Only the columns asked for are decoded; offsets need no decompression, unless compaction has taken records away. As with
`decode_records`, no length in the bytes is trusted, and the CRC is the caller's to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from logstore.format.batches.area import Area
from logstore.format.batches.batch import BatchInfo, Buffer, record_area
from logstore.format.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.format.batches.arrays import Plan

Located = tuple[Buffer, BatchInfo]
"""A batch, and the bytes in which it lies at the position that it tells."""

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")

# A chunk is closed when it holds this much, so that a reader of large records keeps a flat memory. (Arrow's `binary` counts
# bytes in 31 bits, over all rows of a column: a batch is at most `MAX_DECODED_BYTES`, far from that.)
_CHUNK_BYTES = 32 << 20


def column_chunks(
    batches: Sequence[Located],
    *,
    columns: Sequence[str] = COLUMNS,
    start_offset: int = 0,
    stop_offset: int | None = None,
    rows: int = 16384,
) -> Iterator[pa.RecordBatch]:
    """The records of the batches, in offset order, from `start_offset` up to before `stop_offset`, in pieces of at most
    `rows` rows: small batches are decoded together, large ones are cut."""
    if rows < 1:
        raise FormatError(f"chunks of {rows} rows")
    plan = _plan(tuple(columns))
    left = _wanted(batches, start_offset, stop_offset)
    begin = 0
    while begin < len(left):
        end, count = begin + 1, left[begin][1].count
        while end < len(left) and (count := count + left[end][1].count) <= rows:
            end += 1
        whole, taken = _build(plan, left[begin:end], start_offset, stop_offset)
        begin += taken
        for first in range(0, whole.num_rows, rows):
            yield whole.slice(first, rows)


def _wanted(batches: Sequence[Located], start_offset: int, stop_offset: int | None) -> list[Located]:
    return [
        (raw, info)
        for raw, info in batches
        if info[3]
        and info[0] + info[10] > start_offset
        and (stop_offset is None or info[0] < stop_offset)
        and not info.is_control
    ]


class _Areas:
    """The record areas of batches, each decompressed when it is asked for, until there is enough in them."""

    def __init__(self, batches: Sequence[Located]) -> None:
        self._batches = batches
        self.taken = 0

    def __iter__(self) -> Iterator[Area]:
        size = 0
        for raw, info in self._batches:
            area = record_area(raw, info)
            self.taken += 1
            size += len(area.data)
            yield area
            del area  # it goes before the next one comes, which then lies in the same memory
            if size > _CHUNK_BYTES:
                break


def _build(
    plan: Plan, batches: Sequence[Located], start_offset: int, stop_offset: int | None
) -> tuple[pa.RecordBatch, int]:
    """One piece of the first of these batches, and of how many of them it is."""
    infos = [info for _, info in batches]
    areas = _Areas(batches)
    if any(info[3] != info[10] for info in infos):
        found = list(areas)
        return plan.build_sparse(infos[: areas.taken], found, start_offset, stop_offset), areas.taken
    first = max(start_offset - infos[0][0], 0)
    stop = _rows(infos, stop_offset)
    if not plan.needs_areas:
        return plan.build(infos, None, first, stop), len(infos)
    gathered = plan.gather(areas, first, stop)
    if areas.taken < len(infos):
        infos = infos[: areas.taken]
        stop = _rows(infos, stop_offset)
    return plan.build(infos, gathered, first, stop), len(infos)


def _rows(infos: Sequence[BatchInfo], stop_offset: int | None) -> int:
    """How many there are before `stop_offset`."""
    rows = sum([info[3] for info in infos])
    return rows if stop_offset is None else rows - max(0, infos[-1].last_offset + 1 - stop_offset)


@cache
def _plan(columns: tuple[str, ...]) -> Plan:
    from logstore.format.batches.arrays import Plan  # needs pyarrow, which the core can do without

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        asked = ", ".join(unknown) or "(none)"
        raise FormatError(f"columns {asked} asked for; there are {', '.join(COLUMNS)}")
    return Plan(columns)
