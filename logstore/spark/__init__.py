"""Spark reads and writes the log, with no broker in between: `spark.read.format("logstore")`. See docs/spark.md.

Rooms: `options` (what a query says), `read` and `write` (batch and stream), and at the top what Spark loads.

May import: `arrow`, `lake`, `layout` and, to commit, `engine.shared` and what lies below. Called by Spark, through
`pyspark_logstore`, and by users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.errors import needs

with needs("spark"):
    from logstore.spark.source import LogStoreDataSource

if TYPE_CHECKING:
    from logstore.spark.lag_report import Lag, LagListener, lag
    from logstore.spark.tables import describe, scan
    from logstore.spark.union import table

__all__ = ["Lag", "LagListener", "LogStoreDataSource", "describe", "lag", "scan", "table"]


_HOMES = {
    "describe": "tables",
    "scan": "tables",
    "Lag": "lag_report",
    "LagListener": "lag_report",
    "lag": "lag_report",
    "table": "union",
}


def __getattr__(name: str) -> Any:
    """The helpers are imported when they are used: Spark imports this package in many short-lived processes."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"logstore.spark.{_HOMES[name]}"), name)
