"""A topic as a table: durable records go into Delta Lake or Iceberg, each exactly once, and a union read adds what
is not there yet.

`materializer` reads the log and commits; `values` makes typed columns of JSON, Avro and Protobuf; `parquet_files` is
the one writer of files; `delta` and `iceberg` are two small committers behind `table_format`. `registration` tells
retention to wait. `union` reads table and log as one.

May import: `arrow`, `layout`, `topic` and what lies below. Never `pyspark`. Needs the extra `lake`. Called by users,
`logstore.cli` and `logstore.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.errors import needs

if TYPE_CHECKING:
    from logstore.lake.materializer import Materializer, Progress
    from logstore.lake.registration import Registration, forget, registered
    from logstore.lake.union import table
    from logstore.lake.values.avro import Avro
    from logstore.lake.values.protobuf import Protobuf

__all__ = ["Avro", "Materializer", "Progress", "Protobuf", "Registration", "forget", "registered", "table"]

_HOMES = {
    "Avro": "values.avro",
    "Protobuf": "values.protobuf",
    "Materializer": "materializer",
    "Progress": "materializer",
    "Registration": "registration",
    "forget": "registration",
    "registered": "registration",
    "table": "union",
}


def __getattr__(name: str) -> Any:
    """Imported when they are used: listing registrations needs no library of tables."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    with needs("lake"):
        return getattr(import_module(f"logstore.lake.{_HOMES[name]}"), name)
