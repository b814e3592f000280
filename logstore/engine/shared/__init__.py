"""The shared writer: many independent producers on one partition. The loser of a commit race rebases and tries
again; by `producer_table` a retried append is stored once.

May import: `write` and below. Called by `replicated` (the cursor), by `partition`, and by `logstore.spark`,
which commits in the same way.
"""
