"""Access rules as a client writes them."""

from __future__ import annotations

from typing import Any

from broker_shim.auth.acls import Acl, Pattern, Permission, Resource


def acl(operation: int, *, name: str = "t", permission: int = Permission.ALLOW, **changes: Any) -> Acl:
    base = Acl(Resource.TOPIC, name, Pattern.LITERAL, "User:a", "*", operation, permission)
    return base._replace(**changes)
