"""Requests: what is checked, what is asked of which room, what is answered. A room for each family of them.

* `call`, `authorized`: one request on its way, and what its sender may do
* `security`: who is there, and who may do what
* `records`: the data path, Produce and Fetch, and questions about offsets
* `topics`: creating, deleting and growing topics; Kafka's settings of a topic
* `cluster`: which brokers there are, who leads what, how all of it is set up
* `coordinators`: groups, committed offsets, transactions

May import: every room of the broker below. Called by `broker_shim.broker` alone.
"""
