"""What clients and tools ask about the whole: metadata, settings of topics and brokers, replicas, disks, quotas.

May import: `partitions`, `handlers.topics`, `handlers.security` and `handlers.call`. Called by `broker_shim.broker`.
"""
