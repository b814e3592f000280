"""What runs beside the writer and may be repeated, interrupted and run twice: checkpoints of the manifest,
compaction, retention, removal of topics, garbage collection.

May import: `memory` and below, and `layout`; no writer. Called by `partition`, by `logstore.store` and by the
commands.
"""
