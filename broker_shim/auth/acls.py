"""Access rules: who may do what to which resource. Pure; `acl_store` keeps them.

Kafka's semantics: a DENY that matches beats every ALLOW; without an ALLOW that matches the answer is no. A
right to read, write, delete or alter includes the right to describe. Principals come from authentication
only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Resource(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
EVERYONE = "User:*"
ANONYMOUS = "User:ANONYMOUS"

_INCLUDED_IN: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    """One rule."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def covers(self, resource: int, name: str) -> bool:
        if self.resource != resource:
            return False
        if self.pattern == Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def problem(self) -> str | None:
        """Why this is no rule, or None."""
        if self.resource not in (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID):
            return f"resource type {self.resource} is not one that rules can be made for"
        if self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            return f"pattern type {self.pattern} is neither LITERAL nor PREFIXED"
        if self.operation not in set(Operation) - {Operation.ANY}:
            return f"operation {self.operation} is not known"
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            return f"permission {self.permission} is neither DENY nor ALLOW"
        if not self.principal.startswith("User:"):
            return f"principal {self.principal!r} does not begin with 'User:'"
        if self.resource == Resource.CLUSTER and self.name != CLUSTER_NAME:
            return f"the cluster resource is called {CLUSTER_NAME!r}"
        return None


class AclFilter(NamedTuple):
    """Which rules DescribeAcls and DeleteAcls mean. None and ANY match everything."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern == Pattern.MATCH:
            return self.name is None or acl.covers(acl.resource, self.name)
        return self.pattern in (Pattern.ANY, acl.pattern) and self.name in (None, acl.name)


class Authorizer:
    """Answers from the rules it was given last. `enabled=False` allows everything."""

    def __init__(self, *, enabled: bool, super_users: Iterable[str] = ()) -> None:
        self.enabled = enabled
        self._super_users = frozenset(super_users)
        self.rules: frozenset[Acl] = frozenset()

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        if not self.enabled or principal in self._super_users:
            return True
        allowed = False
        for acl in self._for(principal, host):
            if not acl.covers(resource, name):
                continue
            if acl.permission == Permission.DENY:
                if acl.operation in (Operation.ALL, operation):
                    return False
            elif acl.operation in (Operation.ALL, operation) or acl.operation in _INCLUDED_IN.get(
                operation, ()
            ):
                allowed = True
        return allowed

    def allows_anywhere(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Is there any resource of the kind on which this is allowed? (InitProducerId asks for topics.)"""
        if not self.enabled or principal in self._super_users:
            return True
        return any(
            acl.permission == Permission.ALLOW
            and acl.resource == resource
            and acl.operation in (Operation.ALL, operation)
            and self.allows(principal, host, operation, resource, acl.name)
            for acl in self._for(principal, host)
        )

    def _for(self, principal: str, host: str) -> Iterable[Acl]:
        return (
            acl
            for acl in self.rules
            if acl.principal in (principal, EVERYONE) and acl.host in (host, WILDCARD)
        )
