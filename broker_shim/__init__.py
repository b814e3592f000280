"""broker_shim: the Kafka wire protocol in front of a logstore.

Every Kafka client works unchanged. The shim keeps no data of its own: records live in partition logs,
committed offsets and groups in an internal topic of the same store, and two brokers agree on who owns a
partition by the log's own fence.
"""
