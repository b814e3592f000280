"""Batches as Arrow columns, the way Spark wants them: exact types, every field nullable, in the order asked
for.

    key            binary                     null without a key
    value          binary                     null for a tombstone
    offset         int64
    timestamp      timestamp[us, tz=UTC]
    timestampType  int32                      0 given by the producer, 1 by a broker
    headers        list<struct<key, value>>   null without headers, as in Spark's Kafka source

Only the columns asked for are decoded; offsets need no decompression. As with `decode_records`, no length in
the bytes is trusted, and the CRC is the caller's to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from logstore.format import kernels
from logstore.format.area import Area, Binary, Gathered, HeaderLists
from logstore.format.batch import LOG_APPEND_TIME, BatchInfo, Buffer, record_area
from logstore.format.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")

# Arrow's `binary` counts bytes in 31 bits, over all rows of a column.
_MAX_BYTES = (1 << 31) - 1
# A chunk is closed when it holds this much, so that a reader of large records keeps a flat memory.
_CHUNK_BYTES = 32 << 20
_NEED_AREA = {"key", "value", "timestamp", "headers"}


def decode_columns(
    raw: Buffer,
    infos: Sequence[BatchInfo],
    *,
    columns: Sequence[str] = COLUMNS,
    start_offset: int = 0,
    stop_offset: int | None = None,
) -> pa.RecordBatch:
    """The records of the batches, in offset order, from `start_offset` up to before `stop_offset`."""
    chosen, schema = _wanted(infos, start_offset, stop_offset), _schema(tuple(columns))
    need = not _NEED_AREA.isdisjoint(columns)
    areas = [record_area(raw, info) for info in chosen] if need else []
    if (size := sum(len(area.data) for area in areas)) > _MAX_BYTES:
        raise FormatError(f"{size} bytes do not fit in one Arrow batch: read them with column_chunks")
    return _build(chosen, areas, columns, schema, start_offset, stop_offset)


def column_chunks(
    raw: Buffer,
    infos: Sequence[BatchInfo],
    *,
    columns: Sequence[str] = COLUMNS,
    start_offset: int = 0,
    stop_offset: int | None = None,
    rows: int = 16384,
) -> Iterator[pa.RecordBatch]:
    """The same in pieces of at most `rows` rows: small batches are decoded together, large ones are cut."""
    if rows < 1:
        raise FormatError(f"chunks of {rows} rows")
    schema = _schema(tuple(columns))
    need = not _NEED_AREA.isdisjoint(columns)
    group: list[BatchInfo] = []
    areas: list[Area] = []
    count = size = 0

    def chunks() -> Iterator[pa.RecordBatch]:
        whole = _build(group, areas, columns, schema, start_offset, stop_offset)
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)

    for info in _wanted(infos, start_offset, stop_offset):
        if group and (count + info.count > rows or size > _CHUNK_BYTES):
            yield from chunks()
            group, areas, count, size = [], [], 0, 0
        group.append(info)
        count += info.count
        if need:
            areas.append(record_area(raw, info))
            size += len(areas[-1].data)
    if group:
        yield from chunks()


def _wanted(infos: Sequence[BatchInfo], start_offset: int, stop_offset: int | None) -> list[BatchInfo]:
    return [
        info
        for info in infos
        if info[0] + info[3] > start_offset and (stop_offset is None or info[0] < stop_offset)
    ]


def _build(
    infos: Sequence[BatchInfo],
    areas: Sequence[Area],
    columns: Sequence[str],
    schema: pa.Schema,
    start_offset: int,
    stop_offset: int | None,
) -> pa.RecordBatch:
    import pyarrow as pa

    if not infos:
        return pa.RecordBatch.from_pylist([], schema)
    first = max(0, start_offset - infos[0].base_offset)
    stop = sum(info.count for info in infos)
    if stop_offset is not None:
        stop -= max(0, infos[-1].last_offset + 1 - stop_offset)
    gathered = Gathered(None, None, None, None)
    if areas:
        wanted = [name in columns for name in ("timestamp", "key", "value", "headers")]
        gathered = kernels.active.gather(areas, first, stop, *wanted)
    arrays = [_array(name, infos, gathered, first, stop) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> Any:
    import numpy as np
    import pyarrow as pa

    rows = stop - first
    if name == "offset":
        counts = np.array([info[3] for info in infos])
        # How far each batch's offsets lie from its row numbers; the same for all rows where there is no gap.
        shifts = np.array([info[0] for info in infos]) - (counts.cumsum() - counts)
        if (shifts == shifts[0]).all():
            return pa.array(np.arange(first + shifts[0], stop + shifts[0]))
        return pa.array(np.arange(first, stop) + np.repeat(shifts, counts)[first:stop])
    if name == "timestampType":
        kinds = np.array([info.attributes & LOG_APPEND_TIME != 0 for info in infos], np.int32)
        if not kinds.any():
            return pa.array(np.zeros(rows, np.int32))
        return pa.array(np.repeat(kinds, [info.count for info in infos])[first:stop])
    if name == "timestamp":
        buffers = [None, pa.py_buffer(gathered.timestamps_us)]
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, buffers)
    if name == "headers":
        assert gathered.headers is not None
        return _lists(gathered.headers, rows)
    column = gathered.keys if name == "key" else gathered.values
    assert column is not None
    return _binary(pa.binary(), column, rows)


def _binary(kind: Any, column: Binary, rows: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(
        kind, rows, [None if part is None else pa.py_buffer(part) for part in column]
    )


def _lists(lists: HeaderLists, rows: int) -> Any:
    import pyarrow as pa

    kind = _types()["headers"]
    pairs = pa.StructArray.from_arrays(
        [_binary(pa.string(), lists.keys, lists.headers), _binary(pa.binary(), lists.values, lists.headers)],
        fields=list(kind.value_type),
    )
    buffers = [pa.py_buffer(lists.validity), pa.py_buffer(lists.offsets)]
    return pa.Array.from_buffers(kind, rows, buffers, children=[pairs])


@cache
def _types() -> dict[str, Any]:
    import pyarrow as pa

    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = (
        pa.binary(),
        pa.binary(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
        pa.list_(pa.field("element", pair)),  # the name that Spark gives it
    )
    return dict(zip(COLUMNS, kinds, strict=True))


@cache
def _schema(columns: tuple[str, ...]) -> Any:
    import pyarrow as pa

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        asked = ", ".join(unknown) or "(none)"
        raise FormatError(f"columns {asked} asked for; there are {', '.join(COLUMNS)}")
    return pa.schema([(name, _types()[name]) for name in columns])
