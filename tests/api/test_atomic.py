"""`store.atomic()`: a block of appends to several partitions that are stored together, or not at all."""

from __future__ import annotations

import asyncio

import pytest

import logstore
import logstore.aio
from logstore import Record
from logstore.errors import (
    AppendTimeout,
    Closed,
    InvalidRecord,
    KeyRequired,
    NotAtomic,
    ReadOnly,
    RecordTooLarge,
    UnknownTopic,
)
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.engine.harness import background, open_store, pairs, running
from tests.support.patience import PATIENCE_S


def stored(objects: ObjectStore, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """What a process that was not there sees."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic(topic).partition(partition))


def test_N09_a_block_stores_all_of_its_records_when_it_is_left(any_home: ObjectStore) -> None:
    with running(any_home, lanes=1) as store:
        orders, _ = store.create_topic("orders", 4), store.create_topic("ledger")
        with store.atomic() as tx:
            tx.append(orders, b"paid", key=b"17")
            tx.append("ledger", b"+20", headers=[("by", b"me")], timestamp_ms=5)
            tx.append("ledger", b"-20")
            tx.append(orders, None, partition=3)
            assert tx.receipts == []
            assert orders.partition(3).marks() == (0, 0, 0)
        found = [(each.topic, each.partition, each.offset, each.durability) for each in tx.receipts]
        by_key = tx.receipts[0].partition
        assert found == [
            ("orders", by_key, 0, "durable"),
            ("ledger", 0, 0, "durable"),
            ("ledger", 0, 1, "durable"),
            ("orders", 3, 1 if by_key == 3 else 0, "durable"),
        ]
        first = next(store.topic("ledger").partition(0).records())
        assert (first.headers, first.timestamp_ms, tx.receipts[1].timestamp_ms) == ((("by", b"me"),), 5, 5)
    assert stored(any_home, "ledger") == [(0, b"+20"), (1, b"-20")]
    assert (0, b"paid") in stored(any_home, "orders", by_key)


def test_N09_an_exception_inside_the_block_stores_nothing() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lanes=1) as store:
        topic = store.create_topic("t", 2)
        faulty.forget_calls()
        with pytest.raises(KeyError), store.atomic() as tx:
            tx.append(topic, b"a", partition=0)
            tx.append(topic, b"b", partition=1)
            raise KeyError("no")
        assert tx.receipts == []
        with pytest.raises(InvalidRecord), store.atomic() as tx:
            tx.append(topic, b"a", partition=0)
            tx.append(topic, "text", partition=1)  # type: ignore[arg-type]
        with pytest.raises(InvalidRecord, match="append takes one value"), store.atomic() as tx:
            tx.append(topic, [b"a"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="partitions 0 to 1"), store.atomic() as tx:
            tx.append(topic, b"a", partition=2)
        assert not faulty.calls
        with pytest.raises(UnknownTopic), store.atomic() as tx:
            tx.append("unknown", b"a")
        with store.atomic() as tx:
            pass
        assert tx.receipts == []
        assert faulty.count("put") == 0
        with pytest.raises(Closed, match="has ended"):
            tx.append(topic, b"late")
        with pytest.raises(Closed, match="has ended"), tx:
            pass


def test_N09_where_it_cannot_be_it_is_said_before_anything_is_stored() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("t", 8)
    objects_before = [info.key for info in objects.list("")]
    for settings, why in (
        ({"lanes": 0}, "lanes=1"),
        ({"lanes": 3}, "different lanes"),
        ({"writer": "shared"}, 'writer="exclusive"'),
    ):
        with running(objects, **settings) as store, pytest.raises(NotAtomic, match=why), store.atomic() as tx:
            for number in range(8):
                tx.append("t", b"x", partition=number)
    with running(objects, writer="read_only") as store, pytest.raises(ReadOnly):
        store.atomic()
    with (
        running(objects, lanes=1, compression="none") as store,
        pytest.raises(RecordTooLarge, match="4194304"),
        store.atomic() as tx,
    ):
        for number in range(8):
            tx.append("t", bytes(600_000), partition=number)
    assert [info.key for info in objects.list("") if info.key not in objects_before] == []


def test_N09_shared_writers_in_one_of_the_partitions_refuse_it() -> None:
    objects = MemoryStore()
    with running(objects, writer="shared") as store:
        store.create_topic("t", 2).partition(1).append(b"shared")
        with running(objects, lanes=1) as other, pytest.raises(NotAtomic, match="shared writers"):
            with other.atomic() as tx:
                tx.append("t", b"x", partition=0)
                tx.append("t", b"y", partition=1)
    assert stored(objects, "t", 0) == []
    assert stored(objects, "t", 1) == [(0, b"shared")]


def test_N09_a_deadline_that_passes_leaves_all_or_none() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, lanes=1) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.append(b"opened", partition=number)
        with gated.hold("put", prefix="lanes/") as gate:
            with pytest.raises(AppendTimeout, match="all of it or none"), store.atomic(timeout=0.01) as tx:
                tx.append(topic, b"x", partition=0)
                tx.append(topic, b"y", partition=1)
            gate.wait_held()
            assert tx.receipts == []
            gate.open()
        assert topic.append(b"z", partition=0).offset == 2
    assert stored(gated, "t", 1) == [(0, b"opened"), (1, b"y")]


def test_N09_the_same_for_asyncio() -> None:
    objects = MemoryStore()

    async def main() -> None:
        async with logstore.aio.open(objects, lanes=1) as store:
            topic = await store.create_topic("t", 2)
            async with store.atomic() as tx:
                await tx.append(topic, b"x", partition=0)
                await tx.append("t", b"y", partition=1)
            assert [(each.partition, each.offset) for each in tx.receipts] == [(0, 0), (1, 0)]
            with pytest.raises(KeyError):
                async with store.atomic() as tx:
                    await tx.append(topic, b"no", partition=0)
                    raise KeyError("no")
            async with store.atomic() as tx:
                pass
            assert tx.receipts == []
            many = [store.atomic() for _ in range(20)]

            async def one(number: int) -> None:
                async with many[number] as block:
                    for partition in range(2):
                        await block.append(topic, b"%d" % number, partition=partition)

            await asyncio.gather(*map(one, range(20)))
            assert sorted(block.receipts[0].offset for block in many) == list(range(1, 21))

    asyncio.run(main())
    left, right = stored(objects, "t", 0), stored(objects, "t", 1)
    assert left[1:] == right[1:]
    assert {value for _, value in left[1:]} == {b"%d" % number for number in range(20)}


def test_N09_an_event_loop_goes_on_while_a_block_waits_and_when_it_is_late() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)

    async def main() -> None:
        async with logstore.aio.open(gated, lanes=1, ack="buffered") as store:
            topic = await store.create_topic("t", 2)
            for number in range(2):
                await topic.append(b"opened", partition=number)
            await store.flush()
            with gated.hold("put", prefix="lanes/") as gate:

                async def block(timeout: float | None) -> None:
                    async with store.atomic(timeout=timeout) as tx:
                        await tx.append(topic, b"x", partition=0)
                        await tx.append(topic, b"y", partition=1)

                waiting = asyncio.create_task(block(None))
                await asyncio.to_thread(gate.wait_held)
                with pytest.raises(AppendTimeout):
                    await block(0.01)
                behind = topic.partition(0).blocking.submit(b"behind", ack="buffered")
                assert not behind.done()
                gate.open()
                await waiting
                assert (await asyncio.wrap_future(behind)).offset == 3

    asyncio.run(main())
    assert [value for _, value in stored(objects, "t", 0)] == [b"opened", b"x", b"x", b"behind"]


def test_N09_closing_the_store_makes_a_block_durable_that_is_under_way() -> None:
    gated = GatedStore(MemoryStore())
    store = open_store(gated, lanes=1)
    topic = store.create_topic("t", 2)
    for number in range(2):
        topic.append(b"opened", partition=number)

    def block() -> list[int]:
        with store.atomic() as tx:
            tx.append(topic, b"x", partition=0)
            tx.append(topic, b"y", partition=1)
        return [receipt.offset for receipt in tx.receipts]

    with gated.hold("put", prefix="lanes/") as gate:
        running_block = background(block)
        gate.wait_held()
        closing = background(store.close)
        gate.open()
        closing.result(PATIENCE_S)
        assert running_block.result(PATIENCE_S) == [1, 1]
    assert [stored(gated, "t", number)[1:] for number in range(2)] == [[(1, b"x")], [(1, b"y")]]


def test_N09_a_compacted_topic_takes_part() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        events, table = store.create_topic("events"), store.create_topic("table", compact=True)
        for turn in range(3):
            with store.atomic() as tx:
                tx.append(events, b"%d" % turn, key=b"k")
                tx.append(table, b"%d" % turn, key=b"k")
            assert [receipt.offset for receipt in tx.receipts] == [turn, turn]
        with pytest.raises(KeyRequired), store.atomic() as tx:
            tx.append(events, b"3")
            tx.append(table, b"3")
        assert events.partition(0).durable_high_watermark == 3


def test_N01_compacted_topics_share_the_put_of_a_flush() -> None:
    faulty = FaultyStore(MemoryStore())
    with running(faulty) as store:
        topic = store.create_topic("table", 16, compact=True)
        logs = [topic.partition(number) for number in range(16)]
        for waiting in [log.submit([Record(b"0", key=b"k")]) for log in logs]:
            waiting.result(PATIENCE_S)
        before = faulty.count("put")
        for waiting in [log.submit([Record(b"1", key=b"k")]) for log in logs]:
            waiting.result(PATIENCE_S)
        assert faulty.count("put") - before < 8, "the first ones, and what came meanwhile"
        assert all(log.durable_high_watermark == 2 for log in logs)
