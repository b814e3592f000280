"""The row in Spark's types: that of Spark's Kafka source, and that of `view=upsert`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from logstore.arrow.scan.columns import COLUMNS
from logstore.arrow.scan.upsert import UPSERT_TYPES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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


def upsert_schema() -> StructType:
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind in UPSERT_TYPES.items():
        schema.add(name, kind)
    return schema
