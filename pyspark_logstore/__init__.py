"""Spark looks for installed modules named `pyspark_…` and registers their `DefaultSource`: nothing else is needed."""

from logstore.spark.source import LogStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
