"""The row: that of Spark's Kafka source, in Spark's types and in Arrow's.

Spark takes Arrow batches only if their schema is exactly the one that it derives: same names, same order, every field
nullable, timestamps in microseconds UTC.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
BASE_COLUMNS = COLUMNS[:-1]
STORED_COLUMNS = frozenset(COLUMNS) - {"topic", "partition"}
"""The columns that come out of batches; the others are the same for a whole partition."""
INDEX_COLUMNS = frozenset({"topic", "partition", "offset"})
"""The columns that a segment's index alone can tell."""


@cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = (
        pa.binary(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
        pa.list_(pa.field("element", header)),
    )
    by_name = dict(zip(COLUMNS, kinds, strict=True))
    return pa.schema([(name, by_name[name]) for name in columns])
