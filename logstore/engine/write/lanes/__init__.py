"""The lanes of a process: how the exclusive writers of many partitions commit with one PUT for all.

`lanes` are those of an open store; a `lane` takes windows from its writers (`flushed`), makes uploads of them (`upload`) and
settles them in their order. `lane_book` is what it knows of itself, `lane_life` which life of a named lane is ours,
`lane_checkpoints` what it writes down and splits, `atomic_append` what goes with one entry or not at all.

May import what `write` may. Called by `write`, `partition` and `store`.
"""
