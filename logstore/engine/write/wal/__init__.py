"""The WAL on the local disk: one for all partitions of an open store, so `local` acks of all of them share an fsync.

`wal` is the folder and who has what in it, `wal_files` its files, `recovery` what of them is still to be stored,
`former_files` the same of files that older releases wrote, `local_sync` the task that writes and acks.

May import what `write` may. Called by `write`, `partition` and `store`.
"""
