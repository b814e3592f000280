"""Committed offsets over the wire: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker_shim.auth.acls import Operation, Resource
from broker_shim.groups.coordinator import Coordinator
from broker_shim.groups.group import State
from broker_shim.groups.group_records import Committed
from broker_shim.groups.group_shard import GroupShard
from broker_shim.groups.pending_offsets import Place
from broker_shim.groups.subscription import CONSUMER, subscribed_topics
from broker_shim.groups.transactional_offsets import Verified
from broker_shim.handlers.call import Call, Response
from broker_shim.handlers.coordinators.group_api import shard_for
from broker_shim.handlers.records.produce import VerifyAt
from broker_shim.net.fairness import few_at_once, yielding
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.partitions.state_log import outcome
from broker_shim.wire.codes import Code
from broker_shim.wire.messages import Message
from logstore.errors import LogStoreError
from logstore.layout.broker import INTERNAL_TOPIC
from logstore.topic import Topic

MAX_METADATA_BYTES = 4096
WRITE_PATIENCE_S = 10.0
NO_OFFSET = -1
Write = Callable[[GroupShard, str, dict[Place, Committed]], Awaitable[Code]]
_SAID_OF_A_TOPIC = (Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_ID)


@dataclass(eq=False)
class OffsetApi:
    """An offset belongs to the topic that it was committed for, and not to a later one of the same name: that one's
    first records would be skipped.
    """

    _coordinator: Coordinator
    _partitions: PartitionRegistry
    _verify: VerifyAt

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, call: Call) -> Response:
        return await self._commit(call, await self._refuse(call), self._write)

    async def commit_in_transaction(self, call: Call) -> Response:
        """Kept until the transaction ends. As for a batch: only if the coordinator says that it goes on."""
        request = call.request
        refusal: GroupShard | Code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if call.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            refusal = await self._refuse(call)
        producer_id, epoch = request.producer_id, request.producer_epoch
        said: Verified | None = None
        if isinstance(refusal, GroupShard):
            since = refusal.transactional.last_end(producer_id)
            place = await self._coordinator.place(request.group_id)
            verified = self._verify(request.transactional_id, INTERNAL_TOPIC, place, producer_id, epoch)
            if isinstance(verified, Coroutine):
                verified = await verified
            companion = None if isinstance(verified, Code) else verified
            said = Verified(producer_id, epoch, since, companion)
            if isinstance(verified, Code) and verified is not Code.NONE:
                is_asked = verified is Code.NOT_ENOUGH_REPLICAS
                refusal = Code.COORDINATOR_LOAD_IN_PROGRESS if is_asked else verified

        async def write(shard: GroupShard, group: str, commits: dict[Place, Committed]) -> Code:
            assert said is not None
            return await outcome(partial(shard.transactional.keep, group, commits, said), WRITE_PATIENCE_S)

        return await self._commit(call, refusal, write)

    async def _commit(self, call: Call, refusal: GroupShard | Code, write: Write) -> Response:
        request = call.request
        if call.version >= 10:
            await self._name(request.topics or ())
        topics = await self._topics(call, Operation.READ, [topic.name for topic in request.topics or ()])
        commits: dict[Place, Committed] = {}
        outcome: dict[Place, Code] = {}
        now_ms = self._coordinator.now_ms()
        for topic in request.topics or ():
            found = _of_id(topics[topic.name], topic)
            for each in topic.partitions or ():
                place = (topic.name, each.partition_index)
                metadata = each.committed_metadata or ""
                if isinstance(refusal, Code):
                    outcome[place] = refusal
                elif isinstance(found, Code):
                    outcome[place] = found
                elif not 0 <= each.partition_index < found.partitions:
                    outcome[place] = Code.UNKNOWN_TOPIC_OR_PARTITION
                elif len(metadata) > MAX_METADATA_BYTES:
                    outcome[place] = Code.OFFSET_METADATA_TOO_LARGE
                else:
                    epoch = each.get("committed_leader_epoch", -1)
                    commits[place] = Committed(
                        each.committed_offset, epoch, metadata, now_ms, found._internal.descriptor.incarnation
                    )
        if commits and isinstance(refusal, GroupShard):
            code = await write(refusal, request.group_id, commits)
            outcome.update(dict.fromkeys(commits, code))
        return {"topics": _each_code(request, outcome.__getitem__)}

    async def _name(self, topics: Iterable[Message]) -> None:
        """From version 10 on topics have ids in place of names. One that nobody has is called ''."""
        for asked in topics:
            try:
                topic = await self._partitions.find_id(asked.topic_id)
            except (LogStoreError, OSError):
                topic = None
            asked.name = "" if topic is None else topic.name

    async def _topics(
        self, call: Call, operation: Operation, names: Iterable[str]
    ) -> dict[str, Topic | Code]:
        """The topics of these names as they are now, or why there is none for this caller."""
        wanted = list(dict.fromkeys(names))
        found = await few_at_once(lambda name: self._topic(call, operation, name), wanted)
        return dict(zip(wanted, found, strict=True))

    async def _topic(self, call: Call, operation: Operation, name: str) -> Topic | Code:
        if not call.may(operation, Resource.TOPIC, name):
            return Code.TOPIC_AUTHORIZATION_FAILED
        try:
            return await self._partitions.find(name) or Code.UNKNOWN_TOPIC_OR_PARTITION
        except (LogStoreError, OSError):
            return Code.COORDINATOR_NOT_AVAILABLE

    async def _refuse(self, call: Call) -> GroupShard | Code:
        """The shard, if this caller may commit to the group now."""
        request = call.request
        shard = await shard_for(self._coordinator, call, request.group_id, Operation.READ)
        if isinstance(shard, Code):
            return shard
        in_transaction = "producer_id" in vars(request)
        generation = request.get("generation_id_or_member_epoch", request.get("generation_id", -1))
        member_id = request.get("member_id", "")
        if generation < 0 and not member_id and in_transaction:
            return shard  # of a producer that does not say which member it commits for
        is_old = call.version < 9 and not in_transaction
        if generation >= 0 and is_old and request.group_id in shard.consumers.groups:
            return Code.UNSUPPORTED_VERSION
        code = shard.check_commit(request.group_id, member_id, request.get("group_instance_id"), generation)
        return shard if code is Code.NONE else code

    async def _write(self, shard: GroupShard, group: str, commits: dict[Place, Committed]) -> Code:
        return await outcome(partial(shard.commit, group, commits), WRITE_PATIENCE_S)

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, call: Call) -> Response:
        request = call.request
        if call.version >= 8:
            groups = request.groups or ()
            return {"groups": [await self._fetch_of(call, g) async for g in yielding(groups)]}
        return await self._fetch(call, request.group_id, request.topics)

    async def _fetch_of(self, call: Call, asked: Message) -> dict[str, Any]:
        """From version 9 on a member of the new protocol says who it is: one that was fenced learns it here."""
        member_id, epoch = asked.get("member_id"), asked.get("member_epoch", -1)
        if member_id and epoch >= 0:
            shard = await shard_for(self._coordinator, call, asked.group_id, Operation.DESCRIBE)
            if isinstance(shard, GroupShard) and asked.group_id in shard.consumers.groups:
                code = shard.check_commit(asked.group_id, member_id, None, epoch)
                if code is not Code.NONE:
                    return {"group_id": asked.group_id, "topics": [], "error_code": code}
        return await self._fetch(call, asked.group_id, asked.topics)

    async def _fetch(self, call: Call, group: str, topics: Any) -> dict[str, Any]:
        only_stable = call.request.get("require_stable", False)
        if topics is not None and call.version >= 10:
            await self._name(topics)
        shard = await shard_for(self._coordinator, call, group, Operation.DESCRIBE)
        code = shard if isinstance(shard, Code) else Code.NONE
        found: dict[str, Topic | Code] = {}
        unstable: set[Place] = set()
        known: dict[Place, Committed] = {}
        if isinstance(shard, GroupShard):
            committed_in = (name for name, _ in shard.offsets.get(group, {}))
            names = committed_in if topics is None else (topic.name for topic in topics)
            found = await self._topics(call, Operation.DESCRIBE, names)
            known = _of(found, shard.offsets.get(group, {}))
            if only_stable:
                unstable = shard.transactional.pending(group)
        if Code.COORDINATOR_NOT_AVAILABLE in found.values():
            code = Code.COORDINATOR_NOT_AVAILABLE
        if topics is None:
            topics = _all_of(found, known)
        answers = []
        for topic in topics:
            each_code = code
            if code is Code.NONE and (why := _of_id(found[topic.name], topic)) in _SAID_OF_A_TOPIC:
                each_code = why
            shown = known if each_code is Code.NONE else {}
            rows = [
                _committed(index, shown.get((topic.name, index)), each_code)
                for index in topic.partition_indexes or ()
            ]
            for row in rows if unstable else ():
                if (topic.name, row["partition_index"]) in unstable:
                    row |= _committed(row["partition_index"], None, Code.UNSTABLE_OFFSET_COMMIT)
            answers.append({"name": topic.name, "topic_id": topic.get("topic_id"), "partitions": rows})
        return {"group_id": group, "topics": answers, "error_code": code}

    # ── delete ───────────────────────────────────────────────────────────────────────────────────────────

    async def delete(self, call: Call) -> Response:
        request = call.request
        shard = await shard_for(self._coordinator, call, request.group_id, Operation.DELETE)
        if isinstance(shard, Code):
            return {"error_code": shard}
        group = shard.groups.get(request.group_id)
        if request.group_id not in shard.names():
            return {"error_code": Code.GROUP_ID_NOT_FOUND}
        consumer = shard.consumers.groups.get(request.group_id)
        in_use: frozenset[str] | None = consumer.subscribed if consumer is not None else frozenset()
        if group is not None and group.state is not State.EMPTY:
            if group.protocol_type != CONSUMER:
                return {"error_code": Code.NON_EMPTY_GROUP}
            in_use = subscribed_topics(group)
        refused: dict[str, Code] = {}
        for name in {topic.name for topic in request.topics or ()}:
            if not call.may(Operation.READ, Resource.TOPIC, name):
                refused[name] = Code.TOPIC_AUTHORIZATION_FAILED
            elif in_use is None or name in in_use:
                refused[name] = Code.GROUP_SUBSCRIBED_TO_TOPIC
        places = [
            (topic.name, each.partition_index)
            for topic in request.topics or ()
            if topic.name not in refused
            for each in topic.partitions or ()
        ]
        code = Code.NONE
        if places:
            code = await outcome(partial(shard.forget_offsets, request.group_id, places))
        topics = _each_code(request, lambda place: refused.get(place[0], code))
        return {"error_code": Code.NONE, "topics": topics}


def _each_code(request: Message, code_of: Callable[[Place], Code]) -> list[dict[str, Any]]:
    """What became of each partition that the request names."""
    answers = []
    for topic in request.topics or ():
        indexes = [each.partition_index for each in topic.partitions or ()]
        rows = [{"partition_index": index, "error_code": code_of((topic.name, index))} for index in indexes]
        answers.append({"name": topic.name, "topic_id": topic.get("topic_id"), "partitions": rows})
    return answers


def _of_id(found: Topic | Code, asked: Message) -> Topic | Code:
    """The topic, if it is the one that is meant: a name says so by itself, an id does not mean the next of its name."""
    topic_id = asked.get("topic_id")
    if topic_id is None or found is Code.COORDINATOR_NOT_AVAILABLE:
        return found
    if not asked.name or (isinstance(found, Topic) and found._internal.descriptor.topic_id != topic_id):
        return Code.UNKNOWN_TOPIC_ID
    return found


def _all_of(found: dict[str, Topic | Code], committed: dict[Place, Committed]) -> list[Message]:
    """As if a client had asked for everything that its group has committed."""
    asked: dict[str, Message] = {}
    for name, index in sorted(committed):
        topic = found[name]
        assert isinstance(topic, Topic), "what was committed for it was found by it"
        entry = asked.setdefault(
            name, Message(name=name, topic_id=topic._internal.descriptor.topic_id, partition_indexes=[])
        )
        entry.partition_indexes.append(index)
    return list(asked.values())


def _of(topics: dict[str, Topic | Code], committed: dict[Place, Committed]) -> dict[Place, Committed]:
    """Those of the offsets that were committed for these topics, and not for former ones of their names."""
    incarnations = {
        name: topic._internal.descriptor.incarnation
        for name, topic in topics.items()
        if isinstance(topic, Topic)
    }
    return {
        place: each
        for place, each in committed.items()
        if (now := incarnations.get(place[0])) is not None and each.incarnation in (now, None)
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
