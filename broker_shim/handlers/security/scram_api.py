"""Users over the wire: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554).

Users are in the file that `--sasl` names, or in the store; the file's count, and are changed there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.auth.sasl import ITERATIONS, SCRAM, Users, keys_of_salted
from broker_shim.auth.user_store import StoredUsers
from broker_shim.handlers.call import Call, Response
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError

MECHANISMS = dict(enumerate(SCRAM, 1))
ITERATIONS_MAX = 16_384
"""As in Kafka: every login costs as much."""
BYTES_MAX = 1024


class ScramApi:
    def __init__(self, users: Users, partitions: PartitionRegistry) -> None:
        self._users = users
        self._partitions = partitions

    async def describe(self, call: Call) -> Response:
        if not call.may(Operation.DESCRIBE, Resource.CLUSTER):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "error_message": None}
        try:
            await self._partitions.run(self._users.reload_all)
        except (LogStoreError, OSError, ValueError) as error:
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE, "error_message": str(error)}
        known = self._users.iterations()
        asked = call.request.users
        names = sorted(known) if not asked else [each.name for each in asked]
        times = Counter(names)
        results = []
        for name in dict.fromkeys(names):
            if times[name] > 1:
                code, why = Code.DUPLICATE_RESOURCE, f"{name} is in the request more than once"
            elif name not in known:
                code, why = Code.RESOURCE_NOT_FOUND, f"there is no user {name!r} with SCRAM keys"
            else:
                code, why = Code.NONE, None
            rows = [
                {"mechanism": number, "iterations": known[name][mechanism]}
                for number, mechanism in MECHANISMS.items()
                if code is Code.NONE and mechanism in known[name]
            ]
            results.append({"user": name, "error_code": code, "error_message": why, "credential_infos": rows})
        return {"error_code": Code.NONE, "error_message": None, "results": results}

    async def alter(self, call: Call) -> Response:
        request = call.request
        changes = [*(request.deletions or ()), *(request.upsertions or ())]
        refused = self._refusals(call, changes)
        outcome: dict[str, tuple[Code, str | None]] = dict.fromkeys(
            (c.name for c in changes), (Code.NONE, None)
        )
        outcome.update(refused)
        try:
            await self._partitions.run(self._users.reload_all)
            for name in outcome:
                if self._users.is_in_file(name) and name not in refused:
                    why = "the user is in the file that --sasl names: change it there"
                    outcome[name] = Code.UNACCEPTABLE_CREDENTIAL, why
            accepted = [each for each in changes if outcome[each.name][0] is Code.NONE]
            if accepted:
                await self._partitions.run(
                    self._users.change_stored, lambda now: _edited(now, accepted, outcome)
                )
        except (LogStoreError, OSError, ValueError) as error:
            for name, (code, _) in outcome.items():
                if code is Code.NONE:
                    outcome[name] = Code.COORDINATOR_NOT_AVAILABLE, str(error)
        rows = [
            {"user": name, "error_code": code, "error_message": why} for name, (code, why) in outcome.items()
        ]
        return {"results": rows}

    def _refusals(self, call: Call, changes: list[Any]) -> dict[str, tuple[Code, str | None]]:
        """What is wrong with what is asked for each user, whatever the users are."""
        found: dict[str, tuple[Code, str | None]] = {}
        if not call.may(Operation.ALTER, Resource.CLUSTER):
            return dict.fromkeys((each.name for each in changes), (Code.CLUSTER_AUTHORIZATION_FAILED, None))
        for (name, _), times in Counter((each.name, each.mechanism) for each in changes).items():
            if times > 1:
                found[name] = Code.DUPLICATE_RESOURCE, "a user's credential is in the request more than once"
        for each in changes:
            if each.name in found:
                continue
            if not each.name:
                found[each.name] = Code.UNACCEPTABLE_CREDENTIAL, "a user has a name"
            elif each.mechanism not in MECHANISMS:
                found[each.name] = Code.UNSUPPORTED_SASL_MECHANISM, f"the mechanisms are {', '.join(SCRAM)}"
            elif (why := _unacceptable(each)) is not None:
                found[each.name] = Code.UNACCEPTABLE_CREDENTIAL, why
        return found


def _unacceptable(asked: Any) -> str | None:
    if asked.get("iterations") is None:
        return None  # a deletion
    if not ITERATIONS <= asked.iterations <= ITERATIONS_MAX:
        return f"iterations are {ITERATIONS} to {ITERATIONS_MAX}"
    if not 0 < len(asked.salt) <= BYTES_MAX or not 0 < len(asked.salted_password) <= BYTES_MAX:
        return f"a salt and a salted password have 1 to {BYTES_MAX} bytes"
    return None


def _edited(now: StoredUsers, changes: list[Any], outcome: dict[str, tuple[Code, str | None]]) -> StoredUsers:
    """The users with these changes. What one of them cannot have is noted, and none of its user's are made."""
    users = {name: dict(keys) for name, keys in now.items()}
    outcome.update(
        dict.fromkeys((each.name for each in changes), (Code.NONE, None))
    )  # it may be the second try
    for each in changes:
        mechanism = MECHANISMS[each.mechanism]
        if each.get("iterations") is None and mechanism not in users.get(each.name, {}):
            outcome[each.name] = Code.RESOURCE_NOT_FOUND, f"{each.name} has no keys for {mechanism}"
    for each in changes:
        if outcome[each.name][0] is not Code.NONE:
            continue
        mechanism = MECHANISMS[each.mechanism]
        if each.get("iterations") is None:
            del users[each.name][mechanism]
        else:
            keys = keys_of_salted(mechanism, each.salted_password, each.salt, each.iterations)
            users.setdefault(each.name, {})[mechanism] = keys
    return {name: keys for name, keys in users.items() if keys}
