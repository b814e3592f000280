"""The partitions that this broker serves: who leads which, the log behind each, the queue of appends, idempotent
producers.

May import: `wire`, `net` (fairness), logstore's API. Called by `groups` and `handlers`.
"""
