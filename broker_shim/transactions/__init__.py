"""Transactions: a state machine that does no I/O, its records in the internal topic, the coordinator that carries effects
out, and the markers that tell each partition how a transaction ended.

May import: `wire`, `net`, `partitions`, `groups` (offsets are part of transactions). Called by `handlers`.
"""
