"""Records for tests, and what is compared: which ones came back, with every field."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from logstore import Record
from logstore.arrow.plan.planner import plan_batch
from logstore.arrow.plan.request import ReadOptions
from logstore.arrow.plan.splits import Split
from logstore.arrow.scan.columns import BASE_COLUMNS, COLUMNS
from logstore.arrow.scan.split_scan import Scan
from logstore.objects import open_url
from logstore.objects.wrappers.slices import SlicedStore
from logstore.spark.options.read_options import read_options

START_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def numbered(first: int, stop: int, *, prefix: bytes = b"v") -> list[Record]:
    """Records whose value, key and timestamp say which they are."""
    return [Record(b"%s%d" % (prefix, n), b"k%d" % (n % 5), (), START_MS + n) for n in range(first, stop)]


def at(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)


def options(path: str, **given: object) -> ReadOptions:
    """Checked options of a batch read."""
    return read_options({"path": path} | {name: str(value) for name, value in given.items()}, streaming=False)


def plan(path: str, **given: object) -> list[Split]:
    return plan_batch(SlicedStore(open_url(path)), options(path, **given))


def read_all(
    path: str, splits: Iterable[Split], columns: tuple[str, ...] = BASE_COLUMNS, *, fail: bool = True
) -> list[dict[str, Any]]:
    """The rows of the splits, in order, as the tasks would give them."""
    scan = Scan(path, columns, fail)
    batches = [batch for split in splits for batch in scan.rows(split)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def rows(path: str, columns: tuple[str, ...] = BASE_COLUMNS, **given: object) -> list[dict[str, Any]]:
    """What a batch read with these options gives."""
    wanted = options(path, **given)
    splits = plan_batch(SlicedStore(open_url(path)), wanted)
    return read_all(path, splits, columns, fail=wanted.fail_on_data_loss)


def offsets(found: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found]


__all__ = [
    "BASE_COLUMNS",
    "COLUMNS",
    "START_MS",
    "at",
    "numbered",
    "offsets",
    "options",
    "plan",
    "read_all",
    "rows",
]
