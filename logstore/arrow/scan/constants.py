"""The columns that are the same for every record of a partition: its topic and its number."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from logstore.arrow.scan.batch_joiner import CHUNK_ROWS
from logstore.arrow.scan.columns import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


def with_constants(
    stored: pa.RecordBatch, topic: str, partition: int, columns: tuple[str, ...]
) -> pa.RecordBatch:
    """`stored` with topic and partition beside it, in the order asked for."""
    import pyarrow as pa

    arrays = [
        _repeated(topic if name == "topic" else partition, stored.num_rows)
        if name in ("topic", "partition")
        else stored.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _repeated(value: str | int, rows: int) -> Any:
    return _many(value, max(rows, CHUNK_ROWS)).slice(0, rows)


@lru_cache(maxsize=64)
def _many(value: str | int, rows: int) -> Any:
    import pyarrow as pa

    return pa.array([value] * rows, pa.string() if isinstance(value, str) else pa.int32())
