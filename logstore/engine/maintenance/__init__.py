"""What runs beside the writer and may be repeated, interrupted and run twice: checkpoints of the manifest,
compaction, retention, and when garbage is collected.

May import: `garbage`, `memory` and below, and `layout`; no writer. Called by `partition`, by `logstore.store` and by the
commands.
"""
