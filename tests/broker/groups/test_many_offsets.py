"""B10: nothing that concerns many committed offsets keeps the event loop: it goes in slices, and others have their turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from broker_shim.groups.group_shard import GroupShard
from broker_shim.partitions import state_log
from broker_shim.partitions.state_log import StateLog
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic

Start = Callable[..., LocalBroker]


def commit(client: Wire, group: str, offsets: dict[int, int], topic: str = "t") -> None:
    rows = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
        for index, offset in offsets.items()
    ]
    answer = client.ask(
        Api.OFFSET_COMMIT,
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": topic, "partitions": rows}],
    )
    assert {row.error_code for each in answer.topics for row in each.partitions} == {Code.NONE}


def committed(client: Wire, group: str) -> dict[tuple[str, int], int]:
    answer = client.ask(Api.OFFSET_FETCH, 5, group_id=group, topics=None)
    return {(t.name, r.partition_index): r.committed_offset for t in answer.topics for r in t.partitions}


def shards(broker: LocalBroker) -> list[GroupShard]:
    return list(broker.server.broker.coordinator.shards)


def test_B10_the_offsets_of_a_deleted_topic_go_in_slices_and_for_good(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three thousand of them, in three groups; those of another topic stay."""
    store = MemoryStore()
    broker = start_broker(store, offsets_partitions=1)
    written: list[int] = []
    real = StateLog.write

    def noted(self: StateLog, changes: Iterable[Any], done: Any) -> None:
        changes = list(changes)
        written.append(len(changes))
        real(self, changes, done)

    with Wire(broker.port) as client:
        make_topic(client, partitions=1000)
        make_topic(client, "other")
        for group in ("a", "b", "c"):
            commit(client, group, dict.fromkeys(range(1000), 7))
            commit(client, group, {0: 1}, "other")
        monkeypatch.setattr(StateLog, "write", noted)
        client.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=10_000)
        [shard] = shards(broker)
        broker.until(lambda: sum(map(len, shard.offsets.values())) == 3)
        assert sum(written) == 3000
        assert max(written) <= state_log.SLICE_RECORDS
        assert all(committed(client, group) == {("other", 0): 1} for group in ("a", "b", "c"))
        assert [len(keys) for keys in shard._of_topic.values()] == [3]
    again = start_broker(store, offsets_partitions=1, node_id=2)
    with Wire(again.port) as client:
        assert committed(client, "a") == {("other", 0): 1}
        assert [len(each.log.latest) for each in shards(again)] == [3]


def test_B10_an_offset_for_the_next_topic_of_the_name_survives_the_deletion_of_the_last(
    broker: LocalBroker,
) -> None:
    with Wire(broker.port) as client:
        make_topic(client, partitions=2)
        commit(client, "g", {0: 5, 1: 6})
        broker.server.store.delete_topic("t")  # by a service: this broker does not hear of it
        broker.server.store.create_topic("t", 2)
        broker.call(lambda: broker.server.broker.partitions.forget("t"))
        commit(client, "g", {0: 1})
        listed = broker.call(lambda: [keys for shard in shards(broker) for keys in shard._of_topic.values()])
        assert sorted(map(len, listed)) == [1, 1]
        for shard in shards(broker):
            for incarnation in list(shard._of_topic):
                if incarnation != broker.server.store.topic("t")._internal.descriptor.incarnation:
                    broker.call(lambda shard=shard, gone=incarnation: shard.forget_topic(gone))  # type: ignore[misc]
        broker.until(
            lambda: all(len(each) == 1 for shard in shards(broker) for each in shard.offsets.values())
        )
        assert committed(client, "g") == {("t", 0): 1}


@pytest.mark.parametrize("seed", range(3))
def test_B08_a_compaction_in_slices_loses_and_revives_nothing(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Commits and deletions while the mirror is being written, a slice of three keys at a time."""
    monkeypatch.setattr(state_log, "COMPACT_FROM_RECORDS", 20)
    monkeypatch.setattr(state_log, "SLICE_RECORDS", 3)
    chance = random.Random(seed)
    store = MemoryStore()
    broker = start_broker(store, offsets_partitions=1)
    expected: dict[str, dict[tuple[str, int], int]] = {"a": {}, "b": {}}
    with Wire(broker.port) as client:
        make_topic(client, partitions=10)
        for step in range(250):
            group = chance.choice("ab")
            if chance.random() < 0.8 or not expected[group]:
                rows = {chance.randrange(10): step for _ in range(chance.randrange(1, 4))}
                commit(client, group, rows)
                expected[group] |= {("t", index): step for index in rows}
            else:
                place = chance.choice(list(expected[group]))
                del expected[group][place]
                gone = [{"name": "t", "partitions": [{"partition_index": place[1]}]}]
                answer = client.ask(Api.OFFSET_DELETE, 0, group_id=group, topics=gone)
                assert answer.topics[0].partitions[0].error_code == Code.NONE
        [shard] = shards(broker)
        broker.until(lambda: shard.log.hosted.low_watermark > 100 and shard.log.compacting is None)
        assert {group: committed(client, group) for group in "ab"} == expected
    again = start_broker(store, offsets_partitions=1, node_id=2)
    with Wire(again.port) as client:
        assert {group: committed(client, group) for group in "ab"} == expected
