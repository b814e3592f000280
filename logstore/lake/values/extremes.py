"""Values at the edge of what a column, or its readers, can hold: times that no calendar of Python's has, numbers that lose
digits as doubles, objects in objects without an end."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NESTING_MAX = 1000
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPENING, _CLOSING = (np.frombuffer(signs, np.uint8) for signs in (b"[{", b"]}"))
YEAR_10000_US = 253_402_300_800_000_000
_YEAR_1_US = -62_135_596_800_000_000
_DAY_US = 86_400_000_000
_EXACT_BELOW = 2.0**53
"""Whole numbers from here on may have more digits than a double holds."""
_UNITS_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

Judge = Callable[[pa.Array], "np.ndarray | None"]
"""Of an array without children: which of its values it picks; None for none."""


def rows_with(judge: Judge, column: pa.Array) -> np.ndarray | None:
    """Which rows hold a value, at any depth, that `judge` picks; None for none."""
    kind = column.type
    if pa.types.is_struct(kind):
        found = [
            picked
            for number in range(kind.num_fields)
            if (picked := rows_with(judge, pc.struct_field(column, number))) is not None
        ]
        return np.logical_or.reduce(found) if found else None
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None if pa.types.is_nested(kind) or not len(column) else judge(column)
    inner = rows_with(judge, pc.list_flatten(column))
    if inner is None:
        return None
    rows = np.zeros(len(column), bool)
    rows[pc.list_parent_indices(column).to_numpy()[inner]] = True
    return rows


def beyond_calendars(array: pa.Array) -> np.ndarray | None:
    """A judge: days and times that lie outside of the years 1 to 9999. Python has no object for them, and with it neither
    have its readers, nor pyiceberg, which commits no file that holds one."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        numbers, a_second = array.view(pa.int64()), _UNITS_A_SECOND[kind.unit]
        low, stop = (us * a_second // 10**6 for us in (_YEAR_1_US, YEAR_10000_US))
        if max(-low, stop) >= 1 << 63:
            return None  # nanoseconds do not reach as far
    elif pa.types.is_date32(kind):
        numbers, low, stop = array.view(pa.int32()), _YEAR_1_US // _DAY_US, YEAR_10000_US // _DAY_US
    else:
        return None
    ends = pc.min_max(numbers)
    if not ends["min"].is_valid or (ends["min"].as_py() >= low and ends["max"].as_py() < stop):
        return None
    return np.asarray(pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, stop)), False))


def inexact(array: pa.Array) -> np.ndarray | None:
    """A judge: doubles that were whole numbers of more digits, perhaps."""
    if not pa.types.is_float64(array.type):
        return None
    large = np.abs(array.to_numpy(zero_copy_only=False)) >= _EXACT_BELOW
    return large if large.any() else None


def is_too_deep(text: str) -> bool:
    """JSON in which more than `NESTING_MAX` objects and lists are in each other. Arrow makes a type of each, and these call
    each other: where that takes more than the stack, the process ends without a word."""
    if text.count("{") + text.count("[") <= NESTING_MAX:
        return False
    signs = np.frombuffer(_STRING.sub("", text).encode(), np.uint8)
    opened = np.isin(signs, _OPENING).astype(np.int64) - np.isin(signs, _CLOSING)
    return bool(opened.cumsum().max(initial=0) > NESTING_MAX)


def up_to_9999(stamps: pa.Array) -> pa.Array:
    """The timestamps of records, in microseconds; null from the year 10000 on. (Of a producer that counts microseconds
    where milliseconds are meant, say: a log keeps such a record, and a table must not end at it.)"""
    late = beyond_calendars(stamps)
    return stamps if late is None else pc.if_else(pa.array(late), pa.scalar(None, stamps.type), stamps)
