"""What is in the object store: the chain of segments and its one commit, the manifest, and reading segments back,
checked and cached.

May import: `lanes`, `host`, `layout`, `format`, `objects`, `errors`. Nothing here knows whether a partition is open, or
by whom. May be called by every other room, and by `logstore.arrow` and `logstore.spark`, which read segments
with no open partition.
"""
