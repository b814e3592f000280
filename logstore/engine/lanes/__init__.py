"""Lanes: one chain of entries for all partitions that a process writes, and what each partition has in it.

A partition's own chain says, by a fence with a *claim*, that its next segments are parts of a lane's entries, from a place
on; a *seal* or a *fence* in the lane ends that, and the partition's own chain goes on behind the last part. The parts have
places in the partition's chain like any segment, so everybody above sees one chain.

May import: `host`, `layout`, `format`, `objects`, `errors`. Called by `chain`, which reads, and by `write`, which commits.
"""
