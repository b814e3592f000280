"""Changing a topic for a client: may it, do it in a worker thread, learn what became of it, say what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.handlers.call import Call
from broker_shim.handlers.topics.topic_configs import InvalidConfig
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code, of_admin
from logstore.errors import LogStoreError, UnknownTopic
from logstore.store import Store
from logstore.topic import Topic

KEPT = "groups and their offsets live in this topic"
"""Why the internal one is neither deleted nor given a retention."""


class Refused(Exception):
    """The request cannot be carried out; nothing was changed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


FAILURES = (Refused, InvalidConfig, LogStoreError, OSError)


def failure(error: Exception) -> dict[str, Any]:
    """What an answer says of it."""
    if isinstance(error, Refused):
        code = error.code
    else:
        code = Code.INVALID_CONFIG if isinstance(error, InvalidConfig) else of_admin(error)
    return {"error_code": code, "error_message": str(error)}


async def carry_out(
    store: Store,
    partitions: PartitionRegistry,
    call: Call,
    name: str,
    operation: Operation,
    change: Callable[[Topic], None],
) -> dict[str, Any]:
    if not call.may(operation, Resource.TOPIC, name):
        return {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": None}
    try:
        await partitions.run(lambda: change(store.topic(name)))
        partitions.learn(await partitions.run(store.topic, name))
    except FAILURES as error:
        if isinstance(error, UnknownTopic):
            partitions.forget(name)
        return failure(error)
    return {"error_code": Code.NONE, "error_message": None}
