"""Consumer groups: a state machine that does no I/O, its records in the internal topic, and the coordinator that
carries effects out.

May import: `wire`, `partitions`. Called by `handlers`.
"""
