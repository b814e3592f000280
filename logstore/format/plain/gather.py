"""Columns for Arrow out of record areas, with NumPy and Arrow's own kernels.

Arrow copies the bytes: an array whose offsets run over the joined areas has a value in every odd row (and
what lies between values in the even ones), and `take` of the odd rows packs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.format.batches.area import Area, Binary, Gathered, HeaderLists
from logstore.format.plain import fields


def gather(
    areas: Iterable[Area], first: int, stop: int, timestamps: bool, keys: bool, values: bool, headers: bool
) -> Gathered:
    """The columns asked for of the records with index `first` up to, not including, `stop`."""
    areas = list(areas)
    joined, data, found = fields.locate(areas)
    return _gathered(areas, joined, data, found, slice(first, stop), timestamps, keys, values, headers)


def gather_sparse(
    areas: Sequence[Area],
    spans: Sequence[int],
    bases: Sequence[int],
    start_offset: int,
    stop_offset: int | None,
    wanted: tuple[bool, ...],
) -> tuple[Gathered, Any, slice]:
    """The same of batches that compaction may have taken records from, from one offset up to another; their offsets, and
    which rows of all those are."""
    joined, data, found = fields.locate(areas, spans)
    offsets = np.repeat(np.asarray(bases, np.int64), [area.records for area in areas]) + found.numbers
    first = int(np.searchsorted(offsets, start_offset))
    stop = len(offsets) if stop_offset is None else int(np.searchsorted(offsets, stop_offset))
    taken = slice(first, max(first, stop))
    timestamps, keys, values, headers = wanted
    gathered = _gathered(areas, joined, data, found, taken, timestamps, keys, values, headers)
    return gathered, offsets[taken], taken


def _gathered(
    areas: Sequence[Area],
    joined: bytes,
    data: Any,
    found: fields.Fields,
    taken: slice,
    timestamps: bool,
    keys: bool,
    values: bool,
    headers: bool,
) -> Gathered:
    stamps = fields.timestamps(areas, found)
    first, stop = taken.start, taken.stop
    return (
        pa.py_buffer(stamps[taken] * 1000) if timestamps else None,
        _pack(data, found.key_positions[taken], found.key_lengths[taken]) if keys else None,
        _pack(data, found.value_positions[taken], found.value_lengths[taken]) if values else None,
        _header_lists(joined, found, first, stop) if headers else None,
    )


def _pack(data: Any, positions: Any, lengths: Any) -> Binary:
    rows = len(positions)
    offsets = np.empty(2 * rows + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = positions
    offsets[2::2] = positions + np.maximum(lengths, 0)
    odd = np.arange(1, 2 * rows, 2)
    null = lengths < 0
    spread = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    # A null among the rows to take becomes a null in the result.
    return tuple(spread.take(pa.array(odd, mask=null if null.any() else None)).buffers())


def _header_lists(joined: bytes, found: fields.Fields, first: int, stop: int) -> HeaderLists:
    counts = np.zeros(stop - first, np.int32)
    keys: list[str] = []
    values: list[bytes | None] = []
    for index, of_record in fields.headers(joined, found):
        if first <= index < stop:
            counts[index - first] = len(of_record)
            for key, value in of_record:
                keys.append(key)
                values.append(value)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return (
        pa.py_buffer(np.packbits(counts > 0, bitorder="little")),
        pa.py_buffer(offsets),
        tuple(pa.array(keys, pa.string()).buffers()),
        tuple(pa.array(values, pa.binary()).buffers()),
        len(keys),
    )
