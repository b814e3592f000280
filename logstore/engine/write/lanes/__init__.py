"""The lanes of a process: how the exclusive writers of many partitions commit with one PUT for all.

`lanes` are those of an open store. A `lane` is what partitions and the store talk to. `lane_queue` says which of its writers
(`flushed`) are due, `entry_maker` makes an `upload` of what they have, `sending` sends those in `flight`, settles and acks
them, `meeting` is for another's entry in our place, and `teller` tells who has lost. `lane_book` is what the lane knows of
itself, `lane_life` which life of a named lane is ours, `lane_checkpoints` what it writes down and splits, `atomic_append`
what goes with one entry or not at all.

May import what `write` may. Called by `write`, `partition` and `store`.
"""
