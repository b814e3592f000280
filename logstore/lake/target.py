"""From the text that names a table to the format that fills it."""

from __future__ import annotations

from logstore.lake.table_format import Bucket, TableFormat


def open_target(target: str, partition_by: Bucket | None = None) -> TableFormat:
    """`delta:URL`, or `iceberg:[CATALOG/]NAMESPACE.TABLE[?property=value&…]`."""
    kind, colon, rest = target.partition(":")
    if not colon or kind not in ("delta", "iceberg") or not rest:
        raise ValueError(
            f"target={target!r}: it is delta:URL, such as delta:s3://bucket/orders, or iceberg:CATALOG/NAMESPACE.TABLE"
        )
    try:
        if kind == "delta":
            from logstore.lake.delta import DeltaFormat

            return DeltaFormat(rest, partition_by)
        from logstore.lake.iceberg import IcebergFormat

        return IcebergFormat(rest, partition_by)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("deltalake", "pyiceberg", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            'tables need deltalake or pyiceberg: pip install "embedded-logstore[lake]"', name=error.name
        ) from error
