"""From the text that names a table to the format that fills it."""

from __future__ import annotations

from logstore.errors import needs
from logstore.lake.table_format import Bucket, TableFormat


def open_target(target: str, partition_by: Bucket | None = None) -> TableFormat:
    """`delta:URL`, or `iceberg:[CATALOG/]NAMESPACE.TABLE[?property=value&…]`."""
    kind, colon, rest = target.partition(":")
    if not colon or kind not in ("delta", "iceberg") or not rest:
        raise ValueError(
            f"target={target!r}: it is delta:URL, such as delta:s3://bucket/orders, or iceberg:CATALOG/NAMESPACE.TABLE"
        )
    if kind == "delta":
        with needs("lake"):
            from logstore.lake.delta import DeltaFormat
        return DeltaFormat(rest, partition_by)
    with needs("lake"):
        from logstore.lake.iceberg import IcebergFormat
    return IcebergFormat(rest, partition_by)
