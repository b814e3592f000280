"""Batch and stream readers, filters that are pushed down, views.

May import: `arrow`, `spark.options`. Called by `spark.source` and `spark.tables`.
"""
