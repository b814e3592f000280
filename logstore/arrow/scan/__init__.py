"""From a split to Arrow batches: fetch blocks ahead, check and decode them, add the columns that a partition has
in common.

May import: `arrow.plan` and below. Called by `arrow.table`, and by `logstore.spark` on executors.
"""
