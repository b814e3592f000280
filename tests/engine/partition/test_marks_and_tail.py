"""One consistent look at the watermarks, tails that begin at the end, and `append` that is given several records."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import logstore
import logstore.aio
from logstore import InvalidRecord, Marks, Record
from logstore.objects import MemoryStore
from tests.support.engine.harness import background, open_store, partition, running
from tests.support.patience import PATIENCE_S


class NotingLock:
    """A lock that says when somebody asks for it."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.asked = threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_L15_the_three_watermarks_are_of_one_moment() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        assert log.marks() == Marks(0, 0, 0)
        log.append([b"a", b"b"])
        log.append(b"c", ack="buffered")
        assert log.marks() == (0, 2, 3)
        log.delete_before(1)
        assert log.marks() == Marks(low=1, durable=2, buffered=3)


def test_L15_a_look_at_the_watermarks_waits_for_a_change_that_is_half_done() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append([b"a", b"b"])
        state: Any = log._internal.state
        held = state._lock
        with held:
            state._lock = noting = NotingLock(held)
            look = background(log.marks)
            assert noting.asked.wait(PATIENCE_S), "nobody asked for the lock"
            state.durable, state.buffered = 7, 9  # one by one: between them the look would be inconsistent
        assert look.result(PATIENCE_S) == Marks(0, 7, 9)
        state._lock, state.durable, state.buffered = held, 2, 2


def test_L14_a_tail_from_the_end_shows_what_comes_after_the_call() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append([b"old-0", b"old-1"])
        tail = log.tail(start="end")
        log.append([b"new-0", b"new-1"], ack="buffered")
        assert [next(tail).value, next(tail).value] == [b"new-0", b"new-1"]


def test_L19_the_end_is_that_of_the_visibility() -> None:
    with running(MemoryStore()) as store:
        log = partition(store)
        log.append(b"stored")
        log.append(b"shown", ack="buffered")
        durable, buffered = log.tail(start="end", visibility="durable"), log.tail(start="end")
        log.append(b"next")
        assert next(durable).value == b"shown"
        assert next(buffered).value == b"next"


def test_L14_a_reader_elsewhere_asks_where_the_end_is() -> None:
    """Its own watermarks are those of its last look: a tail from there would begin too early."""
    objects = MemoryStore()
    with (
        running(objects) as writing,
        open_store(objects, writer="read_only", follow_interval=0.001) as reading,
    ):
        writer = partition(writing)
        writer.append(b"old-0")
        reader = reading.topic("t").partition(0)
        assert reader.marks() == (0, 1, 1)
        writer.append(b"old-1")
        assert reader.marks() == (0, 1, 1), "nobody asked the store"
        tail = reader.tail(start="end")
        writer.append(b"new")
        assert next(tail).value == b"new"


def test_L06_a_tail_from_the_end_of_a_closed_store_is_over() -> None:
    store = open_store(MemoryStore())
    log = partition(store)
    log.append(b"a")
    store.close()
    assert list(log.tail(start="end")) == []


@pytest.mark.parametrize("start", ["beginning", 1.5, True, b"end"])
def test_a_tail_begins_at_an_offset_or_at_the_end(start: Any) -> None:
    with running(MemoryStore()) as store:
        with pytest.raises(TypeError, match="an offset is an int"):
            partition(store).tail(start=start)


def test_L14_asyncio_has_both() -> None:
    async def work() -> None:
        objects = MemoryStore()
        async with logstore.aio.open(objects, flush_interval=3600.0) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.open_writer()
            await log.append([b"old-0", b"old-1"])
            tail = log.tail(start="end")
            await log.append(b"new", ack="buffered")
            assert log.marks() == Marks(0, 2, 3)
            assert (await anext(tail)).value == b"new"
            async with logstore.aio.open(objects, writer="read_only", follow_interval=0.001) as reading:
                reader = (await reading.topic("t")).partition(0)
                await reader.refresh()
                assert reader.marks() == (0, 2, 2)
                await log.flush()
                step = asyncio.ensure_future(anext(reader.tail(start="end")))
                while reader.marks().durable < 3:  # the first step has asked where the end is
                    await asyncio.sleep(0)
                await log.append(b"later")
                assert (await step).value == b"later"
            with pytest.raises(TypeError, match="an offset is an int"):
                log.tail(start="beginning")  # type: ignore[arg-type]

    asyncio.run(work())


@pytest.mark.parametrize("value", [[b"a", b"b"], (b"a",), Record(b"a"), iter([b"a"])], ids=type)
def test_L27_append_of_several_names_append_many(value: Any) -> None:
    with running(MemoryStore()) as store:
        topic = store.create_topic("t")
        with pytest.raises(
            InvalidRecord, match=r"append_many .*nothing was|nothing was appended.*append_many"
        ):
            topic.append(value)
        with pytest.raises(InvalidRecord) as caught:
            topic.append("a")  # type: ignore[arg-type]
        assert "append_many" not in str(caught.value)
        assert topic.append_many([b"a", Record(b"b")])[1].offset == 1, "nothing was taken"


def test_L27_append_of_several_names_append_many_for_asyncio_too() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            topic = await store.create_topic("t")
            with pytest.raises(InvalidRecord, match="append_many"):
                await topic.append([b"a", b"b"])  # type: ignore[arg-type]
            assert (await topic.append(b"a")).offset == 0

    asyncio.run(work())
