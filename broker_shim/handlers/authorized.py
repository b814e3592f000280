"""What a caller may do with a resource, as one number: a bit for each operation (KIP-430)."""

from __future__ import annotations

from broker_shim.auth.acls import CLUSTER_NAME, Operation, Resource
from broker_shim.handlers.call import Call

NOT_ASKED = -(2**31)
_OF: dict[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def operations(call: Call, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """Without access rules: all that a resource of its kind has."""
    return sum(1 << operation for operation in _OF[resource] if call.may(operation, resource, name))
