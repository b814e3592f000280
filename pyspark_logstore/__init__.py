"""Spark looks for installed modules named `pyspark_…` and registers their `DefaultSource`: nothing else is needed.

One of those modules that cannot be imported would hide every data source from Spark, so this one never fails: where the
source cannot work, because this Spark is too old for it, there is simply no `DefaultSource` here.
"""

from contextlib import suppress

with suppress(ImportError):
    from logstore.spark.source import LogStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
