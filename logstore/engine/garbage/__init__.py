"""What may be deleted, and what must stay in its place: objects that nothing names, partitions of deleted topics, what Spark
jobs left behind.

May import: `chain` and below, and `layout`. Called by `maintenance`, which says when. Every call may be repeated,
interrupted and run twice.
"""
