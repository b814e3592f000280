"""What Spark's filters leave of the log, as `Bounds`.

A bound is only ever wider than the filters that made it; Spark itself still evaluates every filter on every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from logstore.arrow.plan.bounds import EVERYTHING, FOREVER, Bounds

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


_INTEGERS = ("partition", "offset")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(filters: Iterable[Filter]) -> Bounds:
    """The bounds that all of the filters leave. One that says nothing about our indexed columns changes nothing."""
    bounds = EVERYTHING
    for one in filters:
        bounds = _narrow(bounds, one)
    return bounds


def _narrow(bounds: Bounds, one: Filter) -> Bounds:
    kind = type(one).__name__
    column, value = getattr(one, "attribute", ("",)), getattr(one, "value", None)
    if len(column) != 1:
        return bounds
    name = column[0]
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        values = value if kind == "In" and isinstance(value, list | tuple) else (value,)
        return _one_of(bounds, name, [v for v in values if v is not None])
    low_high = _range(kind, _as_number(name, value))
    return bounds if low_high is None else _cut(bounds, name, *low_high)


def _one_of(bounds: Bounds, name: str, values: list[Any]) -> Bounds:
    if name == "topic" and all(isinstance(value, str) for value in values):
        chosen = frozenset(values)
        return replace(bounds, topics=chosen if bounds.topics is None else chosen & bounds.topics)
    numbers = [_as_number(name, value) for value in values]
    exact = [number for number in numbers if number is not None]
    if not exact or len(exact) != len(numbers):
        return bounds
    if name == "partition":
        picked = frozenset(exact)
        return replace(bounds, partitions=picked if bounds.partitions is None else picked & bounds.partitions)
    return _cut(bounds, name, min(exact), max(exact) + 1)


def _range(kind: str, number: int | None) -> tuple[int, int] | None:
    if number is None:
        return None
    ranges = {
        "GreaterThan": (number, FOREVER),
        "GreaterThanOrEqual": (number, FOREVER),
        "LessThan": (-FOREVER, number + 1),
        "LessThanOrEqual": (-FOREVER, number + 1),
    }
    return ranges.get(kind)


def _cut(bounds: Bounds, name: str, low: int, high: int) -> Bounds:
    field = {
        "partition": "partition_range",
        "offset": "offset_range",
        "timestamp": "timestamp_range_ms",
    }.get(name)
    if field is None:
        return bounds
    was_low, was_high = getattr(bounds, field)
    changes: dict[str, Any] = {field: (max(was_low, low), min(was_high, high))}
    return replace(bounds, **changes)


def _as_number(name: str, value: object) -> int | None:
    """An offset or a partition as it is; a timestamp as the millisecond it lies in. None for anything else."""
    if name == "timestamp" and isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        # In whole numbers: a float of seconds is off by a microsecond now and then, and so in the millisecond before.
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    if name in _INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
