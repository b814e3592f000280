"""B10: a request that names very much, or the same again and again, holds up nobody but its sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_shim import broker as broker_module
from broker_shim.net import fairness
from broker_shim.net.fairness import AT_ONCE, yielding
from broker_shim.partitions import partition_registry
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MAX_STRING_BYTES, MalformedRequest
from logstore.layout.paths import CATALOG_PREFIX
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.protocol import ObjectInfo
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, values

Start = Callable[..., LocalBroker]
NAMES = [f"nothing-{number}" for number in range(100)]
EMPTY: dict[str, list[Any]] = {"partitions": [], "partition_indexes": [], "partition_data": []}
GROUP = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
ONE_FETCH = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, "rack_id": ""}
PLACE = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
PRODUCE = {"transactional_id": None, "acks": -1, "timeout": 10_000}


@pytest.mark.parametrize(
    ("api", "version", "request_of"),
    [
        (Api.PRODUCE, 9, lambda topics: {**PRODUCE, "topic_data": topics}),
        (
            Api.FETCH,
            11,
            lambda topics: {**ONE_FETCH, "topics": [{**t, "partitions": [PLACE]} for t in topics]},
        ),
        (Api.OFFSET_COMMIT, 7, lambda topics: {**GROUP, "topics": topics}),
        (Api.OFFSET_FETCH, 5, lambda topics: {**GROUP, "topics": topics}),
    ],
)
def test_B10_a_client_that_names_many_topics_leaves_workers_for_others(
    start_broker: Start, api: Api, version: int, request_of: Callable[[list[Any]], dict[str, Any]]
) -> None:
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    with Wire(broker.port) as greedy, Wire(broker.port) as other:
        greedy.ask(Api.OFFSET_FETCH, 5, group_id="g", topics=None)  # its coordinator is there
        make_topic(other)
        with store.hold("get", prefix=f"{CATALOG_PREFIX}nothing-") as gate:
            asked = request_of([{**EMPTY, "name": name, "topic": name} for name in NAMES])
            correlation = greedy.send(api, version, messages.encode_request(api, version, asked))
            gate.wait_held(count=AT_ONCE)
            assert other.produce("t", batch(b"mine")).base_offset == 0, "a partition was taken meanwhile"
            assert len(gate.held) == AT_ONCE
            gate.open()
            greedy.answer(api, version, correlation)


def test_B10_a_long_list_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "SLICE_S", 0.0)
    seen: list[str] = []
    note = seen.append

    async def walk(name: str) -> None:
        async for number in yielding(range(3)):
            note(f"{name}{number}")

    async def both() -> None:
        await asyncio.gather(walk("a"), walk("b"))

    asyncio.run(both())
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_B10_a_large_request_is_taken_apart_and_answered_beside_the_event_loop(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[bool] = []
    real: dict[str, Callable[..., Any]] = {"decode": messages.decode, "encode": messages.encode}

    def noting(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                asyncio.get_running_loop()
                where.append(True)
            except RuntimeError:
                where.append(False)
            return real[name](*arguments)

        return call

    names = [f"group-{number}" for number in range(5_000)]
    assert sum(map(len, names)) > broker_module.LARGE_BYTES
    with Wire(broker.port) as client:
        for name in real:
            monkeypatch.setattr(messages, name, noting(name))
        answer = client.ask(Api.DESCRIBE_GROUPS, 0, groups=names)
    assert where == [False, False]
    assert [each.group_id for each in answer.groups] == names


def test_B10_of_many_topics_those_that_are_named_twice_are_refused(broker: LocalBroker) -> None:
    topics = [{"name": f"n{i}", "num_partitions": 1, "replication_factor": 0} for i in range(2_000)]
    topics += [{"name": "twice", "num_partitions": 1, "replication_factor": 1}] * 2
    with Wire(broker.port) as client:
        answer = client.ask(Api.CREATE_TOPICS, 5, topics=topics, timeout=10_000)
    codes = [each.error_code for each in answer.topics]
    assert codes == [Code.INVALID_REPLICATION_FACTOR] * 2_000 + [Code.INVALID_REQUEST] * 2


@pytest.mark.parametrize(
    ("api", "version", "topic"),
    [
        (Api.LIST_OFFSETS, 5, {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}] * 3}),
        (
            Api.OFFSET_FOR_LEADER_EPOCH,
            4,
            {
                "topic": "t",
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}] * 3,
            },
        ),
        (Api.DELETE_RECORDS, 1, {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}] * 3}),
    ],
)
def test_B10_a_partition_that_one_question_names_twice_is_not_looked_at(
    broker: LocalBroker, api: Api, version: int, topic: dict[str, Any]
) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"kept"))
        rows = client.ask(api, version, topics=[topic]).topics[0].partitions
        assert [row.error_code for row in rows] == [Code.INVALID_REQUEST] * 3
        once = {**topic, "partitions": topic["partitions"][:1]}
        rows = client.ask(api, version, topics=[once]).topics[0].partitions
        assert [row.error_code for row in rows] == [Code.NONE]


def test_B10_a_partition_that_a_fetch_names_twice_is_read_once(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        make_topic(client)
        client.produce("t", batch(b"first"))
        client.produce("t", batch(b"second"))
        both = [{"partition": 0, "fetch_offset": at, "partition_max_bytes": 1 << 20} for at in (0, 1)]
        topics = [{"topic": "t", "partitions": both[:1]}, {"topic": "t", "partitions": both}]
        answer = client.ask(Api.FETCH, 11, **ONE_FETCH, topics=topics)
    assert [len(each.partitions) for each in answer.responses] == [1]
    assert values(answer.responses[0].partitions[0]) == [(1, b"second")]


def test_B10_a_string_that_no_older_version_could_carry_is_refused_in_newer_ones_too(
    broker: LocalBroker,
) -> None:
    """A group with such a name would be in every list, and a client of an older version could not be told."""
    body = messages.encode_request(
        Api.FIND_COORDINATOR, 4, {"coordinator_keys": ["g" * (MAX_STRING_BYTES + 1)]}
    )
    with pytest.raises(MalformedRequest, match="a string of 32768 bytes"):
        messages.decode(Api.FIND_COORDINATOR, 4, body, 0)
    body = messages.encode_request(Api.FIND_COORDINATOR, 4, {"coordinator_keys": ["g" * MAX_STRING_BYTES]})
    assert len(messages.decode(Api.FIND_COORDINATOR, 4, body, 0).coordinator_keys[0]) == MAX_STRING_BYTES


def test_L28_a_store_that_hangs_is_waited_for_once_and_not_for_each_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_registry, "REFRESH_PATIENCE_S", 0.05)
    store = GatedStore(MemoryStore())
    names = [f"t{number}" for number in range(20)]
    with LocalBroker(store) as broker, Wire(broker.port) as client:
        for name in names:
            make_topic(client, name)
        for known in broker.server.broker.partitions._known.values():
            known.looked_at = -partition_registry.REFRESH_AFTER_S
        with store.hold("get", prefix=CATALOG_PREFIX) as gate:
            answer = client.ask(Api.METADATA, 9, topics=[{"name": name} for name in names])
            assert [(each.name, each.error_code) for each in answer.topics] == [(n, Code.NONE) for n in names]
            assert len(gate.held) == 1


def test_L28_a_listing_is_from_memory_while_the_store_hangs_and_keeps_one_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_registry, "LISTING_PATIENCE_S", 0.05)
    store = GatedStore(MemoryStore())
    with LocalBroker(store) as broker, Wire(broker.port) as one, Wire(broker.port) as two:
        make_topic(one)
        assert [each.name for each in one.ask(Api.METADATA, 9, topics=None).topics] == ["t"]
        with store.hold("list", prefix=CATALOG_PREFIX) as gate:
            for client in (one, two, one, two):
                assert [each.name for each in client.ask(Api.METADATA, 9, topics=None).topics] == ["t"]
            assert len(gate.held) == 1


def test_B01_a_topic_is_in_every_list_that_is_asked_for_after_it_was_created() -> None:
    """Also while a listing that began before that is still under way; and that one does not make the broker forget it."""

    class ListsAtOnce(MemoryStore):
        def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
            return iter(tuple(super().list(prefix, start_after)))

    store = GatedStore(ListsAtOnce())
    with LocalBroker(store) as broker, Wire(broker.port) as one, Wire(broker.port) as two:
        make_topic(one, "old")
        everything = messages.encode_request(Api.METADATA, 9, {"topics": None})
        with store.hold("list", prefix=CATALOG_PREFIX, after=True) as gate:
            earlier = one.send(Api.METADATA, 9, everything)
            gate.wait_held()
            make_topic(two, "new")
            two.produce("new", batch(b"kept"))
            hosted = broker.server.broker.partitions.hosted("new", 0)
            assert hosted is not None
            later = two.send(Api.METADATA, 9, everything)
            broker.until(lambda: broker.server.broker.partitions._next_listing is not None)
            gate.open()
            assert "old" in [each.name for each in one.answer(Api.METADATA, 9, earlier).topics]
            assert [each.name for each in two.answer(Api.METADATA, 9, later).topics] == ["new", "old"]
        assert broker.server.broker.partitions.hosted("new", 0) is hosted
