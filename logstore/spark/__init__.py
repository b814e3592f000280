"""Spark reads and writes the log, with no broker in between: `spark.read.format("logstore")`. See docs/spark.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.spark.source import LogStoreDataSource

if TYPE_CHECKING:
    from logstore.spark.tables import describe, scan

__all__ = ["LogStoreDataSource", "describe", "scan"]


def __getattr__(name: str) -> Any:
    """The helpers are imported when they are used: Spark imports this package in many short-lived processes."""
    if name in ("describe", "scan"):
        from logstore.spark import tables

        return getattr(tables, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
