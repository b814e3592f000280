"""What compaction by key reads of record areas, with NumPy: the hashes of all keys, and an area with some of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logstore.format.batches.area import Area, Keys
from logstore.format.plain import fields

HAS_KEY, IS_TOMBSTONE = 1, 2

_WORD = 8
_PIECES = 4
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
_SHIFTS = [np.uint64(16 * piece) for piece in range(_PIECES)]
_PIECE = np.uint64(0xFFFF)


def keys(areas: Sequence[Area], spans: Sequence[int], factors: Any) -> Keys:
    """As `kernels.Kernels.keys`."""
    joined, _, found = fields.locate(areas, _sparse(areas, spans))
    has_key = found.key_lengths >= 0
    flags = has_key * np.uint8(HAS_KEY) + (found.value_lengths < 0) * np.uint8(IS_TOMBSTONE)
    longest = int(found.key_lengths.max(initial=0))
    fits = has_key & (found.key_lengths <= 2 * (len(factors) - 1))
    rows = np.flatnonzero(fits)
    one, two = np.zeros((2, len(flags)), np.uint64)
    if len(rows):
        one[rows], two[rows] = _hashes(joined, found.key_positions[rows], found.key_lengths[rows], factors)
    return found.numbers, flags, one, two, max(longest, 0)


def pick(area: Area, span: int, keep: Any) -> tuple[bytes, int, int]:
    """As `kernels.Kernels.pick`."""
    joined, _, found = fields.locate([area], _sparse([area], [span]))
    stamps = fields.timestamps([area], found)
    if len(keep) != area.records:
        raise ValueError("a byte for each record is needed")
    rows = np.flatnonzero(np.frombuffer(keep, np.uint8))
    if not len(rows):
        raise ValueError("no record stays")
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = found.starts[rows[np.append(0, breaks + 1)]].tolist()
    ends = found.ends[rows[np.append(breaks, len(rows) - 1)]].tolist()
    data = b"".join([joined[start:end] for start, end in zip(starts, ends, strict=True)])
    return data, int(stamps[rows].min()), int(stamps[rows].max())


def remember(table: Any, one: Any, two: Any, offsets: Any) -> int:
    """As `kernels.Kernels.remember`."""
    mask, added = len(table) - 1, 0
    rows, at = np.arange(len(one)), _first_slots(table, one)
    for _ in range(len(table)):
        if not len(rows):
            return added
        is_empty = table[at, 2] == 0
        slots, first = np.unique(at[is_empty], return_index=True)
        new = rows[is_empty][first]
        table[slots] = np.column_stack((one[new], two[new], offsets[new].astype(np.uint64) + np.uint64(1)))
        added += len(slots)
        is_here = (table[at, 0] == one[rows]) & (table[at, 1] == two[rows])
        np.maximum.at(table[:, 2], at[is_here], offsets[rows[is_here]].astype(np.uint64) + np.uint64(1))
        rows, at = rows[~is_here], (at[~is_here] + 1) & mask
    if len(rows):
        raise ValueError("the table is full")
    return added


def recall(table: Any, one: Any, two: Any) -> Any:
    """As `kernels.Kernels.recall`."""
    found = np.full(len(one), -1, np.int64)
    rows, at = np.arange(len(one)), _first_slots(table, one)
    for _ in range(len(table)):
        is_here = (table[at, 0] == one[rows]) & (table[at, 1] == two[rows]) & (table[at, 2] > 0)
        found[rows[is_here]] = table[at[is_here], 2].astype(np.int64) - 1
        more = ~is_here & (table[at, 2] > 0)
        rows, at = rows[more], (at[more] + 1) & (len(table) - 1)
        if not len(rows):
            break
    return found


def _first_slots(table: Any, one: Any) -> Any:
    return (one >> np.uint64(65 - len(table).bit_length())).astype(np.int64)


def _sparse(areas: Sequence[Area], spans: Sequence[int]) -> Sequence[int] | None:
    """The spans, if compaction has taken records away from any of the batches."""
    is_dense = all(area.records == span for area, span in zip(areas, spans, strict=True))
    return None if is_dense else spans


def _hashes(joined: bytes, positions: Any, lengths: Any, factors: Any) -> tuple[Any, Any]:
    words = np.ndarray((len(joined) - _WORD + 1,), "<u8", joined, 0, (1,))
    sizes = lengths.astype(np.uint64)
    one, two = sizes * factors[0, 0], sizes * factors[0, 1]
    for word in range(-(-int(lengths.max(initial=0)) // _WORD)):
        left = lengths - word * _WORD
        some: Any = slice(None) if left.min() > 0 else np.flatnonzero(left > 0)
        found = words[positions[some] + word * _WORD] & _MASKS[np.minimum(left[some], _WORD)]
        for piece, shift in enumerate(_SHIFTS, 1 + word * _PIECES):
            if piece < len(factors):
                part = (found >> shift) & _PIECE
                one[some] += part * factors[piece, 0]
                two[some] += part * factors[piece, 1]
    return one, two
