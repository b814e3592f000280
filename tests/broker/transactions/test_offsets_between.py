"""B14: offsets that a transaction commits: its end comes while they are on their way, they are never stored, or its end is
on its way while somebody asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from broker_shim.partitions.together import NotStored, Part
from broker_shim.wire.codes import Code
from logstore.engine.memory.results import Receipt
from logstore.format.batches.markers import Marker
from logstore.layout.broker import INTERNAL_TOPIC
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from logstore.topic import Topic
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, committed_offset
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
NONE = Code.NONE


@pytest.mark.parametrize("lanes", [0], ids=["chains"], indirect=True)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_B14_offsets_that_come_behind_the_end_are_not_kept_for_the_next_transaction(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """The coordinator has said that they belong to it; then it ended, and then they come. As where a client has waited for
    their answer for too long, and gives the transaction up."""
    broker = start_broker()
    partitions = broker.server.broker.partitions
    find = partitions.find
    held, go_on = asyncio.Event(), asyncio.Event()

    async def found_late(name: str) -> Topic | None:
        if name == "t" and not held.is_set():
            held.set()
            await go_on.wait()
        return await find(name)

    with Wire(broker.port) as wire, Wire(broker.port) as other, ThreadPoolExecutor(1) as pool:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add_offsets()] == [NONE] * 2
        late = Transactor(other)
        late.producer_id, late.epoch = producer.producer_id, producer.epoch
        monkeypatch.setattr(partitions, "find", found_late)
        coming = pool.submit(late.commit_offset, 7)
        broker.run(held.wait())
        assert producer.end(commit=False) is NONE
        assert producer.add_offsets() is NONE, "its markers are stored"
        broker.call(go_on.set)
        assert coming.result(PATIENCE_S) is Code.COORDINATOR_LOAD_IN_PROGRESS, "which is tried again"
        assert committed_offset(wire) == (NONE, -1), "nothing is pending"
        assert producer.end(commit=commit) is NONE
        assert producer.add_offsets() is NONE, "its markers are stored"
        assert committed_offset(wire) == (NONE, -1)


@pytest.mark.parametrize("lanes", [1], ids=["lane"], indirect=True)
def test_B14_offsets_that_are_not_stored_are_not_pending(start_broker: Start) -> None:
    """The coordinator's log is another broker's, which the first one does not know; so nothing is stored. Nobody would ever
    end that transaction: consumers of the group would wait for ever, and the producer's next one would commit it."""
    store = MemoryStore()
    first = start_broker(store, node_id=1, offsets_partitions=1)
    with Wire(first.port) as wire:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add_offsets(), producer.commit_offset(3)] == [NONE] * 3
        assert producer.end() is NONE
        assert committed_offset(wire) == (NONE, 3)
        assert producer.add_offsets() is NONE
        second = start_broker(store, node_id=2, offsets_partitions=1)
        with Wire(second.port) as new:
            assert Transactor(new, "somebody else").init() is NONE
            assert producer.commit_offset(7) is not NONE
            assert committed_offset(wire) == (NONE, 3)


def test_B14_offsets_are_unstable_until_the_end_of_their_transaction_is_durable(
    start_broker: Start, lanes: int
) -> None:
    """Decided, or about to be, and not in the group yet. Who takes the partition over in a rebalance, and was told the
    offset of before, would do again what is committed."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store, offsets_partitions=1)
    with Wire(broker.port) as wire, Wire(broker.port) as other, ThreadPoolExecutor(1) as pool:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add_offsets(), producer.commit_offset(3)] == [NONE] * 3
        with store.hold("put", prefix="lanes/" if lanes else f"topics/{INTERNAL_TOPIC}/") as gate:
            ended = pool.submit(producer.end)
            gate.wait_held(PATIENCE_S)
            assert committed_offset(other) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
            assert committed_offset(other, stable=False) == (NONE, -1)
        assert ended.result(PATIENCE_S) is NONE
        assert producer.add_offsets() is NONE, "its markers are stored"
        assert committed_offset(other) == (NONE, 3)


@pytest.mark.parametrize("lanes", [1], ids=["lane"], indirect=True)
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_B14_a_marker_behind_an_end_that_may_not_be_stored_commits_what_that_did_not(
    start_broker: Start, is_stored: bool
) -> None:
    """A coordinator ends the transaction with one append, and another, which has replaced it, sends the marker meanwhile: it
    was answered as one that had come already, and the offsets were lost when the append turned out to be for nothing."""
    broker = start_broker(offsets_partitions=1)
    with Wire(broker.port) as wire:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add_offsets(), producer.commit_offset(3)] == [NONE] * 3
        [shard] = broker.server.broker.coordinator.shards
        on_its_way: Future[Receipt] = Future()
        answers: list[Code] = []

        def both() -> None:
            marker = Marker(producer.producer_id, producer.epoch, True, 1, 10**15)
            part = shard.transactional.part_of_end(marker)
            assert isinstance(part, Part)
            part.submitted(on_its_way)
            shard.transactional.end(marker._replace(coordinator_epoch=2), answers.append)

        broker.call(both)
        assert answers == [], "it waits"
        if is_stored:
            on_its_way.set_result(Receipt(broker.log(INTERNAL_TOPIC)._internal, 0, 0, 0, "durable"))
        else:
            on_its_way.set_exception(NotStored("another log was lost"))
        broker.until(lambda: answers == [NONE])
        assert committed_offset(wire) == (NONE, 3)
