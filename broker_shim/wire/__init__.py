"""Kafka's protocol in bytes: API versions, error codes, primitive types, messages. The one folder that knows it.

May import: `logstore.errors`. May be called by every other room of the broker.
"""
