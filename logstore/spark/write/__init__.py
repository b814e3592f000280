"""Tasks stage batches, the driver publishes them once: rows, staging, the ledger of transactions, publishing.

May import: `arrow.plan`, the engine's `shared`, `spark.options`. Called by `spark.source`.
"""
