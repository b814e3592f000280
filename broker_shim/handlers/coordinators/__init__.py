"""What coordinators answer: groups of both protocols, committed offsets, transactions.

May import: `groups`, `transactions`, `partitions`, `handlers.records` and `handlers.call`. Called by `broker_shim.broker`.
"""
