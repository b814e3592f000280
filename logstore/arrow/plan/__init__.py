"""From a request to splits: which partitions, which offsets, which segments, cut into tasks. Reads manifests only.

May import: the engine below `partition`, `layout`, `objects`. Called by `arrow.scan`, `arrow.table` and `logstore.spark`.
"""
