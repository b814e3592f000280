"""Access rules over the wire: DescribeAcls, CreateAcls, DeleteAcls."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from broker_shim.auth.acl_store import AclStore
from broker_shim.auth.acls import Acl, AclFilter, Authorizer, Operation, Pattern, Resource
from broker_shim.handlers.call import Call, Response
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code, of_admin
from logstore.errors import LogStoreError


class AclApi:
    def __init__(self, rules: AclStore, authorizer: Authorizer, partitions: PartitionRegistry) -> None:
        self._rules = rules
        self._authorizer = authorizer
        self._partitions = partitions

    def _refuse(self, call: Call, operation: Operation) -> dict[str, Any] | None:
        if not self._authorizer.enabled:
            return {
                "error_code": Code.SECURITY_DISABLED,
                "error_message": "start the broker with --acls true",
            }
        if not call.may(operation, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": None}
        return None

    async def reload(self) -> None:
        self._authorizer.rules = await self._partitions.run(self._rules.load)

    async def describe(self, call: Call) -> Response:
        refusal = self._refuse(call, Operation.DESCRIBE)
        if refusal is not None:
            return refusal
        wanted = _filter(call.request)
        found = sorted(acl for acl in self._authorizer.rules if wanted.matches(acl))
        resources = []
        for (resource, name, pattern), acls in groupby(found, key=lambda acl: acl[:3]):
            rows = [
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission,
                }
                for acl in acls
            ]
            resources.append(
                {"resource_type": resource, "resource_name": name, "pattern_type": pattern, "acls": rows}
            )
        return {"error_code": Code.NONE, "error_message": None, "resources": resources}

    async def create(self, call: Call) -> Response:
        asked = call.request.creations or ()
        refusal = self._refuse(call, Operation.ALTER)
        if refusal is not None:
            return {"results": [refusal for _ in asked]}
        rules = [_acl(each) for each in asked]
        good = {acl for acl in rules if acl.problem() is None}
        failure: dict[str, Any] | None = None
        try:
            self._authorizer.rules = await self._partitions.run(
                self._rules.change, lambda known: known | good
            )
        except (LogStoreError, OSError) as error:
            failure = {"error_code": of_admin(error), "error_message": str(error)}
        return {"results": [_created(acl, failure) for acl in rules]}

    async def delete(self, call: Call) -> Response:
        asked = call.request.filters or ()
        refusal = self._refuse(call, Operation.ALTER)
        if refusal is not None:
            return {"filter_results": [refusal for _ in asked]}
        filters = [_filter(each) for each in asked]
        gone: set[Acl] = set()

        def edit(known: frozenset[Acl]) -> frozenset[Acl]:
            gone.clear()
            gone.update(acl for acl in known if any(each.matches(acl) for each in filters))
            return known - gone

        try:
            self._authorizer.rules = await self._partitions.run(self._rules.change, edit)
        except (LogStoreError, OSError) as error:
            failure = {"error_code": of_admin(error), "error_message": str(error)}
            return {"filter_results": [failure for _ in asked]}
        return {
            "filter_results": [
                {
                    "error_code": Code.NONE,
                    "error_message": None,
                    "matching_acls": [_matching(acl) for acl in sorted(gone) if each.matches(acl)],
                }
                for each in filters
            ]
        }


def _filter(request: Any) -> AclFilter:
    return AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.get("pattern_type_filter", Pattern.LITERAL),
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )


def _acl(each: Any) -> Acl:
    return Acl(
        each.resource_type,
        each.resource_name,
        each.get("resource_pattern_type", Pattern.LITERAL),
        each.principal,
        each.host,
        each.operation,
        each.permission_type,
    )


def _created(acl: Acl, failure: dict[str, Any] | None) -> dict[str, Any]:
    problem = acl.problem()
    if problem is not None:
        return {"error_code": Code.INVALID_REQUEST, "error_message": problem}
    return failure or {"error_code": Code.NONE, "error_message": None}


def _matching(acl: Acl) -> dict[str, Any]:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "resource_type": acl.resource,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
