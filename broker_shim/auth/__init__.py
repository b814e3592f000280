"""Who a client is and what it may do: SASL, access rules and where they are stored.

May import: `logstore.layout`, `objects`, `errors`. Called by `handlers` and by `broker_shim.broker`.
"""
