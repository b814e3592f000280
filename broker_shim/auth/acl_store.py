"""Where access rules live."""

from __future__ import annotations

from typing import Any

from broker_shim.auth.acls import Acl
from broker_shim.auth.shared_object import SharedObject
from logstore.layout.broker import ACLS_KEY
from logstore.objects import ObjectStore


class AclStore(SharedObject[frozenset[Acl]]):
    """(Before, the object was the list of rules alone.)"""

    key, what = ACLS_KEY, "access rules"

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, frozenset())

    def _parsed(self, content: Any) -> frozenset[Acl]:
        rules = content["rules"] if isinstance(content, dict) else content
        return frozenset(Acl(*rule) for rule in rules)

    def _shown(self, value: frozenset[Acl]) -> dict[str, Any]:
        return {"rules": sorted(value)}
