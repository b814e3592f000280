"""Reads that cannot be answered: outside of the marks, of a deleted topic, in an unknown visibility."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import logstore
import logstore.aio
from logstore import OffsetOutOfRange, UnknownTopic
from logstore.objects import MemoryStore


def _three(store: logstore.Store) -> logstore.PartitionLog:
    log = store.create_topic("t").partition(0)
    log.append([b"v0", b"v1", b"v2"])
    return log


@pytest.mark.parametrize("start", [-1, 4, 100])
def test_L18_records_outside_of_the_marks_are_refused_at_the_call(start: int) -> None:
    with logstore.open(MemoryStore()) as store:
        log = _three(store)
        with pytest.raises(OffsetOutOfRange) as refused:
            log.records(start)
        assert (refused.value.low, refused.value.high, refused.value.offset) == (0, 3, start)


def test_L18_records_below_the_low_mark_are_refused_even_if_none_are_asked_for() -> None:
    with logstore.open(MemoryStore()) as store:
        log = _three(store)
        log.delete_before(2)
        with pytest.raises(OffsetOutOfRange) as refused:
            log.records(1, 1)
        assert (refused.value.low, refused.value.high) == (2, 3)
        assert [record.offset for record in log.records(2)] == [2]


def test_L18_records_at_the_high_mark_are_none() -> None:
    with logstore.open(MemoryStore()) as store:
        log = _three(store)
        assert list(log.records(3)) == []
        assert list(log.records(1, 1)) == []


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 2), (2, 5), (1, 5), (4, 6), (0, 99)])
def test_L18_records_begin_and_stop_inside_a_batch(start: int, stop: int) -> None:
    """Two batches in the store, one in the buffer."""
    values = [b"v%d" % number for number in range(9)]

    async def by_await(home: MemoryStore) -> list[tuple[int | None, bytes | None]]:
        async with logstore.aio.open(home, writer="read_only") as store:
            log = (await store.topic("t")).partition(0)
            return [(record.offset, record.value) async for record in log.records(start, stop)]

    home = MemoryStore()
    with logstore.open(home, flush_interval=3600) as store:
        log = _three(store)
        log.append(values[3:6])
        stored = list(enumerate(values[:6]))[start:stop]
        assert asyncio.run(by_await(home)) == stored
        log.append(values[6:], ack="buffered")
        found = [(record.offset, record.value) for record in log.records(start, stop)]
        assert found == list(enumerate(values))[start:stop]


def test_L18_durable_records_above_the_durable_mark_are_refused() -> None:
    with logstore.open(MemoryStore(), flush_interval=3600) as store:
        log = _three(store)
        log.append([b"v3", b"v4"], ack="buffered")
        assert [record.value for record in log.records(4)] == [b"v4"]
        with pytest.raises(OffsetOutOfRange) as refused:
            log.records(4, visibility="durable")
        assert (refused.value.low, refused.value.high) == (0, 3)


def test_L18_the_asyncio_face_has_the_same_bounds() -> None:
    async def work() -> None:
        async with logstore.aio.open(MemoryStore()) as store:
            log = (await store.create_topic("t")).partition(0)
            await log.append([b"v0", b"v1"])
            for start in (-1, 3):
                with pytest.raises(OffsetOutOfRange):
                    [record async for record in log.records(start)]
            assert [record.value async for record in log.records(1)] == [b"v1"]
            with pytest.raises(ValueError, match="visibility"):
                await log.read(0, visibility="sideways")  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(work(), 30))


READS: list[Callable[[logstore.PartitionLog], object]] = [
    lambda log: log.read(0),
    lambda log: log.records(),
    lambda log: log.offset_for_timestamp(0),
]


@pytest.mark.parametrize("read", READS)
def test_L25_the_log_of_a_deleted_topic_shows_nothing_that_it_has_in_memory(
    read: Callable[[logstore.PartitionLog], object],
) -> None:
    with logstore.open(MemoryStore()) as store:
        log = _three(store)
        log.read(0)
        store.delete_topic("t")
        with pytest.raises(UnknownTopic):
            read(log)
