"""N08, B05: ListOffsets of many partitions that this broker has not opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.wrappers.metered import MeteredStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic
from tests.support.broker.transactions import Transactor

Start = Callable[..., LocalBroker]
COUNT = 200
LATEST, EARLIEST = -1, -2


@pytest.mark.parametrize("isolation", [0, 1], ids=["uncommitted", "committed"])
def test_N08_the_offsets_of_a_lanes_partitions_cost_about_as_much_as_one(
    start_broker: Start, isolation: int
) -> None:
    store = MeteredStore(MemoryStore())
    with LocalBroker(store, node_id=1) as first, Wire(first.port) as old:
        make_topic(old, partitions=COUNT)
        old.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        for index in range(COUNT):
            for _ in range(1 + index % 3):
                assert old.produce("t", batch(b"v"), partition=index).error_code == Code.NONE
    second = start_broker(store, node_id=2)
    with Wire(second.port) as new:

        def listed(timestamp: int) -> list[int]:
            rows = [{"partition_index": index, "timestamp": timestamp} for index in range(COUNT)]
            topics = [{"name": "t", "partitions": rows}]
            [topic] = new.ask(Api.LIST_OFFSETS, 6, isolation_level=isolation, topics=topics).topics
            assert {each.error_code for each in topic.partitions} == {Code.NONE}
            return [each.offset for each in topic.partitions]

        before = requests(store)
        assert listed(LATEST) == [1 + index % 3 for index in range(COUNT)]
        cold = requests(store) - before
        assert listed(EARLIEST) == [0] * COUNT
        before = requests(store)
        assert listed(LATEST) == [1 + index % 3 for index in range(COUNT)]
        warm = requests(store) - before
        print(f"{isolation=}: {cold} requests cold, {warm} warm")
        assert cold < 90, "which partitions have a snapshot of transactions is one LIST"
        assert warm <= 4


def test_B14_partitions_with_transactions_are_told_from_those_without(start_broker: Start) -> None:
    """Among many that nobody has opened here: one has ended, the others have none; then one begins."""
    store = MemoryStore()
    with LocalBroker(store, node_id=1) as first, Wire(first.port) as old:
        make_topic(old, partitions=COUNT)
        old.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        for index in range(COUNT):
            assert old.produce("t", batch(b"v"), partition=index).error_code == Code.NONE
        ended, begun = Transactor(old, "ended"), Transactor(old, "begun")
        assert [ended.init(), ended.add("t", 5), ended.send(b"v", partition=5)] == [Code.NONE] * 3
        assert [ended.end(), ended.add("t", 5)] == [Code.NONE] * 2
        second = start_broker(store, node_id=2)
        with Wire(second.port) as new:

            def listed() -> dict[int, int]:
                rows = [{"partition_index": index, "timestamp": LATEST} for index in range(COUNT)]
                topics = [{"name": "t", "partitions": rows}]
                [topic] = new.ask(Api.LIST_OFFSETS, 6, isolation_level=1, topics=topics).topics
                return {each.partition_index: each.offset for each in topic.partitions if each.offset != 1}

            assert listed() == {5: 3}, "the batch, and its marker"
            assert [begun.init(), begun.add("t", 7), begun.send(b"v", partition=7)] == [Code.NONE] * 3
            assert old.produce("t", batch(b"v"), partition=9).error_code == Code.NONE
            assert listed() == {5: 3, 9: 2}, "what goes on in 7 is not told"


def requests(store: MeteredStore) -> int:
    return sum(each.requests for each in store.snapshot().values())
