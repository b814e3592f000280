"""Spark reads and writes the log, with no broker in between: `spark.read.format("logstore")`. See docs/spark.md."""

from logstore.spark.source import LogStoreDataSource

__all__ = ["LogStoreDataSource"]
