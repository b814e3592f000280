"""Who reads and writes record areas: the C kernels where they are built, plain Python where they are not.

Both accept the same bytes, refuse the same bytes and give the same results; the tests run over both. Setting
`LOGSTORE_PURE=1` in the environment turns the C kernels off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from logstore.format.batches.area import Area, Gathered, Keys
from logstore.format.batches.record import Record

speed: ModuleType | None = None
if os.environ.get("LOGSTORE_PURE") != "1":
    with contextlib.suppress(ImportError):  # built without a compiler
        from logstore.format import _speed as speed

# Below this many records a loop is faster than setting up arrays.
ARRAYS_FROM = 96


class Kernels(NamedTuple):
    """`encode(records, now_ms)`; `records(area, base_offset, first, stop)`; `check(area)` for the lowest and
    highest timestamp; `gather(areas, first, stop, timestamps, keys, values, headers)`; `cut(records, limit)` for where runs
    of at most `limit` bytes end and what each comes to, or None if a record needs a closer look; `stamp(records, now_ms)`,
    which takes checked records, for the same with `now_ms` where they have no timestamp, and the newest of all.

    For compaction by key, of batches that cover so many offsets: `keys(areas, spans, factors)` for the hashes of all keys,
    each a sum of pieces times pairs of factors (`key_hash`); `pick(area, span, keep)` for the bytes of those records that
    have a 1 in `keep`, at least one, and their lowest and highest timestamp; `remember(table, one, two, offsets)` and
    `recall(table, one, two)` for a table of the last offset of each key (`OffsetMap`): how many keys were new, and the
    offsets, -1 of a key that is not in it."""

    name: str
    encode: Callable[[Sequence[Record], int], tuple[bytes, int, int, int]]
    records: Callable[[Area, int, int, int], list[Record]]
    check: Callable[[Area], tuple[int, int]]
    gather: Callable[[Iterable[Area], int, int, bool, bool, bool, bool], Gathered]
    cut: Callable[[list[Record], int], list[tuple[int, int]] | None]
    stamp: Callable[[list[Record], int], tuple[list[Record], int]]
    keys: Callable[[Sequence[Area], Sequence[int], Any], Keys]
    pick: Callable[[Area, int, Any], tuple[bytes, int, int]]
    remember: Callable[[Any, Any, Any, Any], int]
    recall: Callable[[Any, Any, Any], Any]


# The plain twins are imported when they are called: where the C kernels are in, a command that starts pays for no table.


def _encode(records: Sequence[Record], now_ms: int) -> tuple[bytes, int, int, int]:
    from logstore.format.plain.encode import encode

    return encode(records, now_ms)


def _records(area: Area, base_offset: int, first: int, stop: int) -> list[Record]:
    from logstore.format.plain import fields, walk

    read = walk.walk if area.records < ARRAYS_FROM else fields.records
    return read(area, base_offset, first, stop)


def _check(area: Area) -> tuple[int, int]:
    from logstore.format.plain import fields, walk

    if area.records >= ARRAYS_FROM:
        return fields.check(area)
    stamps = [record[3] for record in walk.walk(area, 0, 0, area.records)]
    return min(stamps), max(stamps)  # type: ignore[type-var, return-value]


def _gather(
    areas: Iterable[Area], first: int, stop: int, timestamps: bool, keys: bool, values: bool, headers: bool
) -> Gathered:
    from logstore.format.plain.gather import gather  # needs pyarrow, which the core can do without

    return gather(areas, first, stop, timestamps, keys, values, headers)


def _cut(records: list[Record], limit: int) -> None:
    """Python has to look at each record anyway: nothing would be gained by looking twice."""


def _stamp(records: list[Record], now_ms: int) -> tuple[list[Record], int]:
    stamps = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
    found = [
        record
        if record.timestamp_ms is not None
        else Record(record.value, record.key, record.headers, now_ms)
        for record in records
    ]
    return found, max(stamps)


def _keys(areas: Sequence[Area], spans: Sequence[int], factors: Any) -> Keys:
    from logstore.format.plain.keys import keys

    return keys(areas, spans, factors)


def _pick(area: Area, span: int, keep: Any) -> tuple[bytes, int, int]:
    from logstore.format.plain.keys import pick

    return pick(area, span, keep)


def _remember(table: Any, one: Any, two: Any, offsets: Any) -> int:
    from logstore.format.plain.keys import remember

    return remember(table, one, two, offsets)


def _recall(table: Any, one: Any, two: Any) -> Any:
    from logstore.format.plain.keys import recall

    return recall(table, one, two)


def _speed_encode(records: Sequence[Record], now_ms: int) -> tuple[bytes, int, int, int]:
    assert speed is not None
    try:
        encoded: tuple[bytes, int, int, int] = speed.encode(records, now_ms)
    except (TypeError, ValueError, OverflowError):
        return _encode(records, now_ms)  # refuses them too, and says which record it was
    return encoded


PLAIN = Kernels("plain", _encode, _records, _check, _gather, _cut, _stamp, _keys, _pick, _remember, _recall)
ALL: tuple[Kernels, ...] = (PLAIN,)
if speed is not None:
    ALL += (
        Kernels(
            "speed",
            _speed_encode,
            speed.records,
            speed.check,
            speed.gather,
            speed.cut,
            speed.stamp,
            speed.keys,
            speed.pick,
            speed.remember,
            speed.recall,
        ),
    )
active = ALL[-1]
