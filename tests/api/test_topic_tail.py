"""All partitions of a topic at once, blocking and for asyncio: records that know where they are."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from itertools import islice

import pytest

import logstore
import logstore.aio
from logstore.engine.partition.many_partitions import LOOKS
from logstore.errors import OffsetOutOfRange
from logstore.format.batches.record import Record, TopicRecord
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, ManualClock
from tests.support.engine.harness import background, open_store
from tests.support.patience import PATIENCE_S


@pytest.fixture
def store() -> Iterator[logstore.Store]:
    with open_store(MemoryStore()) as opened:
        yield opened


def places(records: object) -> list[tuple[int, int | None]]:
    assert isinstance(records, list)
    return [(record.partition, record.offset) for record in records]


def test_a_record_that_knows_its_place() -> None:
    plain = Record(b"v", b"k", (("h", b"1"),), 5, 7)
    record = TopicRecord.at("t", 3, plain)
    assert record == plain
    assert (record.topic, record.partition) == ("t", 3)
    assert record != TopicRecord.at("t", 4, plain)
    assert len({record, TopicRecord.at("t", 4, plain), TopicRecord.at("t", 3, plain)}) == 2
    again = pickle.loads(pickle.dumps(record))
    assert (again, again.topic, again.partition) == (record, "t", 3)
    value, *_ = record
    assert value == b"v"
    assert repr(record).endswith("offset=7, topic='t', partition=3)")


def test_P01_it_can_be_appended_elsewhere(store: logstore.Store) -> None:
    here, there = store.create_topic("here", partitions=2), store.create_topic("there")
    here.append(b"v", key=b"k", headers=[("h", b"1")])
    (record,) = here.records()
    there.append_many([record])
    there.partition(0).append(record)
    assert [(each.key, each.value, each.headers) for each in there.records()] == [
        (b"k", b"v", (("h", b"1"),))
    ] * 2


def test_records_of_all_partitions(store: logstore.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for number in range(9):
        topic.append(b"%d" % number, partition=number % 3)
    assert places(list(topic.records())) == [(p, offset) for p in range(3) for offset in range(3)]
    assert places(list(topic.records({0: 2, 1: 3}, {2: 1}))) == [(0, 2), (2, 0)]
    with pytest.raises(OffsetOutOfRange):
        topic.records({0: 4})
    with pytest.raises(ValueError, match="partitions 0 to 2, not 7"):
        topic.records({7: 0})


def test_tail_goes_on_and_begins_where_it_is_told(store: logstore.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for number in range(9):
        topic.append(b"%d" % number, partition=number % 3)
    assert sorted(places(list(islice(topic.tail({0: 2, 1: "end"}), 4)))) == [(0, 2), (2, 0), (2, 1), (2, 2)]
    tail = topic.tail("end")
    waiting = background(next, tail)
    topic.append(b"new", partition=1)
    found = waiting.result(PATIENCE_S)
    assert (found.topic, found.partition, found.offset, found.value) == ("t", 1, 3, b"new")
    assert sorted(places(list(islice(topic.tail(), 10)))) == sorted(
        [(p, offset) for p in range(3) for offset in range(3)] + [(1, 3)]
    )
    with pytest.raises(TypeError):
        topic.tail({0: "start"})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        topic.tail("beginning")  # type: ignore[arg-type]


def test_tail_past_the_end_is_said(store: logstore.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    with pytest.raises(OffsetOutOfRange):
        next(topic.tail({1: 5}))


@pytest.mark.parametrize("how", ["close", "delete"])
def test_tail_ends_with_the_store_and_with_the_topic(how: str) -> None:
    store = open_store(MemoryStore())
    topic = store.create_topic("t", partitions=3)
    topic.append(b"1")
    tail = topic.tail()
    next(tail)
    ended = background(lambda: list(tail))
    store.close() if how == "close" else store.delete_topic("t")
    assert ended.result(PATIENCE_S) == []
    store.close()


def test_tail_sees_what_another_process_writes_and_goes_on_after_a_reopen() -> None:
    objects = MemoryStore()
    with open_store(objects) as writer, open_store(objects, follow_interval=0.01) as reader:
        topic = writer.create_topic("t", partitions=3)
        tail = reader.topic("t").tail()
        for number in range(6):
            topic.append(b"%d" % number, partition=number % 3)
            assert background(next, tail).result(PATIENCE_S).value == b"%d" % number
        reader.topic("t").partition(1).reopen()
        topic.append(b"more", partition=1)
        assert background(next, tail).result(PATIENCE_S).value == b"more"


def test_P04_waiting_for_many_partitions_asks_for_a_few_at_a_time() -> None:
    objects, clock = MemoryStore(), ManualClock()
    counted = FaultyStore(objects)
    with open_store(objects, lanes=0) as writer, open_store(counted, clock) as reader:
        topic = writer.create_topic("t", partitions=100)
        many, _ = reader.topic("t")._internal.many(None, "durable")
        many.put(reader.topic("t")._internal.cursor(number, None) for number in range(100))
        assert many.take(1) == []
        asked: set[str] = set()
        for _ in range(-(-100 // LOOKS)):
            clock.advance(0.5)
            counted.forget_calls()
            assert many.take(1) == []
            assert many.take(1) == [], "not before the next interval"
            partitions = {call.key.split("/")[3] for call in counted.calls}
            assert len(partitions) <= LOOKS
            asked |= partitions
        assert len(asked) == 100, "each in its turn"
        topic.append(b"x", partition=50)
        for _ in range(-(-100 // LOOKS)):
            clock.advance(0.5)
            if taken := many.take(1):
                break
        assert places([record for each in taken for record in each.records]) == [(50, 0)]
        many.close()


def test_the_same_for_asyncio() -> None:
    async def run() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            topic = await store.create_topic("t", partitions=3)

            async def produce() -> None:
                for number in range(9):
                    await topic.append(b"%d" % number, partition=number % 3)

            producing = asyncio.create_task(produce())
            found = []
            async for record in topic.tail():
                found.append(record)
                if len(found) == 9:
                    break
            await producing
            assert sorted(places(found)) == [(p, offset) for p in range(3) for offset in range(3)]
            assert {record.topic for record in found} == {"t"}
            assert places([record async for record in topic.records({0: 2}, {1: 1, 2: 0})]) == [
                (0, 2),
                (1, 0),
            ]
            tail = topic.tail("end")
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
            while not waiting.done():
                await topic.append(b"late", partition=2)
            assert (await waiting).value == b"late"
            ending = asyncio.ensure_future(anext(topic.tail("end"), None))
            await asyncio.sleep(0)
            await store.close()
            assert await ending is None

    asyncio.run(run())
