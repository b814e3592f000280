"""broker_shim: the Kafka wire protocol in front of a logstore.

Kafka clients work unchanged: docs/broker.md names those that were run. The shim keeps no data of its own: records live in
partition logs, committed offsets and groups in an internal topic of the same store, and two brokers agree on who owns a
partition by the log's own fence.

May import: `logstore`. Called by `logstore.testing.pytest_plugin` alone.
"""
