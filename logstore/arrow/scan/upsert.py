"""`view=upsert`: the changelog of a `logstore.upsert.UpsertView`, one row for each change of a key.

key        binary
old        binary    what the change takes back; null if the key had no value
value      binary    the key's value from `time` on; null if it has none
time       bigint
topic, partition, offset    where the change is
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from logstore.arrow.plan.splits import Split
from logstore.arrow.scan.split_scan import Scan
from logstore.upsert.changes import decode_change

if TYPE_CHECKING:
    import pyarrow as pa

STORED = ("key", "value", "topic", "partition", "offset")
UPSERT_TYPES = {
    "key": "binary",
    "old": "binary",
    "value": "binary",
    "time": "long",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
}


@cache
def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"binary": pa.binary(), "long": pa.int64(), "string": pa.string(), "integer": pa.int32()}
    return pa.schema([(name, kinds[kind]) for name, kind in UPSERT_TYPES.items()])


@dataclass(frozen=True, slots=True)
class UpsertScan:
    """How to read splits of a changelog; small and picklable."""

    scan: Scan

    def rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        for batch in self.scan.rows(split):
            yield _changes(batch)


def _changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    olds: list[bytes | None] = []
    news: list[bytes | None] = []
    times: list[int] = []
    for row, value in enumerate(batch.column("value").to_pylist()):
        try:
            old, new, time = decode_change(value)
        except ValueError as error:
            where = f"{batch.column('topic')[row]}/{batch.column('partition')[row]}"
            raise ValueError(
                f"view=upsert reads what a logstore.upsert.UpsertView wrote, and record {batch.column('offset')[row]} of "
                f"{where} is none of that ({error}). Leave the option view out to read the topic's records"
            ) from None
        olds.append(old)
        news.append(new)
        times.append(time)
    return pa.RecordBatch.from_arrays(
        [
            batch.column("key"),
            pa.array(olds, pa.binary()),
            pa.array(news, pa.binary()),
            pa.array(times, pa.int64()),
            *(batch.column(name) for name in ("topic", "partition", "offset")),
        ],
        schema=_arrow_schema(),
    )
