"""Group membership over the wire: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what
admins ask.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.groups.coordinator import Coordinator
from broker_shim.groups.group import Group, State
from broker_shim.groups.group_shard import GroupShard
from broker_shim.groups.member import Joined, JoinRequest, Synced
from broker_shim.handlers.authorized import operations
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.coordinators.classic_member_api import ClassicMemberApi
from broker_shim.net.fairness import yielding
from broker_shim.partitions.cluster import NOBODY, Cluster
from broker_shim.partitions.shards import Shards
from broker_shim.partitions.state_log import outcome
from broker_shim.wire.codes import Code
from logstore.errors import LogStoreError

GROUP_KEY, TRANSACTION_KEY = 0, 1
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"


@dataclass(eq=False)
class GroupApi:
    """`_transactions`: where transactional ids live. `_mixed`: for groups of the consumer protocol."""

    _coordinator: Coordinator
    _transactions: Shards[Any]
    _cluster: Cluster
    _mixed: ClassicMemberApi
    _loop: asyncio.AbstractEventLoop

    # ── finding the coordinator ──────────────────────────────────────────────────────────────────────────

    async def find_coordinator(self, call: Call) -> Response:
        request = call.request
        key_type = request.get("key_type", GROUP_KEY)
        if call.version >= 4:
            keys = request.coordinator_keys or []
            return {"coordinators": [await self._find(call, key, key_type) async for key in yielding(keys)]}
        return await self._find(call, request.key, key_type)

    async def _find(self, call: Call, key: str, key_type: int) -> Response:
        nowhere = {"key": key, "node_id": -1, "host": "", "port": -1}
        if key_type == TRANSACTION_KEY:
            if not call.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key):
                return {**nowhere, "error_code": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        elif not call.may(Operation.DESCRIBE, Resource.GROUP, key):
            return {**nowhere, "error_code": Code.GROUP_AUTHORIZATION_FAILED}
        if key_type not in (GROUP_KEY, TRANSACTION_KEY) or (key_type == TRANSACTION_KEY and not key):
            return {**nowhere, "error_code": Code.INVALID_REQUEST}
        if not key:
            return {**nowhere, "error_code": Code.INVALID_GROUP_ID}
        shards = self._transactions if key_type == TRANSACTION_KEY else self._coordinator.shards
        try:
            index = await shards.place(key)
        except (LogStoreError, OSError) as error:
            return {**nowhere, "error_code": Code.COORDINATOR_NOT_AVAILABLE, "error_message": str(error)}
        leader = self._cluster.leader(shards.topic, index)
        node = self._cluster.node(leader) if leader != NOBODY else None
        if node is None:
            return {**nowhere, "error_code": Code.COORDINATOR_NOT_AVAILABLE}
        return {"key": key, "node_id": node.node_id, "host": node.host, "port": node.port, "error_code": 0}

    async def _shard(
        self, call: Call, group: str, operation: Operation = Operation.READ
    ) -> GroupShard | Code:
        return await shard_for(self._coordinator, call, group, operation)

    # ── membership ───────────────────────────────────────────────────────────────────────────────────────

    async def join(self, call: Call) -> Response:
        request = call.request
        shard = await self._shard(call, request.group_id)
        if isinstance(shard, Code):
            return _joined(Joined(shard, request.member_id), call.version)
        session_ms = request.session_timeout
        rebalance_ms = request.get("rebalance_timeout", -1)
        join = JoinRequest(
            request.member_id,
            request.get("group_instance_id"),
            call.client_id,
            call.host,
            session_ms / 1000,
            (rebalance_ms if rebalance_ms >= 0 else session_ms) / 1000,
            request.protocol_type,
            tuple((each.name, each.metadata) for each in request.protocols or ()),
            id_required=call.version >= 4,
            can_skip_assignment=call.version >= 9,
        )
        if shard.mixed(request.group_id) is not None:
            return _joined(await self._mixed.join(shard, request.group_id, join), call.version)
        group = shard.classic(request.group_id)
        waiting: asyncio.Future[Joined] = self._loop.create_future()
        shard.carry_out(group, group.join(join, waiting, self._loop.time()))
        return _joined(await waiting, call.version)

    async def sync(self, call: Call) -> Response:
        request = call.request
        shard = await self._shard(call, request.group_id)
        if isinstance(shard, Code):
            return _synced(Synced(shard))
        protocol = request.get("protocol_type"), request.get("protocol_name")
        who = request.member_id, request.get("group_instance_id"), request.generation_id
        if shard.mixed(request.group_id) is not None:
            return _synced(await self._mixed.sync(shard, request.group_id, *who, protocol))
        group = shard.groups.get(request.group_id)
        if group is None:
            return _synced(Synced(Code.UNKNOWN_MEMBER_ID))
        waiting: asyncio.Future[Synced] = self._loop.create_future()
        effects = group.sync(
            *who,
            protocol,
            {each.member_id: each.assignment for each in request.assignments or ()},
            waiting,
            self._loop.time(),
        )
        shard.carry_out(group, effects)
        return _synced(await waiting)

    async def heartbeat(self, call: Call) -> Response:
        request = call.request
        shard = await self._shard(call, request.group_id)
        if isinstance(shard, Code):
            return {"error_code": shard}
        who = request.member_id, request.get("group_instance_id"), request.generation_id
        if shard.mixed(request.group_id) is not None:
            return {"error_code": await self._mixed.heartbeat(shard, request.group_id, *who)}
        group = shard.groups.get(request.group_id)
        if group is None:
            return {"error_code": Code.UNKNOWN_MEMBER_ID}
        return {"error_code": group.heartbeat(*who, self._loop.time())}

    async def leave(self, call: Call) -> Response:
        request = call.request
        shard = await self._shard(call, request.group_id)
        if isinstance(shard, Code):
            return {"error_code": shard}
        leaving = (
            [(each.member_id, each.get("group_instance_id")) for each in request.members or ()]
            if call.version >= 3
            else [(request.member_id, None)]
        )
        outcomes = []
        for member_id, instance_id in leaving:
            code, group = Code.UNKNOWN_MEMBER_ID, shard.groups.get(request.group_id)
            if shard.mixed(request.group_id) is not None:
                code = await self._mixed.leave(shard, request.group_id, member_id, instance_id)
            elif group is not None:
                code, effects = group.leave(member_id, instance_id, self._loop.time())
                shard.carry_out(group, effects)
            outcomes.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        # Who left is gone for good: otherwise a crash now would bring it back, and the next member would wait for it.
        await shard.log.settled()
        if call.version < 3:
            return {"error_code": outcomes[0]["error_code"]}
        return {"error_code": Code.NONE, "members": outcomes}

    # ── what admins ask ──────────────────────────────────────────────────────────────────────────────────

    async def list_groups(self, call: Call) -> Response:
        try:
            shards = await self._coordinator.all_shards()
        except TimeoutError:
            return {"error_code": Code.COORDINATOR_LOAD_IN_PROGRESS}
        except (LogStoreError, OSError):
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE}
        every = call.may(Operation.DESCRIBE, Resource.CLUSTER)  # as in Kafka: who may describe that sees all
        states = call.request.get("states_filter") or ()
        types = {kind.lower() for kind in call.request.get("types_filter") or ()}
        found = []
        for shard in shards:
            for name in sorted(shard.names()):
                kind, protocol_type, state = _listed(shard, name)
                if (
                    (not states or state in states)
                    and (not types or kind in types)
                    and (every or call.may(Operation.DESCRIBE, Resource.GROUP, name))
                ):
                    row = {"group_id": name, "protocol_type": protocol_type, "group_state": state}
                    found.append({**row, "group_type": kind})
        return {"error_code": Code.NONE, "groups": found}

    async def describe_groups(self, call: Call) -> Response:
        groups = [await self._describe(call, name) async for name in yielding(call.request.groups or ())]
        if call.request.get("include_authorized_operations", False):
            for each in groups:
                if each["error_code"] is Code.NONE:
                    each["authorized_operations"] = operations(call, Resource.GROUP, each["group_id"])
        return {"groups": groups}

    async def _describe(self, call: Call, name: str) -> dict[str, Any]:
        shard = await self._shard(call, name, Operation.DESCRIBE)
        if isinstance(shard, Code):
            return {"error_code": shard, "group_id": name, "group_state": ""}
        group = shard.groups.get(name)
        if group is None:
            is_consumer = (
                name in shard.consumers.groups
            )  # of the other protocol: for this API it is not there
            state = State.EMPTY if name in shard.offsets and not is_consumer else State.DEAD
            return {"error_code": Code.NONE, "group_id": name, "group_state": state.value}
        return {
            "error_code": Code.NONE,
            "group_id": name,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": group.protocol or "",
            "members": _members(group),
        }

    async def delete_groups(self, call: Call) -> Response:
        names = call.request.groups_names or ()
        return {
            "results": [
                {"group_id": name, "error_code": await self._delete(call, name)}
                async for name in yielding(names)
            ]
        }

    async def _delete(self, call: Call, name: str) -> Code:
        shard = await self._shard(call, name, Operation.DELETE)
        if isinstance(shard, Code):
            return shard
        if name not in shard.names():
            return Code.GROUP_ID_NOT_FOUND
        if not shard.is_empty(name):
            return Code.NON_EMPTY_GROUP
        return await outcome(partial(shard.delete_group, name))


def _listed(shard: GroupShard, name: str) -> tuple[str, str, str]:
    """The type of a group, its protocol type and its state, as ListGroups says them."""
    consumer = shard.consumers.groups.get(name)
    if consumer is not None:
        return CONSUMER_TYPE, CONSUMER_TYPE, consumer.phase.value
    group = shard.groups.get(name)
    if group is None:
        return CLASSIC_TYPE, "", State.EMPTY.value
    return CLASSIC_TYPE, group.protocol_type or "", group.state.value


async def shard_for(
    coordinator: Coordinator, call: Call, group: str, operation: Operation
) -> GroupShard | Code:
    """Where the group lives, if it does here and this caller may do that to it."""
    if not call.may(operation, Resource.GROUP, group):
        return Code.GROUP_AUTHORIZATION_FAILED
    return await coordinator.shard(group)


def _joined(answer: Joined, version: int) -> Response:
    # Before version 7 the protocol's name could not be null.
    protocol = answer.protocol if answer.protocol is not None or version >= 7 else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member, "group_instance_id": instance, "metadata": metadata}
            for member, instance, metadata in answer.members
        ],
    }


def _synced(answer: Synced) -> Response:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


def _members(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": f"/{member.client_host}",
            "member_metadata": member.subscription(group.protocol),
            "member_assignment": member.assignment,
        }
        for member in group.members.values()
    ]
