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

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")

# A chunk is closed when it holds this much, so that a reader of large records keeps a flat memory. (Arrow's `binary` counts
# bytes in 31 bits, over all rows of a column: a batch is at most `MAX_DECODED_BYTES`, far from that.)
_CHUNK_BYTES = 32 << 20


def column_chunks(
    raw: Buffer,
    infos: Sequence[BatchInfo],
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
    group: list[BatchInfo] = []
    areas: list[Area] = []
    count = size = 0

    def chunks() -> Iterator[pa.RecordBatch]:
        whole = _build(plan, raw, group, areas, start_offset, stop_offset)
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)

    for info in _wanted(infos, start_offset, stop_offset):
        if group and (count + info.count > rows or size > _CHUNK_BYTES):
            yield from chunks()
            group, areas, count, size = [], [], 0, 0
        group.append(info)
        count += info.count
        if plan.needs_areas:
            areas.append(record_area(raw, info))
            size += len(areas[-1].data)
    if group:
        yield from chunks()


def _wanted(infos: Sequence[BatchInfo], start_offset: int, stop_offset: int | None) -> list[BatchInfo]:
    return [
        info
        for info in infos
        if info[3]
        and info[0] + info[10] > start_offset
        and (stop_offset is None or info[0] < stop_offset)
        and not info.is_control
    ]


def _build(
    plan: Plan,
    raw: Buffer,
    infos: Sequence[BatchInfo],
    areas: Sequence[Area],
    start_offset: int,
    stop_offset: int | None,
) -> pa.RecordBatch:
    if any(info[3] != info[10] for info in infos):
        areas = areas or [record_area(raw, info) for info in infos]
        return plan.build_sparse(infos, areas, start_offset, stop_offset)
    first = start_offset - infos[0][0]
    stop = infos[0][3] if len(infos) == 1 else sum([info[3] for info in infos])
    if stop_offset is not None:
        stop -= max(0, infos[-1].last_offset + 1 - stop_offset)
    return plan.build(infos, areas, first if first > 0 else 0, stop)


@cache
def _plan(columns: tuple[str, ...]) -> Plan:
    from logstore.format.batches.arrays import Plan  # needs pyarrow, which the core can do without

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        asked = ", ".join(unknown) or "(none)"
        raise FormatError(f"columns {asked} asked for; there are {', '.join(COLUMNS)}")
    return Plan(columns)
