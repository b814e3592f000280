"""The log as columns, with no Spark: planning a read from manifests (`plan`), reading segments as Arrow batches (`scan`),
and a topic as a table, a stream or splits (`table`).

May import: the engine's `chain` and what is below it, `layout`, `upsert.changes`. Never `pyspark`. Needs the
extra `arrow`. Called by `logstore.spark`, and by `logstore.topic` when somebody asks for columns: not before, because
`import logstore` must not need `pyarrow`.
"""
