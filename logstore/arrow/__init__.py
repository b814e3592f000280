"""The log as columns, with no Spark: planning a read from manifests (`plan`) and reading segments as Arrow batches
(`scan`).

May import: the engine's `chain` and what is below it, `layout`, `upsert.changes`. Never `pyspark`. Needs the
extra `arrow`. Called by `logstore.spark`.
"""
