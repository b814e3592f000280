"""Arrow arrays out of the buffers that the kernels fill. Needs pyarrow: imported when columns are asked for, not before.

`columns` says which columns there are and which batches go into one; here is what each of them is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.format import kernels
from logstore.format.batches.area import Area, Binary, Gathered, HeaderLists
from logstore.format.batches.batch import LOG_APPEND_TIME, BatchInfo

_BINARY, _STRING, _MICROSECONDS = pa.binary(), pa.string(), pa.timestamp("us", tz="UTC")
_PAIR = pa.struct([("key", _STRING), ("value", _BINARY)])
_PAIRS = pa.list_(pa.field("element", _PAIR))  # the name that Spark gives it

_TYPES = {
    "key": _BINARY,
    "value": _BINARY,
    "offset": pa.int64(),
    "timestamp": _MICROSECONDS,
    "timestampType": pa.int32(),
    "headers": _PAIRS,
}

_NOTHING: Gathered = (None, None, None, None)

Maker = Callable[[Sequence[BatchInfo], Gathered, int, int], pa.Array]


class Plan:
    """What a choice of columns comes to, the same for every batch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = pa.schema([(name, _TYPES[name]) for name in columns])
        self.makers: list[Maker] = [_MAKERS[name] for name in columns]
        self.wanted = tuple(name in columns for name in ("timestamp", "key", "value", "headers"))
        self.needs_areas = any(self.wanted)
        """If not, batch headers tell everything."""

    def gather(self, areas: Iterable[Area], first: int, stop: int) -> Gathered:
        """Of the rows with index `first` up to, not including, `stop`, or as many of them as there are."""
        return kernels.active.gather(areas, first, stop, *self.wanted)

    def build(
        self, infos: Sequence[BatchInfo], gathered: Gathered | None, first: int, stop: int
    ) -> pa.RecordBatch:
        """The same rows of these batches. None: batch headers tell everything."""
        arrays = [make(infos, gathered or _NOTHING, first, stop) for make in self.makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def build_sparse(
        self, infos: Sequence[BatchInfo], areas: Sequence[Area], start_offset: int, stop_offset: int | None
    ) -> pa.RecordBatch:
        """The rows from one offset up to another, of batches that compaction by key has taken records from."""
        from logstore.format.plain.gather import gather_sparse

        gathered, offsets, taken = gather_sparse(
            areas,
            [info.span for info in infos],
            [info.base_offset for info in infos],
            start_offset,
            stop_offset,
            self.wanted,
        )
        arrays = [
            pa.array(offsets) if make is _offsets else make(infos, gathered, taken.start, taken.stop)
            for make in self.makers
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _keys(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    return _bytes(_BINARY, gathered[1], stop - first)


def _values(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    return _bytes(_BINARY, gathered[2], stop - first)


def _offsets(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    counts = np.array([info[3] for info in infos])
    # How far each batch's offsets lie from its row numbers; the same for all rows where there is no gap.
    shifts = np.array([info[0] for info in infos]) - (counts.cumsum() - counts)
    if (shifts == shifts[0]).all():
        return pa.array(np.arange(first + shifts[0], stop + shifts[0]))
    return pa.array(np.arange(first, stop) + np.repeat(shifts, counts)[first:stop])


def _timestamps(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    return pa.Array.from_buffers(_MICROSECONDS, stop - first, [None, pa.py_buffer(gathered[0])])


def _timestamp_types(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    kinds = np.array([info.attributes & LOG_APPEND_TIME != 0 for info in infos], np.int32)
    if not kinds.any():
        return pa.array(np.zeros(stop - first, np.int32))
    return pa.array(np.repeat(kinds, [info.count for info in infos])[first:stop])


def _headers(infos: Sequence[BatchInfo], gathered: Gathered, first: int, stop: int) -> pa.Array:
    lists: HeaderLists | None = gathered[3]
    assert lists is not None
    validity, offsets, keys, values, headers = lists
    pairs = pa.StructArray.from_arrays(
        [_bytes(_STRING, keys, headers), _bytes(_BINARY, values, headers)], fields=list(_PAIR)
    )
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_PAIRS, stop - first, buffers, children=[pairs])


def _bytes(kind: Any, column: Binary | None, rows: int) -> pa.Array:
    assert column is not None
    validity, offsets, data = column
    buffer = pa.py_buffer
    parts = [
        None if validity is None else buffer(validity),
        buffer(offsets),
        None if data is None else buffer(data),
    ]
    return pa.Array.from_buffers(kind, rows, parts)


_MAKERS = {
    "key": _keys,
    "value": _values,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
