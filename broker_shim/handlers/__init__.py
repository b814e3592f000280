"""One module for each family of requests: what is checked, what is asked of which room, what is answered.

May import: every room of the broker. Called by `broker_shim.broker` alone.
"""
