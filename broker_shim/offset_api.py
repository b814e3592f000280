"""Committed offsets over the wire: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_shim.acls import Operation, Resource
from broker_shim.call import Call, Response
from broker_shim.codes import Code
from broker_shim.coordinator import Coordinator
from broker_shim.group import State
from broker_shim.group_records import Committed
from broker_shim.shard import Place, Shard

MAX_METADATA_BYTES = 4096
WRITE_PATIENCE_S = 10.0
NO_OFFSET = -1


class OffsetApi:
    def __init__(self, coordinator: Coordinator, loop: asyncio.AbstractEventLoop) -> None:
        self._coordinator = coordinator
        self._loop = loop

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, call: Call) -> Response:
        request = call.request
        refusal = await self._refuse(call)
        commits: dict[Place, Committed] = {}
        outcome: dict[Place, Code] = {}
        now_ms = self._coordinator.now_ms()
        for topic in request.topics or ():
            allowed = call.may(Operation.READ, Resource.TOPIC, topic.name)
            for each in topic.partitions or ():
                place = (topic.name, each.partition_index)
                metadata = each.committed_metadata or ""
                code = refusal if isinstance(refusal, Code) else Code.NONE
                if code is Code.NONE and not allowed:
                    code = Code.TOPIC_AUTHORIZATION_FAILED
                elif code is Code.NONE and len(metadata) > MAX_METADATA_BYTES:
                    code = Code.OFFSET_METADATA_TOO_LARGE
                outcome[place] = code
                if code is Code.NONE:
                    epoch = each.get("committed_leader_epoch", -1)
                    commits[place] = Committed(each.committed_offset, epoch, metadata, now_ms)
        if commits and isinstance(refusal, Shard):
            code = await self._write(refusal, request.group_id, commits)
            outcome.update(dict.fromkeys(commits, code))
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": outcome[(topic.name, each.partition_index)],
                        }
                        for each in topic.partitions or ()
                    ],
                }
                for topic in request.topics or ()
            ]
        }

    async def _refuse(self, call: Call) -> Shard | Code:
        """The shard, if this caller may commit to the group now."""
        request = call.request
        if not call.may(Operation.READ, Resource.GROUP, request.group_id):
            return Code.GROUP_AUTHORIZATION_FAILED
        shard = await self._coordinator.shard(request.group_id)
        if isinstance(shard, Code):
            return shard
        generation = request.generation_id_or_member_epoch
        group = shard.groups.get(request.group_id)
        if group is None:
            return shard if generation < 0 else Code.ILLEGAL_GENERATION
        code = group.check_commit(
            request.member_id, request.get("group_instance_id"), generation, self._loop.time()
        )
        return shard if code is Code.NONE else code

    async def _write(self, shard: Shard, group: str, commits: dict[Place, Committed]) -> Code:
        done: asyncio.Future[Code] = self._loop.create_future()
        shard.commit(group, commits, lambda code: None if done.done() else done.set_result(code))
        try:
            return await asyncio.wait_for(done, WRITE_PATIENCE_S)
        except TimeoutError:
            return Code.COORDINATOR_NOT_AVAILABLE

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, call: Call) -> Response:
        request = call.request
        if call.version >= 8:
            return {"groups": [await self._fetch(call, g.group_id, g.topics) for g in request.groups or ()]}
        return await self._fetch(call, request.group_id, request.topics)

    async def _fetch(self, call: Call, group: str, topics: Any) -> dict[str, Any]:
        shard: Shard | Code = Code.GROUP_AUTHORIZATION_FAILED
        if call.may(Operation.DESCRIBE, Resource.GROUP, group):
            shard = await self._coordinator.shard(group)
        code = shard if isinstance(shard, Code) else Code.NONE
        known = shard.offsets.get(group, {}) if isinstance(shard, Shard) else {}
        if topics is None:
            wanted: dict[str, list[int]] = {}
            for name, index in sorted(known):
                if call.may(Operation.DESCRIBE, Resource.TOPIC, name):
                    wanted.setdefault(name, []).append(index)
        else:
            wanted = {topic.name: topic.partition_indexes or [] for topic in topics}
        answers = []
        for name, indexes in wanted.items():
            denied = not call.may(Operation.DESCRIBE, Resource.TOPIC, name)
            each_code = Code.TOPIC_AUTHORIZATION_FAILED if denied and code is Code.NONE else code
            places = {} if denied else known
            rows = [_committed(index, places.get((name, index)), each_code) for index in indexes]
            answers.append({"name": name, "partitions": rows})
        return {"group_id": group, "topics": answers, "error_code": code}

    # ── delete ───────────────────────────────────────────────────────────────────────────────────────────

    async def delete(self, call: Call) -> Response:
        request = call.request
        if not call.may(Operation.DELETE, Resource.GROUP, request.group_id):
            return {"error_code": Code.GROUP_AUTHORIZATION_FAILED}
        shard = await self._coordinator.shard(request.group_id)
        if isinstance(shard, Code):
            return {"error_code": shard}
        group = shard.groups.get(request.group_id)
        if group is None and request.group_id not in shard.offsets:
            return {"error_code": Code.GROUP_ID_NOT_FOUND}
        code = Code.NONE
        if group is not None and group.state is not State.EMPTY:
            code = Code.GROUP_SUBSCRIBED_TO_TOPIC
        places = [(t.name, p.partition_index) for t in request.topics or () for p in t.partitions or ()]
        if code is Code.NONE and places:
            done: asyncio.Future[Code] = self._loop.create_future()
            shard.forget_offsets(request.group_id, places, done.set_result)
            code = await done
        return {
            "error_code": Code.NONE,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": each.partition_index, "error_code": code}
                        for each in topic.partitions or ()
                    ],
                }
                for topic in request.topics or ()
            ],
        }


def _committed(index: int, found: Committed | None, code: Code) -> dict[str, Any]:
    """No commit is no error: offset -1, and the client does what its reset policy says."""
    return {
        "partition_index": index,
        "committed_offset": NO_OFFSET if found is None else found.offset,
        "committed_leader_epoch": -1 if found is None else found.leader_epoch,
        "metadata": "" if found is None else found.metadata,
        "error_code": code,
    }
