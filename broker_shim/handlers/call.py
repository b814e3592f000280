"""One control-plane request on its way through a handler: who asks, what, and what they may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker_shim.auth.acls import ANONYMOUS, CLUSTER_NAME, Authorizer, Operation, Resource
from broker_shim.net.connection import Connection
from broker_shim.wire.messages import Message
from broker_shim.wire.primitives import RequestHeader

Response = Mapping[str, Any]
Handler = Callable[["Call"], Awaitable[Response]]


@dataclass(slots=True)
class Call:
    connection: Connection
    header: RequestHeader
    request: Message
    authorizer: Authorizer

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        """What the client calls itself. For people to read: nothing is decided by it."""
        return self.header.client_id or ""

    @property
    def host(self) -> str:
        return self.connection.peer

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        return allowed(self.authorizer, self.connection, operation, resource, name)

    def may_create(self, topic: str) -> bool:
        return self.may(Operation.CREATE, Resource.CLUSTER) or self.may(
            Operation.CREATE, Resource.TOPIC, topic
        )


def allowed(
    authorizer: Authorizer, connection: Connection, operation: Operation, resource: Resource, name: str
) -> bool:
    principal = connection.principal or ANONYMOUS
    return authorizer.allows(principal, connection.peer, operation, resource, name)
