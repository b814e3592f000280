"""The row: that of Spark's Kafka source, in Spark's types and in Arrow's.

Spark takes Arrow batches only if their schema is exactly the one that it derives: same names, same order, every field
nullable, timestamps in microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
BASE_COLUMNS = COLUMNS[:-1]
STORED_COLUMNS = frozenset(COLUMNS) - {"topic", "partition"}
"""The columns that come out of batches; the others are the same for a whole partition."""
INDEX_COLUMNS = frozenset({"topic", "partition", "offset"})
"""The columns that a segment's index alone can tell."""


@cache
def _spark_types() -> dict[str, Any]:
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    kinds = (
        types.BinaryType(),
        types.BinaryType(),
        types.StringType(),
        types.IntegerType(),
        types.LongType(),
        types.TimestampType(),
        types.IntegerType(),
        types.ArrayType(header),
    )
    return dict(zip(COLUMNS, kinds, strict=True))


def spark_schema(columns: Sequence[str]) -> StructType:
    from pyspark.sql.types import StructType

    schema = StructType()
    for name in columns:
        schema.add(name, _spark_types()[name])
    return schema


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for, which must be some of ours, with our types."""
    if not schema.names or len(set(schema.names)) != len(schema.names):
        raise ValueError(
            f"the schema is {schema.simpleString()}: name each column once, of {', '.join(COLUMNS)}"
        )
    for field in schema.fields:
        if _spark_types().get(field.name) != field.dataType:
            raise ValueError(
                f"column {field.name} {field.dataType.simpleString()} is not one of "
                f"{spark_schema(COLUMNS).simpleString()}"
            )
        if not field.nullable:
            raise ValueError(f"column {field.name} may be null: leave out NOT NULL in the schema")
    return tuple(schema.names)


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
