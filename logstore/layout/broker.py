"""The names of what a broker keeps beside the log. See `docs/format.md`.

    broker/node/‹id›                                    who serves this store, and since when
    broker/producers/‹topic›/‹incarnation›/‹partition›  a snapshot of the table of idempotent producers
    broker/acls                                         the access rules
    broker/users                                        users that were made with Kafka's calls: SCRAM keys
    topics/__consumer_offsets/…                         groups and committed offsets: a topic like any other
    topics/__transaction_state/…                        transactions, the same way

They are changed by compare-and-set; a store without a broker has none of them.
"""

from __future__ import annotations

from logstore.layout.paths import PartitionPaths

NODE_PREFIX = "broker/node/"
PRODUCERS_PREFIX = "broker/producers/"


def producers_prefix(topic: str) -> str:
    return f"{PRODUCERS_PREFIX}{topic}/"


def producers_key(paths: PartitionPaths) -> str:
    """The snapshot of one partition. It knows its transactions, too, and is there before the first of them is."""
    return f"{producers_prefix(paths.topic)}{paths.incarnation}/{paths.partition}"


ACLS_KEY = "broker/acls"
USERS_KEY = "broker/users"
INTERNAL_TOPIC = "__consumer_offsets"
"""Groups and committed offsets. Clients may read it; only the coordinator writes it."""
TRANSACTION_TOPIC = "__transaction_state"
"""Transactional ids and their transactions, likewise."""
INTERNAL_TOPICS = frozenset({INTERNAL_TOPIC, TRANSACTION_TOPIC})
