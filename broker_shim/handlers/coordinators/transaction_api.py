"""Transactions over the wire: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, and what admins
ask.

The epoch of a producer is raised when it begins again and when its transaction times out, not with every transaction
(KIP-890's second part): clients that could do that learn from ApiVersions that they need not.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker_shim.auth.acls import ANONYMOUS, Operation, Resource
from broker_shim.config import BrokerConfig
from broker_shim.groups.coordinator import Coordinator
from broker_shim.handlers.call import Call, Response
from broker_shim.net.fairness import few_at_once, yielding
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.transactions import transaction
from broker_shim.transactions.transaction import Place, State, Transaction
from broker_shim.transactions.transaction_coordinator import TransactionCoordinator
from broker_shim.transactions.transaction_shard import TransactionShard
from broker_shim.wire import codes
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import by_topic
from logstore.errors import LogStoreError
from logstore.format.batches.markers import Marker
from logstore.layout.broker import INTERNAL_TOPIC, INTERNAL_TOPICS

LAST_IDEMPOTENT_EPOCH = 0x7FFE


@dataclass(eq=False)
class TransactionApi:
    _coordinator: TransactionCoordinator
    _groups: Coordinator
    _partitions: PartitionRegistry
    _config: BrokerConfig

    async def _shard(
        self, call: Call, name: str, operation: Operation = Operation.WRITE
    ) -> TransactionShard | Code:
        if not call.may(operation, Resource.TRANSACTIONAL_ID, name):
            return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return await self._coordinator.shard(name)

    # ── producers ────────────────────────────────────────────────────────────────────────────────────────

    async def init_producer_id(self, call: Call) -> Response:
        """An id is 62 random bits: unique across restarts and brokers without asking anybody."""
        request = call.request
        producer_id, epoch = request.get("producer_id", -1), request.get("producer_epoch", -1)
        if request.transactional_id is not None:
            return await self._init(call, request.transactional_id, producer_id, epoch)
        principal = call.connection.principal or ANONYMOUS
        if not call.may(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER) and not call.authorizer.allows_anywhere(
            principal, call.host, Operation.WRITE, Resource.TOPIC
        ):
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED}
        if producer_id >= 0 and 0 <= epoch < LAST_IDEMPOTENT_EPOCH:
            # The client lost its place (KIP-360) and goes on under the same id in a new epoch.
            return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch + 1}
        return {"error_code": Code.NONE, "producer_id": new_producer_id(), "producer_epoch": 0}

    async def _init(self, call: Call, name: str, producer_id: int, epoch: int) -> Response:
        nobody = {"producer_id": -1, "producer_epoch": -1}
        timeout_ms = call.request.transaction_timeout
        shard = await self._shard(call, name)
        if isinstance(shard, Code):
            return {**nobody, "error_code": shard}
        if not 0 < timeout_ms <= int(self._config.transaction_max_timeout * 1000):
            return {**nobody, "error_code": Code.INVALID_TRANSACTION_TIMEOUT}
        now_ms, new_id = self._coordinator.now_ms(), new_producer_id()

        def decide(known: Transaction | None) -> transaction.Decision:
            return transaction.init(known, producer_id, epoch, timeout_ms, now_ms, new_id)

        code, found = await shard.change(name, decide)
        if code is Code.CONCURRENT_TRANSACTIONS:
            # Its former life's transaction is being aborted: that takes a moment, and then it can begin.
            code, found = await shard.change(name, decide)
        if code is not Code.NONE or found is None:
            return {**nobody, "error_code": _fenced(code, call.version >= 4)}
        return {"error_code": Code.NONE, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    # ── what belongs to a transaction ────────────────────────────────────────────────────────────────────

    async def add_partitions(self, call: Call) -> Response:
        request = call.request
        if call.version < 4:
            places = _places(request.v3_and_below_topics)
            name = request.v3_and_below_transactional_id
            outcome = await self._add(
                call, name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch, places
            )
            outcome = {place: _fenced(code, call.version >= 2) for place, code in outcome.items()}
            return {"results_by_topic_v3_and_below": _by_topic(outcome)}
        if not call.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):  # brokers ask in this version
            return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED}
        results = []
        async for asked in yielding(request.transactions or ()):
            places = _places(asked.topics)
            name, producer_id, epoch = asked.transactional_id, asked.producer_id, asked.producer_epoch
            if asked.verify_only:
                outcome = await self._verify(name, producer_id, epoch, places)
            else:
                outcome = await self._add(call, name, producer_id, epoch, places)
            results.append({"transactional_id": name, "topic_results": _by_topic(outcome)})
        return {"error_code": Code.NONE, "results_by_transaction": results}

    async def _verify(
        self, name: str, producer_id: int, epoch: int, places: list[Place]
    ) -> dict[Place, Code]:
        shard = await self._coordinator.shard(name)
        if isinstance(shard, Code):
            return dict.fromkeys(places, shard)
        return {place: await shard.verified(name, producer_id, epoch, place) for place in places}

    async def _add(
        self, call: Call, name: str, producer_id: int, epoch: int, places: list[Place]
    ) -> dict[Place, Code]:
        wrong = await self._wrong_places(call, places)
        if wrong:
            return {place: wrong.get(place, Code.OPERATION_NOT_ATTEMPTED) for place in places}
        code = await self._add_places(call, name, producer_id, epoch, places)
        return dict.fromkeys(places, code)

    async def _wrong_places(self, call: Call, places: list[Place]) -> dict[Place, Code]:
        wrong: dict[Place, Code] = {}
        for topic, index in places:
            if topic in INTERNAL_TOPICS:
                wrong[topic, index] = Code.INVALID_TOPIC_EXCEPTION
            elif not call.may(Operation.WRITE, Resource.TOPIC, topic):
                wrong[topic, index] = Code.TOPIC_AUTHORIZATION_FAILED
            else:
                found = await self._partitions.find(topic)
                if found is None or not 0 <= index < found.partitions:
                    wrong[topic, index] = Code.UNKNOWN_TOPIC_OR_PARTITION
        return wrong

    async def _add_places(
        self, call: Call, name: str, producer_id: int, epoch: int, places: Iterable[Place]
    ) -> Code:
        shard = await self._shard(call, name)
        if isinstance(shard, Code):
            return shard
        now_ms = self._coordinator.now_ms()
        code, _ = await shard.change(
            name, lambda known: transaction.add(known, producer_id, epoch, places, now_ms)
        )
        return code

    async def add_offsets(self, call: Call) -> Response:
        request = call.request
        if not call.may(Operation.READ, Resource.GROUP, request.group_id):
            return {"error_code": Code.GROUP_AUTHORIZATION_FAILED}
        if not request.group_id:
            return {"error_code": Code.INVALID_GROUP_ID}
        try:
            place = (INTERNAL_TOPIC, await self._groups.place(request.group_id))
        except (LogStoreError, OSError):
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE}
        code = await self._add_places(
            call, request.transactional_id, request.producer_id, request.producer_epoch, [place]
        )
        return {"error_code": _fenced(code, call.version >= 2)}

    async def end(self, call: Call) -> Response:
        request = call.request
        shard = await self._shard(call, request.transactional_id)
        if isinstance(shard, Code):
            return {"error_code": shard}
        now_ms = self._coordinator.now_ms()
        code, _ = await shard.change(
            request.transactional_id,
            lambda known: transaction.end(
                known, request.producer_id, request.producer_epoch, request.committed, now_ms
            ),
        )
        return {"error_code": _fenced(code, call.version >= 2)}

    # ── markers ──────────────────────────────────────────────────────────────────────────────────────────

    async def write_markers(self, call: Call) -> Response:
        """Another broker coordinates a transaction of partitions that this one leads; or an admin ends one that hangs."""
        is_allowed = call.may(Operation.CLUSTER_ACTION, Resource.CLUSTER) or call.may(
            Operation.ALTER, Resource.CLUSTER
        )
        results = []
        async for asked in yielding(call.request.markers or ()):
            marker = Marker(
                asked.producer_id,
                asked.producer_epoch,
                asked.transaction_result,
                asked.coordinator_epoch,
                asked.started_ms,
            )
            places = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
            write = partial(self._write_marker, marker) if is_allowed else _not_allowed
            found = await few_at_once(write, places)
            outcome = dict(zip(places, found, strict=True))
            rows = _by_topic(outcome, "partitions", "error_code")
            results.append({"producer_id": marker.producer_id, "topics": rows})
        return {"markers": results}

    async def _write_marker(self, marker: Marker, place: Place) -> Code:
        try:
            return await self._coordinator.markers.write_here(marker, *place)
        except (LogStoreError, OSError) as error:
            return codes.of_produce(error)

    # ── what admins ask ──────────────────────────────────────────────────────────────────────────────────

    async def describe_transactions(self, call: Call) -> Response:
        names = call.request.transactional_ids or ()
        return {"transaction_states": [await self._describe(call, name) async for name in yielding(names)]}

    async def _describe(self, call: Call, name: str) -> dict[str, Any]:
        shard = await self._shard(call, name, Operation.DESCRIBE)
        if isinstance(shard, Code):
            return {"transactional_id": name, "error_code": shard}
        known = shard.transactions.get(name)
        if known is None:
            return {"transactional_id": name, "error_code": Code.TRANSACTIONAL_ID_NOT_FOUND}
        topics = by_topic(known.places)
        return {
            "error_code": Code.NONE,
            "transactional_id": name,
            "transaction_state": known.state.shown,
            "transaction_timeout": known.timeout_ms,
            "transaction_start_time": known.started_ms if _is_active(known) else -1,
            "producer_id": known.producer_id,
            "producer_epoch": known.epoch,
            "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
        }

    async def list_transactions(self, call: Call) -> Response:
        request = call.request
        states, producers = set(request.state_filters or ()), set(request.producer_id_filters or ())
        duration_ms = request.get("duration_filter", -1)
        try:
            shards = await self._coordinator.shards.all()
        except TimeoutError:
            return {"error_code": Code.COORDINATOR_LOAD_IN_PROGRESS}
        except (LogStoreError, OSError):
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE}
        now_ms, found = self._coordinator.now_ms(), []
        for shard in shards:
            for name, known in sorted(shard.transactions.items()):
                lasts_ms = now_ms - known.started_ms if _is_active(known) else -1
                if (
                    (not states or known.state.shown in states)
                    and (not producers or known.producer_id in producers)
                    and lasts_ms >= duration_ms
                    and call.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
                ):
                    state = known.state.shown
                    found.append(
                        {
                            "transactional_id": name,
                            "producer_id": known.producer_id,
                            "transaction_state": state,
                        }
                    )
        unknown = sorted(states - {state.shown for state in State})
        return {"error_code": Code.NONE, "unknown_state_filters": unknown, "transaction_states": found}

    async def describe_producers(self, call: Call) -> Response:
        topics = []
        for topic in call.request.topics or ():
            rows = await few_at_once(
                partial(self._producers, call, topic.name), list(topic.partition_indexes or ())
            )
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _producers(self, call: Call, topic: str, index: int) -> dict[str, Any]:
        """Of a partition that is written here: nobody else knows its producers."""
        if not call.may(Operation.READ, Resource.TOPIC, topic):
            return {"partition_index": index, "error_code": Code.TOPIC_AUTHORIZATION_FAILED}
        try:
            await self._partitions.find(topic)
            hosted = self._partitions.get(topic, index)
            if not isinstance(hosted, HostedPartition):
                return {"partition_index": index, "error_code": hosted}
            await hosted.open()
            transactions = (await hosted.learn_stable()).transactions
        except (LogStoreError, OSError) as error:
            return {"partition_index": index, "error_code": codes.of_read(error)}
        table = hosted.producers
        known = {} if table is None else dict(table.last_sequences())
        rows = []
        for producer_id in {**known, **transactions.open}:
            is_open, ended = transactions.open.get(producer_id), transactions.last_ends.get(producer_id)
            epoch, sequence = known.get(producer_id, (is_open.epoch if is_open else -1, -1))
            rows.append(
                {
                    "producer_id": producer_id,
                    "producer_epoch": epoch,
                    "last_sequence": sequence,
                    "coordinator_epoch": ended.coordinator_epoch if ended else -1,
                    "current_txn_start_offset": is_open.first_offset if is_open else -1,
                }
            )
        return {"partition_index": index, "error_code": Code.NONE, "active_producers": rows}


def new_producer_id() -> int:
    return secrets.randbits(62)


async def _not_allowed(place: Place) -> Code:
    return Code.CLUSTER_AUTHORIZATION_FAILED


def _is_active(known: Transaction) -> bool:
    return known.state is State.ONGOING or known.state.is_decided


def _fenced(code: Code, knows_it: bool) -> Code:
    """Clients of before PRODUCER_FENCED know it by another code."""
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and not knows_it else code


def _places(topics: Any) -> list[Place]:
    return [(topic.name, index) for topic in topics or () for index in topic.partitions or ()]


def _by_topic(
    outcome: dict[Place, Code], rows: str = "results_by_partition", code_name: str = "partition_error_code"
) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), code in outcome.items():
        topics.setdefault(topic, []).append({"partition_index": index, code_name: code})
    return [{"name": topic, rows: found} for topic, found in topics.items()]
