"""Produce and Fetch, which are packed by hand and wait on the log itself; ListOffsets, DeleteRecords and their like.

May import: `net`, `partitions` and `handlers.call`; no group and no transaction, whose say comes through `VerifyAt`.
Called by `broker_shim.broker`; `coordinators` takes `VerifyAt` from here.
"""
