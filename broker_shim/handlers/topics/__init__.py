"""Topics over the wire: creating, deleting and growing them, and what Kafka's topic settings mean here.

May import: `partitions`, `groups` (a deleted topic's offsets go) and `handlers.call`. Called by `broker_shim.broker` and
by `cluster`.
"""
