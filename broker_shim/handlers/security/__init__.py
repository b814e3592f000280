"""SaslHandshake and SaslAuthenticate, users and access rules over the wire.

May import: `auth`, `net`, `partitions` and `handlers.call`. Called by `broker_shim.broker`; `cluster` describes
what is set up here.
"""
