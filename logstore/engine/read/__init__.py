"""Reading and following: one consistent look at an offset, read-ahead of scans, and polling the chain for other
writers' segments.

May import: `memory` and below. Never fences, never needs a writer. Called by `partition`.
"""
